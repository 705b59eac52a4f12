"""Whatever happens to the files of a backup, no wrong state is ever restored.

What should be taken is found by comparing bytes with those that were written: the newest commit of which
every byte that it needs is as it was.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups import packing, reading
from keras_dist_callbacks.backups.manifest import decode_manifest, encode_manifest
from keras_dist_callbacks.backups.packing import tensor_bytes
from keras_dist_callbacks.backups.snapshot import CommitId, Manifest
from keras_dist_callbacks.base.errors import DamagedBackupError
from keras_dist_callbacks.run.engine.committer import EngineOptions
from tests.support.recording import ROOT, Files, RecordingStore, Run, tensors_at

pytestmark = pytest.mark.filterwarnings("ignore:.*quarantined:RuntimeWarning")
KINDS = ("flip", "truncate", "empty", "delete", "swap", "zero", "insert", "append")


@pytest.fixture(autouse=True)
def several_blobs_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOB_BYTES", 150)
    monkeypatch.setattr(reading, "_REMOTE_READERS", 1)  # thousands of restores: threads for each took most of the time


def backup(*, double: bool, workers: int = 2) -> Files:
    """Two generations, the newer one with two commits."""
    store = RecordingStore()
    options = EngineOptions(double_checkpoint=double)
    for saves in (3, 2):
        run = Run(store, workers, options)
        run.begin()
        run.save(saves)
    return store.files


def manifests(files: Files) -> list[Manifest]:
    paths = [path for path in files if path.startswith(f"{ROOT}/commits/")]
    return sorted((decode_manifest(files[path], path) for path in paths), key=lambda manifest: manifest.id)


def is_whole(manifest: Manifest, files: Files, original: Files) -> bool:
    """Whether every byte that the commit needs is as it was written."""
    path = f"{ROOT}/{manifest.id.name}"
    if files.get(path) != original[path]:
        return False
    needed = {f"{ROOT}/{blob.path}": [(0, blob.header_size)] for blob in manifest.blobs}
    for record in manifest.workers:
        for info in record.tensors.values():
            needed[f"{ROOT}/{info.blob}"].append((info.start, info.start + tensor_bytes(info)))
    for path, ranges in needed.items():
        if len(files.get(path, b"")) != len(original[path]):
            return False
        if any(files[path][start:end] != original[path][start:end] for start, end in ranges):
            return False
    return True


def place(rng: random.Random, path: str, content: bytes, where: str) -> int:
    """A byte of the wanted class: what frames the content, its description, or the content itself."""
    if path.startswith(f"{ROOT}/blobs/"):
        header = 8 + int.from_bytes(content[:8], "little")
        ranges = {"length": (0, 8), "header": (8, header), "body": (header, len(content))}
    else:
        ranges = {"length": (0, 12), "header": (12, 64), "body": (64, len(content))}
    start, end = ranges[where]
    return rng.randrange(min(start, len(content) - 1), max(end, start + 1)) % len(content)


def damage(rng: random.Random, files: Files, path: str, kind: str, where: str) -> None:
    content = files[path]
    at = place(rng, path, content, where)
    if kind == "delete":
        del files[path]
    elif kind == "swap":
        other = rng.choice([p for p in files if p != path])
        files[path], files[other] = files[other], files[path]
    else:
        files[path] = {
            "flip": content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :],
            "truncate": content[:at],
            "empty": b"",
            "zero": content[:at] + bytes(min(16, len(content) - at)) + content[at + 16 :],
            "insert": content[:at] + b"\0" + content[at:],
            "append": content + bytes([rng.randrange(256)]),
        }[kind]


def restore(files: Files, expected: Manifest | None, where: str) -> str:
    """Lets a new run begin on the files; what came of it."""
    store = RecordingStore(files)
    run = Run(store, workers=2)
    if expected is None:
        with pytest.raises(DamagedBackupError, match=r"none of the .* backups in .* is intact") as caught:
            run.engine.pick()
        assert store.files == files, "an error leaves everything as it was"
        return str(caught.value)
    picked = run.engine.pick()
    assert picked is not None, where
    assert picked[0] == expected.id, where
    for worker in range(2):
        state = run.backups.load(run.backups.manifest(expected.id), worker)
        for name, array in tensors_at(expected.position.step, worker).items():
            np.testing.assert_array_equal(state.tensors[name], array, err_msg=where)
    return ""


@pytest.mark.in_gate(1)
@pytest.mark.slow
@pytest.mark.parametrize("double", [False, True], ids=["shared", "double_checkpoint"])
def test_no_damage_of_any_file_yields_a_wrong_state(double: bool, count: Callable[[str], None]) -> None:
    original = backup(double=double)
    commits = manifests(original)
    rng = random.Random(f"damage {double}")  # noqa: S311 - reproducible damage
    outcomes = {commit.id: 0 for commit in commits}
    errors = of_one_file = tried = 0
    for path in sorted(original):
        for kind in KINDS:
            for where in ("length", "header", "body"):
                for _ in range(4):
                    files = dict(original)
                    damage(rng, files, path, kind, where)
                    whole = [commit for commit in commits if is_whole(commit, files, original)]
                    restore(files, whole[-1] if whole else None, f"{kind} of {where} of {path}")
                    tried += 1
                    errors += not whole
                    of_one_file += not whole and kind != "swap"
                    if whole:
                        outcomes[whole[-1].id] += 1
    assert tried >= 1000
    assert len([n for n in outcomes.values() if n]) >= 2, "the newest is taken, and an older one if it is damaged"
    assert (of_one_file > 0) is not double, "one damaged file harms every commit only if they share it"
    older = sum(list(outcomes.values())[:-1])
    count(f"{tried} damages: {outcomes[commits[-1].id]} took the newest, {older} an older one, {errors} were errors")


@pytest.mark.slow
def test_damage_of_several_files_at_once_yields_no_wrong_state(count: Callable[[str], None]) -> None:
    rng = random.Random("several")  # noqa: S311 - reproducible damage
    tried = errors = 0
    for original in (backup(double=False), backup(double=True)):
        commits = manifests(original)
        for _ in range(400):
            files = dict(original)
            for path in rng.sample(sorted(original), rng.randrange(2, 5)):
                if path in files:
                    damage(rng, files, path, rng.choice(KINDS), rng.choice(["length", "header", "body"]))
            if not any(path.startswith(f"{ROOT}/commits/") for path in files):
                continue
            whole = [commit for commit in commits if is_whole(commit, files, original)]
            listed = [CommitId.parse(path.rpartition("/")[2]) for path in files if f"{ROOT}/commits/" in path]
            if not whole and not any(f"{ROOT}/owners/{c.generation:06d}.committed" in files for c in listed if c):
                continue  # no witness either: as if nothing had ever been committed
            restore(files, whole[-1] if whole else None, "several")
            tried += 1
            errors += not whole
    assert 100 < errors < tried - 100
    count(f"{tried} damages of several files, {errors} were errors")


def test_a_damaged_file_that_every_commit_needs_is_named_with_advice() -> None:
    original = backup(double=False)
    commits = manifests(original)[-2:]
    files = {p: c for p, c in original.items() if "commits/000001" not in p}
    ((shared, *_), *_) = [sorted({b.path for b in commits[0].blobs} & {b.path for b in commits[1].blobs})]
    del files[f"{ROOT}/{shared}"]
    message = restore(files, None, "shared")
    assert shared in message
    assert "All of them need that file" in message
    assert "double_checkpoint=True" in message


def test_an_unfinished_first_commit_is_not_damage(capsys: pytest.CaptureFixture[str]) -> None:
    store = RecordingStore()
    run = Run(store)
    run.begin()
    run.save()
    files = {path: content for path, content in store.files.items() if not path.endswith(".committed")}
    manifest = next(path for path in files if "/commits/" in path)
    files[manifest] = files[manifest][:100]
    again = Run(RecordingStore(files), options=EngineOptions(progress=True))
    assert again.begin() is None
    assert "committed no backup; starting from the beginning" in capsys.readouterr().out
    again.save(2)
    assert [path for path in again.store.files if "/damaged/" in path]


def test_a_finished_first_commit_that_is_damaged_is_an_error_and_no_fresh_start() -> None:
    store = RecordingStore()
    run = Run(store)
    run.begin()
    run.save()
    manifest = next(path for path in store.files if "/commits/" in path)
    files = {**store.files, manifest: store.files[manifest][:100]}
    with pytest.raises(DamagedBackupError, match="none of the 1 backups"):
        Run(RecordingStore(files)).begin()


def forged(**changes: object) -> Files:
    """A backup whose one manifest was changed and sealed again."""
    store = RecordingStore()
    run = Run(store)
    run.begin()
    run.save()
    path = next(path for path in store.files if "/commits/" in path)
    manifest = decode_manifest(store.files[path], path)
    for target in (*manifest.blobs, *manifest.workers[0].tensors.values()):
        for name, value in changes.items():
            if name in vars(target):
                object.__setattr__(target, name, value)
    return {**store.files, path: encode_manifest(manifest)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 10**15}, "instead of 1000000000000000"),
        ({"shape": (-1, -1)}, "Expected `int` >= 0"),
        ({"start": -8}, "Expected `int` >= 0"),
        ({"path": "../../secret", "blob": "../../secret"}, "is not valid"),
        ({"path": "/etc/passwd", "blob": "/etc/passwd"}, "is not valid"),
    ],
)
def test_a_manifest_that_claims_too_much_or_leads_outside_is_refused(
    changes: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated: list[int] = []
    real = np.empty

    def empty(shape: Any, *args: Any, **options: Any) -> Any:
        allocated.append(math.prod(np.atleast_1d(shape).tolist()))
        return real(shape, *args, **options)

    monkeypatch.setattr(np, "empty", empty)
    with pytest.raises(DamagedBackupError, match=message):
        Run(RecordingStore(forged(**changes))).engine.pick()
    assert max(allocated, default=0) < 10**6

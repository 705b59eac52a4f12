"""Commits: claimed, staged, committed, pruned; damage of every byte is seen."""

from __future__ import annotations

import dataclasses
import random
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from keras_dist_callbacks.backups import packing
from keras_dist_callbacks.backups.manifest import check_topics
from keras_dist_callbacks.backups.packing import Packer, fingerprints, referenced_blobs
from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.backups.snapshot import (
    CommitId,
    Manifest,
    Position,
    SharedArray,
    TensorInfo,
    WorkerRecord,
)
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupMismatchError, DamagedBackupError, FencedError, StorageError
from keras_dist_callbacks.storage.storage import Storage
from tests.support.blobs import through_a_blob
from tests.support.states import loop_state

TENSORS = {
    "a": np.arange(12, dtype="float32").reshape(3, 4),
    "b": np.array(7, dtype="int64"),
    "empty": np.zeros((0, 3), dtype="float16"),
    "complex": np.array([1 + 2j], dtype="complex64"),
}


def commit(store: BackupStore, sequence: int, tensors: dict[str, Any] | None = None) -> Manifest:
    held = {name: SharedArray(np.asarray(value)) for name, value in (tensors or TENSORS).items()}
    prints = fingerprints(held)
    packer = Packer({}, store.blob_directory)
    for blob in packer.pack(held, prints):
        store.stage_all([blob])
    records = (WorkerRecord(packer.locate(held, prints), loop_state(step=sequence)),)
    manifest = Manifest(
        CommitId(store.generation, sequence, uuid.uuid4().hex[:12]),
        Position("within", 0, sequence, sequence),
        referenced_blobs(records, store.staged),
        records,
        {"keras": "3"},
    )
    store.commit(manifest)
    return manifest


def new_store(directory: Path) -> BackupStore:
    store = BackupStore(Storage.open(directory, fsync=False))
    store.prepare()
    store.claim({})
    return store


def test_what_is_committed_is_read_back(tmp_path: Path) -> None:
    manifest = commit(new_store(tmp_path), 1)
    reader = BackupStore(Storage.open(tmp_path))
    assert reader.commits() == [manifest.id]
    state = reader.load(reader.manifest(manifest.id), 0)
    assert state.position == manifest.position
    assert state.state["loop/user"] == {"step": 1}
    assert list(state.tensors) == list(TENSORS)
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(state.tensors[name], value)
        assert state.tensors[name].dtype == value.dtype


CHIEF = {"t": 1, "objects/changed": {"seen": 6}, "input/num_batches": None}
WORKERS = [
    ({}, {"a", "b"}, CHIEF),
    ({"t": 2}, {"a", "b"}, {**CHIEF, "t": 2}),
    ({"objects/changed": None}, {"a", "b"}, {"t": 1, "input/num_batches": None}),
    ({"b": None}, {"a"}, CHIEF),
]


@pytest.mark.parametrize(("own", "tensors", "state"), WORKERS)
def test_a_worker_has_what_the_chief_has_but_for_what_is_its_own_or_none(
    own: dict[str, Any], tensors: set[str], state: dict[str, Any]
) -> None:
    info = {name: TensorInfo("blob", name, 0, "int8", (1,), "0" * 32) for name in ("a", "b")}
    records = (WorkerRecord(info, CHIEF), WorkerRecord({}, own))
    manifest = Manifest(CommitId(1, 1, "0" * 12), Position("end", 1, 0, 1), (), records, {})
    found = manifest.complete_record(1)
    assert (set(found.tensors), found.state) == (tensors, state)
    assert manifest.complete_record(0) == manifest.complete_record(2) == records[0]  # the last one was not there


@pytest.mark.parametrize(("topic", "value"), [("b", 1), ("c", None)])
def test_a_topic_that_names_a_tensor_only_says_that_a_worker_has_none_of_the_chiefs(topic: str, value: Any) -> None:
    info = {"b": TensorInfo("blob", "b", 0, "int8", (1,), "0" * 32)}
    records = (WorkerRecord(info), WorkerRecord(state={"b": None}), WorkerRecord(state={topic: value}))
    manifest = Manifest(CommitId(1, 1, "0" * 12), Position("end", 1, 0, 1), (), records, {})
    check_topics(dataclasses.replace(manifest, workers=records[:2]), "here")
    with pytest.raises(DamagedBackupError, match=f"the topic '{topic}' is unknown"):
        check_topics(manifest, "here")


def test_blobs_are_plain_safetensors_files() -> None:
    arrays = {"a": TENSORS["a"], "b": TENSORS["b"]}
    blob = packing.Blob(arrays, fingerprints({n: SharedArray(a) for n, a in arrays.items()}), "blobs/1")
    loaded = load_safetensors(b"".join(bytes(part) for part in blob))
    np.testing.assert_array_equal(loaded["a"], TENSORS["a"])
    np.testing.assert_array_equal(loaded["b"], TENSORS["b"])


def test_equal_tensors_are_written_once_and_large_ones_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOB_BYTES", 1000)
    held = {f"t{i}": SharedArray(np.full(100, i // 2, dtype="float32")) for i in range(10)}
    prints = fingerprints(held)
    packer = Packer({}, "blobs/1")
    blobs = list(packer.pack(held, prints))
    assert [blob.info.size > 400 for blob in blobs] == [True] * 3
    assert sum(blob.info.size for blob in blobs) < 5 * 400 + 3 * 300
    places = packer.locate(held, prints)
    assert places["t0"] == places["t1"]
    again = Packer(places, "blobs/1")
    assert list(again.pack(held, prints)) == []
    assert again.locate(held, prints) == places


def test_the_same_bytes_in_another_shape_or_type_are_another_tensor() -> None:
    arrays = {"f": np.zeros(4, "float32"), "i": np.zeros(4, "int32"), "s": np.zeros((2, 2), "float32")}
    found = through_a_blob({name: SharedArray(value) for name, value in arrays.items()})
    assert {name: (a.dtype.name, a.shape) for name, a in found.items()} == {
        "f": ("float32", (4,)),
        "i": ("int32", (4,)),
        "s": ("float32", (2, 2)),
    }


def test_newest_is_decided_by_generation_then_sequence() -> None:
    tokens = [digit * 12 for digit in "abc"]
    names = [
        f"commits/{number}-{token}.json"
        for number, token in zip(("000002-00000001", "000001-00000009", "000002-00000010"), tokens, strict=True)
    ]
    ids = sorted(CommitId.parse(name.rpartition("/")[2]) for name in names)  # type: ignore[type-var]
    assert [i.name for i in ids if i] == [names[1], names[0], names[2]]
    assert [CommitId.parse(n) for n in ("x.json", "1-2-3.txt", "1-x-3.json", ".000001-00000001-aa.json.tmp-1")] == [
        None
    ] * 4


def test_each_claim_takes_the_next_generation_and_fences_the_one_before(tmp_path: Path) -> None:
    first = new_store(tmp_path)
    commit(first, 1)
    second = new_store(tmp_path)
    assert (first.generation, second.generation) == (1, 2)
    with pytest.raises(FencedError, match="generation 2, this run is 1"):
        commit(first, 2)
    commit(second, 1)
    assert len(second.commits()) == 2


def test_concurrent_claims_get_different_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other_run = (BackupStore(Storage.open(tmp_path)) for _ in range(2))
    real = store.newest_generation

    def while_the_other_run_claims() -> int:
        newest = real()
        if not other_run.generation:
            other_run.claim({})
        return newest

    monkeypatch.setattr(store, "newest_generation", while_the_other_run_claims)
    assert store.claim({}) == 2
    assert other_run.generation == 1


def test_prune_keeps_the_newest_and_what_they_need(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for sequence in range(1, 5):
        commit(store, sequence, {"a": np.full(3, sequence)})
    store.prune(Rules(max_to_keep=2))
    assert [c.sequence for c in store.commits()] == [3, 4]
    assert len(list(tmp_path.glob("blobs/*/*"))) == 2
    reader = BackupStore(Storage.open(tmp_path))
    for commit_id in reader.commits():
        reader.verify(reader.manifest(commit_id))


def test_prune_deletes_nothing_of_a_newer_generation(tmp_path: Path) -> None:
    older, newer = new_store(tmp_path), None
    commit(older, 1)
    newer = new_store(tmp_path)
    for sequence in range(1, 4):
        commit(newer, sequence, {"a": np.full(3, sequence)})
    older.prune(Rules(max_to_keep=1))
    assert [(c.generation, c.sequence) for c in newer.commits()] == [(1, 1), (2, 1), (2, 2), (2, 3)]


def test_deleting_everything_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "backup"
    for _ in range(2):
        store = new_store(directory)
        commit(store, 1, {"a": np.full(3, store.generation)})
    store.delete_everything()
    assert not directory.exists()


def test_a_users_file_in_the_directory_survives_deletion(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    commit(store, 1)
    (tmp_path / "notes.txt").write_text("mine")
    store.delete_everything()
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_quarantined_commit_is_kept_aside(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    manifest = commit(store, 1)
    content = (tmp_path / manifest.id.name).read_bytes()
    store.quarantine(manifest.id)
    assert store.commits() == []
    (kept,) = tmp_path.glob("damaged/*.json")
    assert kept.read_bytes() == content


def test_a_commit_whose_blob_vanished_is_not_reported_as_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path)

    def lose_the_blobs() -> None:
        for blob in tmp_path.glob("blobs/*/*"):
            blob.unlink()

    with monkeypatch.context() as patch:
        patch.setattr(store, "check_ownership", lose_the_blobs)
        with pytest.raises(StorageError, match=r"cannot find what was just written: .* is missing"):
            commit(store, 1)
    assert store.commits() == []
    BackupStore(Storage.open(tmp_path)).verify(commit(store, 2))


def test_a_other_run_that_deleted_its_backup_still_fences_the_older_one(tmp_path: Path) -> None:
    older = new_store(tmp_path)
    commit(older, 1)
    newer = new_store(tmp_path)
    commit(newer, 1)
    newer.delete_everything()
    with pytest.raises(FencedError, match="was deleted or renamed during the run; nothing is saved there any more"):
        commit(older, 2)


def test_an_older_run_stays_fenced_when_a_third_one_begins_to_count_again(tmp_path: Path) -> None:
    suspended = new_store(tmp_path)
    commit(suspended, 1)
    second = new_store(tmp_path)
    commit(second, 1)
    second.delete_everything()
    third = new_store(tmp_path)
    assert third.generation == suspended.generation
    newest = commit(third, 1, {"a": np.full(3, 5)})
    with pytest.raises(FencedError, match="has the number 1 too, after a backup was deleted"):
        commit(suspended, 2)
    assert [c.token for c in third.commits()] == [newest.id.token]


def test_a_manifest_that_cannot_be_read_back_is_not_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path)
    real = store.storage.create

    def lose(name: str, parts: Any) -> None:
        real(name, parts)
        if name.startswith("commits/"):
            (tmp_path / name).unlink()

    monkeypatch.setattr(type(store.storage), "create", lambda self, *args: lose(*args))
    with pytest.raises(StorageError, match="reads back differently"):
        commit(store, 1)


def test_content_that_returns_after_its_backup_was_pruned_is_written_again(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for sequence, number in enumerate((0, 1, 2, 0, 1), start=1):
        commit(store, sequence, {"a": np.full(1000, number)})
        store.prune(Rules(max_to_keep=2))
        assert len(list(tmp_path.glob("blobs/*/*"))) == min(sequence, 2)
    for commit_id in store.commits():
        store.verify(store.manifest(commit_id))


def test_a_commit_that_a_listing_misses_loses_no_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path)
    for sequence in range(1, 4):
        newest = commit(store, sequence, {"a": np.full(3, sequence)})
    real = store.commits
    with monkeypatch.context() as patch:
        patch.setattr(store, "commits", lambda: real()[:-1])
        store.prune(Rules(max_to_keep=1))
    BackupStore(Storage.open(tmp_path)).verify(newest)


def test_a_manifest_that_vanishes_counts_as_damaged(tmp_path: Path) -> None:
    manifest = commit(new_store(tmp_path), 1)
    reader = BackupStore(Storage.open(tmp_path))
    (tmp_path / manifest.id.name).unlink()
    with pytest.raises(DamagedBackupError, match="was deleted"):
        reader.manifest(manifest.id)


def damage(content: bytes, rng: random.Random) -> bytes:
    kind = rng.choice(["flip", "truncate", "empty", "insert", "zero"])
    at = rng.randrange(len(content))
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
    if kind == "truncate":
        return content[:at]
    if kind == "empty":
        return b""
    if kind == "insert":
        return content[:at] + b"\0" + content[at:]
    end = min(len(content), at + rng.randrange(1, 64))
    return content[:at] + bytes(end - at) + content[end:]


@pytest.mark.parametrize("victim", ["blobs", "commits"])
def test_random_damage_never_yields_a_wrong_state(tmp_path: Path, victim: str) -> None:
    rng = random.Random(victim)  # noqa: S311 - reproducible damage
    manifest = commit(new_store(tmp_path), 1)
    path = next(p for p in tmp_path.glob(f"{victim}/**/*") if p.is_file())
    content = path.read_bytes()
    seen = 0
    for _ in range(300):
        harmed = damage(content, rng)
        if harmed == content:
            continue
        path.write_bytes(harmed)
        reader = BackupStore(Storage.open(tmp_path))
        try:
            state = reader.load(reader.manifest(manifest.id), 0)
        except (DamagedBackupError, BackupMismatchError):
            seen += 1
            continue
        for name, value in TENSORS.items():
            np.testing.assert_array_equal(state.tensors[name], value)
        assert state.state["loop/user"] == {"step": 1}
    assert seen > 250

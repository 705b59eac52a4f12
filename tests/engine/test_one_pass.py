"""What surely changed is hashed while it is written: on the disk it is as if it had been hashed before."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from keras_dist_callbacks.backups import codec
from keras_dist_callbacks.backups.codec import Fingerprint, StreamedBlob, fingerprints
from keras_dist_callbacks.backups.snapshot import Position, SharedArray, Snapshot
from keras_dist_callbacks.backups.staging import Staging
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.engine import committer
from keras_dist_callbacks.engine.committer import Committer, EngineOptions
from keras_dist_callbacks.engine.worker_state import LocalState, WorkerStateExchange
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage.direct_io import VARIABLE
from keras_dist_callbacks.storage.storage import Storage
from tests.support import ROOT
from tests.support.states import loop_state

pytestmark = pytest.mark.usefixtures("as_users_have_it")
Arrays = dict[str, np.ndarray[Any, Any]]
LARGE = 2**18


class Saver:
    """A run that saves at once, one after the other."""

    def __init__(
        self, directory: Path | str, cluster: Cluster | None = None, *, fsync: bool = False, **options: Any
    ) -> None:
        self.store = BackupStore(Storage.open(directory, fsync=fsync), recycle=True)
        self.store.prepare()
        self.store.claim({})
        self.exchange = WorkerStateExchange(cluster or Cluster(), "fit", 2**20, 5.0)
        self.committer = Committer(self.store, self.exchange, EngineOptions(**options), print)
        self.saves = 0

    def save(self, arrays: Arrays) -> int:
        """How many bytes it wrote."""
        self.saves += 1
        held = {f"variable/{name}@0": SharedArray(array) for name, array in arrays.items()}
        written: list[int] = []
        with self.store.storage.reporting(written.append):
            self.committer.commit(
                self.saves, Snapshot(Position("within", 0, self.saves, self.saves), held, loop_state())
            )
        return sum(written)

    def restored(self) -> Arrays:
        found = self.store.load(self.store.manifest(self.store.commits()[-1]), 0).tensors
        return {name.removeprefix("variable/").removesuffix("@0"): array for name, array in found.items()}


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.glob("blobs/*/*")}


@pytest.fixture
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tensors that were hashed before anything was written."""
    names: list[str] = []

    def noting(tensors: Any) -> dict[str, Fingerprint]:
        names.extend(tensors)
        return fingerprints(tensors)

    monkeypatch.setattr("keras_dist_callbacks.engine.committer.fingerprints", noting)
    return names


def states(count: int) -> Iterator[Arrays]:
    """Of a training in which tensors change, stay, come back, are equal to each other, or differ in one byte."""
    rng = np.random.default_rng(0)
    frozen, seldom, zeros = rng.standard_normal(50_000), rng.standard_normal(40_000), np.zeros((300, 300), "float32")
    earlier: list[np.ndarray[Any, Any]] = [rng.standard_normal(70_000)]
    for number in range(count):
        earlier.append(rng.standard_normal(70_000))
        if number % 3 == 0:
            seldom = seldom.copy()
            seldom[1] += 1  # no glance falls on it
        mirrored = rng.standard_normal((200, 200)).astype("float32")
        yield {
            "frozen": frozen,
            "kernel": earlier[-1],
            "average": earlier[-2],  # what the kernel was
            "small": np.full(10, number, "float32"),
            "seldom": seldom,
            "first zeros": zeros,
            "second zeros": zeros.copy(),
            "replica 0": mirrored,
            "replica 1": mirrored.copy(),
            "turned": np.asfortranarray(mirrored),  # equal to both, in another order of memory
            "same bytes, another shape": mirrored.reshape(100, 400),
            "to and fro": earlier[number % 2],
            "brief": rng.standard_normal(90_000).astype(ml_dtypes.bfloat16),
        }


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[str, Saver]:
    """One that hashes what it can on the way, and one that hashes all before; each is to be used by `alike`."""
    monkeypatch.setattr(codec, "BLOB_BYTES", 2**20)
    return {way: Saver(tmp_path / way, double_checkpoint=getattr(request, "param", False)) for way in LEAST}


LEAST = {"on the way": 1000, "before": 2**62}


def alike(both: dict[str, Saver], arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> int:
    """Saves in both ways, which must come to the same; how many bytes of blobs were written."""
    blobs: dict[str, int] = {}
    for way, saver in both.items():
        monkeypatch.setattr(committer, "_LEAST", LEAST[way])
        written, commits = saver.save(arrays), Path(saver.store.storage.root, "commits")
        blobs[way] = written - max(commits.iterdir(), key=lambda path: path.name).stat().st_size
    first, second = (files(Path(saver.store.storage.root)) for saver in both.values())
    assert first == second
    # manifests differ in times and random names
    assert abs(blobs["on the way"] - blobs["before"]) < 200
    return blobs["before"]


@pytest.mark.parametrize("both", [False, True], indirect=True, ids=["shared", "double_checkpoint"])
def test_the_same_bytes_are_written_as_if_all_was_hashed_before(
    both: dict[str, Saver], monkeypatch: pytest.MonkeyPatch, hashed: list[str]
) -> None:
    for arrays in states(9):
        alike(both, arrays, monkeypatch)
    for saver in both.values():
        restored = saver.restored()
        assert all(np.array_equal(restored[name], array) for name, array in arrays.items())
    every = 9 * len(arrays)
    assert len(hashed) - every < every - 3 * 9  # not brief, kernel, and a shape of its own, at least


def test_what_a_failed_save_has_written_is_found_again(both: dict[str, Saver], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the manifest's failure nothing is known any more; blobs that are there are not written a second time."""
    rng = np.random.default_rng(5)
    fixed = {f"fixed {i}": rng.standard_normal(120_000) for i in range(4)}
    sizes = []
    for number in range(5):
        with monkeypatch.context() as patch:
            if number == 2:
                fail = StorageError("the disk is full")
                for saver in both.values():
                    patch.setattr(saver.store, "commit", _raising(fail))
                for way, saver in both.items():
                    patch.setattr(committer, "_LEAST", LEAST[way])
                    with pytest.raises(StorageError):
                        saver.save({**fixed, "changing": np.full(90_000, number, "float64")})
                continue
            sizes.append(alike(both, {**fixed, "changing": np.full(90_000, number, "float64")}, patch))
    assert sizes[0] > 4 * 960_000
    assert max(sizes[1:]) < 960_000


def test_a_state_that_comes_back_is_not_written_again(both: dict[str, Saver], monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [{"a": np.random.default_rng(number).standard_normal(60_000)} for number in (0, 1)]
    sizes = [alike(both, turns[number % 2], monkeypatch) for number in range(6)]
    assert min(sizes[:2]) > 480_000
    assert max(sizes[2:]) < 1000


def _raising(error: Exception) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        raise error

    return call


def test_what_changed_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[str]) -> None:
    saver, array = Saver(tmp_path), np.zeros(2 * LARGE, np.uint8)
    fixed = np.random.default_rng(0).bytes(LARGE)
    for number in range(3):
        array[:] = number + 1
        saver.save({"changed": array.copy(), "fixed": np.frombuffer(fixed, np.uint8), "small": array[:8].copy()})
    first = ["variable/small@0"]
    assert hashed == first + 2 * ["variable/fixed@0", *first]


def test_a_glance_takes_nothing_for_new_that_is_not() -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(0, 255, LARGE, np.uint8)
    changed, unseen = base.copy(), base.copy()
    changed[0] += 1
    unseen[LARGE // 256 - 1] += 1
    seen = committer.content_samples(
        {"base": SharedArray(base), "changed": SharedArray(changed), "unseen": SharedArray(unseen)}
    )
    assert committer.definitely_changed(seen, ()) == {"changed"}
    assert committer.definitely_changed(seen, set(seen.values())) == set()
    assert committer.content_samples({"small": SharedArray(base[:-1])}) == {}


def draft(storage: Storage, *sizes: int) -> StreamedBlob:
    rng = np.random.default_rng(3)
    arrays = {f"t{number}": rng.integers(0, 255, size, np.uint8) for number, size in enumerate(sizes)}
    known = fingerprints({"t0": SharedArray(arrays["t0"])})
    return StreamedBlob(arrays, known, "blobs/000001", copy=0)


def refusing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, calls: int = 1) -> None:
    original, count = getattr(os, name), iter(range(1, 10**6))

    def call(*given: Any, **options: Any) -> Any:
        if next(count) == calls:
            raise OSError(code, os.strerror(code))
        return original(*given, **options)

    monkeypatch.setattr(os, name, call)


WAYS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "around the page cache": lambda patch: patch.setenv(VARIABLE, "all"),
    "through it": lambda patch: patch.setenv(VARIABLE, "0"),
    "refused in its midst": lambda patch: refusing(patch, "pwrite", errno.EINVAL, calls=2),
    "without links": lambda patch: refusing(patch, "link", errno.EPERM),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_has_the_name_that_its_content_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    WAYS[way](monkeypatch)
    storage = Storage.open(tmp_path, fsync=False)
    written = draft(storage, 5, 2**20 + 3, 9 * 2**20)
    info = Staging(storage).stage(written)
    prints = fingerprints({name: SharedArray(array) for name, array in written.tensors.items()})
    wanted = codec.encode_blob(written.tensors, prints, "blobs/000001")
    assert info == wanted.info
    assert files(tmp_path) == {wanted.info.path: b"".join(bytes(part) for part in wanted.parts)}
    assert {name: written.fingerprint(name) for name in prints} == prints
    assert written.size == wanted.info.size


def test_a_failure_in_its_midst_leaves_nothing_and_the_next_try_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(Storage.open(tmp_path, fsync=False))
    written = draft(staging.storage, 5, 9 * 2**20)
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "all")
        refusing(patch, "pwrite", errno.ENOSPC, calls=2)
        refusing(patch, "write", errno.ENOSPC)
        with pytest.raises(OSError, match="No space left on device"):
            staging.stage(written)
    assert files(tmp_path) == {}
    assert not staging.written
    path = staging.stage(written).path
    assert files(tmp_path).keys() == {path} == staging.written.keys()


def test_a_file_of_that_name_is_taken_if_it_is_intact_and_replaced_if_it_is_not(tmp_path: Path) -> None:
    staging = Staging(Storage.open(tmp_path, fsync=False))
    path = tmp_path / staging.stage(draft(staging.storage, 5, 2**20)).path
    content, number = path.read_bytes(), path.stat().st_ino
    for forgotten in (False, True):
        if forgotten:
            staging.forget()
        staging.stage(draft(staging.storage, 5, 2**20))
        assert path.stat().st_ino == number
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    staging.forget()
    staging.stage(draft(staging.storage, 5, 2**20))
    assert files(tmp_path) == {str(path.relative_to(tmp_path)): content}


def test_other_workers_and_stores_get_the_digest_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[str]
) -> None:
    array = np.random.default_rng(4).integers(0, 255, LARGE, np.uint8)
    far = Saver("memory://one-pass")
    far.save({"a": array})
    assert hashed == ["variable/a@0"]
    several = Saver(tmp_path, Cluster("worker", 0, 0, ("127.0.0.1:1", "127.0.0.1:2")))
    object.__setattr__(several.exchange, "collect", lambda *given: [LocalState({}, {}, loop_state())])
    several.save({"a": array})
    assert hashed == 2 * ["variable/a@0"]


@pytest.mark.kill
@pytest.mark.parametrize("way", ["all", "0"])
@pytest.mark.parametrize(
    "where", ["write:1", "write:3", "ftruncate:1", "fsync:1", "link:1", "unlink:1"], ids=lambda where: where
)
def test_a_kill_while_one_is_written_harms_nothing_and_leaves_nothing(tmp_path: Path, where: str, way: str) -> None:
    """Killed before that call of the second save: the first one is intact, and the next run cleans up."""
    name, _, number = where.partition(":")
    name = "pwrite" if (name, way) == ("write", "all") else name
    command = [sys.executable, "-m", "tests.support.killed_saver", str(tmp_path), name, number]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, VARIABLE: way}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [name for name in files(tmp_path) if ".tmp-" in name]
    saver = Saver(tmp_path)
    (first,) = saver.store.commits()
    saver.store.verify(saver.store.manifest(first))
    saver.save({"a": np.ones(100)})
    saver.save({"a": np.zeros(100)})
    assert not {name for name in files(tmp_path) if ".tmp-" in name or "/000001/" in name}

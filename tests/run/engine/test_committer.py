"""What a save writes: each tensor once, under a name that its content asks for, whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups import packing
from keras_dist_callbacks.backups.packing import Blob, fingerprints
from keras_dist_callbacks.backups.snapshot import Position, SharedArray, SharedTensor, Snapshot
from keras_dist_callbacks.backups.staging import Staging
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run.engine import committer
from keras_dist_callbacks.run.engine.committer import Committer, EngineOptions
from keras_dist_callbacks.run.engine.worker_exchange import WorkerStateExchange
from keras_dist_callbacks.storage.direct_io import VARIABLE
from keras_dist_callbacks.storage.storage import Storage
from tests.support import ROOT
from tests.support.states import loop_state

pytestmark = pytest.mark.usefixtures("as_users_have_it")
Arrays = dict[str, np.ndarray[Any, Any]]
HASHED_BEFOREHAND, HASHED_MEANWHILE = 2, 5  # saves


class Saver:
    """A run that saves at once, one after the other."""

    def __init__(
        self, directory: Path | str, cluster: Cluster | None = None, *, fsync: bool = False, **options: Any
    ) -> None:
        self.store = BackupStore(Storage.open(directory, fsync=fsync))
        self.store.prepare()
        self.store.claim({})
        self.exchange = WorkerStateExchange(cluster or Cluster(), "fit", 2**20, 5.0)
        self.committer = Committer(self.store, self.exchange, EngineOptions(**options), print)
        self.saves = 0

    def save(self, arrays: Arrays) -> int:
        """How many bytes it wrote."""
        self.saves += 1
        held = {f"variables/{name}@0": SharedArray(array) for name, array in arrays.items()}
        written: list[int] = []
        with self.store.storage.reporting(written.append):
            self.committer.commit(
                self.saves, Snapshot(Position("within", 0, self.saves, self.saves), held, loop_state())
            )
        return sum(written)

    def restored(self) -> Arrays:
        found = self.store.load(self.store.manifest(self.store.commits()[-1]), 0).tensors
        return {name.removeprefix("variables/").removesuffix("@0"): array for name, array in found.items()}


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.glob("blobs/*/*")}


@pytest.fixture
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def size(saver: Saver, arrays: Arrays) -> int:
    """Saves; how many bytes of blobs were written."""
    written, commits = saver.save(arrays), Path(saver.store.storage.root, "commits")
    return written - max(commits.iterdir(), key=lambda path: path.name).stat().st_size


def test_what_a_failed_save_has_written_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the manifest's failure nothing is known any more; blobs that are there are not written a second time."""
    monkeypatch.setattr(packing, "BLOB_BYTES", 2**20)
    saver, sizes = Saver(tmp_path), []
    fixed = {f"fixed {i}": np.random.default_rng(i).standard_normal(120_000) for i in range(4)}
    for number in range(5):
        arrays = {**fixed, "changing": np.full(90_000, number, "float64")}
        if number != 2:
            sizes.append(size(saver, arrays))
            continue
        with monkeypatch.context() as patch:
            patch.setattr(saver.store, "commit", _raising(StorageError("the disk is full")))
            with pytest.raises(StorageError):
                saver.save(arrays)
    assert sizes[0] > 4 * 960_000
    assert max(sizes[1:]) < 960_000


def test_a_state_that_comes_back_is_not_written_again(tmp_path: Path) -> None:
    saver, turns = Saver(tmp_path), [{"a": np.random.default_rng(n).standard_normal(60_000)} for n in (0, 1)]
    sizes = [size(saver, turns[number % 2]) for number in range(6)]
    assert min(sizes[:2]) > 480_000
    assert max(sizes[2:]) < 1000


def skip_without_direct_writes(directory: Path) -> None:
    try:
        os.close(os.open(directory / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except (AttributeError, OSError):
        pytest.skip("this platform or file system has no such writes")


@pytest.mark.parametrize("way", ["all", "0"])
def test_what_is_new_in_each_save_is_hashed_while_it_is_written_around_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv(VARIABLE, way)
    direct = way == "all"
    if direct:
        skip_without_direct_writes(tmp_path)
    beforehand: list[set[str]] = []

    def noted(tensors: Mapping[str, SharedTensor]) -> dict[str, packing.Fingerprint]:
        beforehand.append(set(tensors))
        return fingerprints(tensors)

    monkeypatch.setattr(committer, "fingerprints", noted)
    saver, sizes = Saver(tmp_path), []
    for number in (0, 1, 2, 3, 4, 5, 5, 5, 6):
        arrays = {"fixed": np.ones(60_000), "small": np.full(9, number)}
        arrays["large"] = np.random.default_rng(number).standard_normal(60_000)
        sizes.append(size(saver, arrays))
        for name, array in saver.restored().items():
            np.testing.assert_array_equal(array, arrays[name])
        saver.store.verify(saver.store.manifest(saver.store.commits()[-1]))
    large = "variables/large@0"
    assert [large in names for names in beforehand] == [True] * 3 + [not direct] * 4 + [True] * 2
    assert all(names >= {"variables/fixed@0", "variables/small@0"} for names in beforehand)
    written = [size > 480_000 for size in sizes]
    assert written == [True] * 6 + [direct] + [False, True], (
        "what has not changed after all is written once, and not twice"
    )


def test_what_has_a_copy_among_the_others_is_hashed_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that are equal are written once."""
    monkeypatch.setenv(VARIABLE, "all")
    skip_without_direct_writes(tmp_path)
    saver = Saver(tmp_path)
    for number in range(6):
        array = np.random.default_rng(number).standard_normal(60_000)
        assert size(saver, {"first": array, "second": array.copy()}) < 2 * 480_000


def _raising(error: Exception) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        raise error

    return call


def encoded(*sizes: int, hashed: int = 10) -> Blob:
    """A blob of random tensors, of which so many are hashed beforehand."""
    rng = np.random.default_rng(3)
    arrays = {f"t{number}": rng.integers(0, 255, size, np.uint8) for number, size in enumerate(sizes)}
    prints = fingerprints({name: SharedArray(array) for name, array in arrays.items()})
    return Blob(arrays, dict(list(prints.items())[:hashed]), "blobs/000001")


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


@pytest.mark.parametrize("hashed", [3, 1, 0])
@pytest.mark.parametrize("way", WAYS)
def test_it_holds_its_content_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, hashed: int
) -> None:
    WAYS[way](monkeypatch)
    blob = encoded(5, 2**20 + 3, 9 * 2**20, hashed=hashed)
    expected = encoded(5, 2**20 + 3, 9 * 2**20)
    assert Staging(Storage.open(tmp_path, fsync=False)).stage(blob) == expected.info
    assert blob.prints == expected.prints
    content = b"".join(bytes(part) for part in expected)
    assert files(tmp_path) == {blob.info.path: content}
    assert blob.info.size == len(content)


@pytest.mark.parametrize("hashed", [2, 0])
def test_a_failure_in_its_midst_leaves_nothing_and_the_next_try_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: int
) -> None:
    staging = Staging(Storage.open(tmp_path, fsync=False))
    written = encoded(5, 9 * 2**20, hashed=hashed)
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "all")
        refusing(patch, "pwrite", errno.ENOSPC, calls=2)
        refusing(patch, "write", errno.ENOSPC)
        with pytest.raises(OSError, match="No space left on device") as caught:
            staging.stage(written)
    assert f"{tmp_path}/blobs/000001" in str(caught.value)
    assert written.like not in str(caught.value), "there is no file of that name"
    assert files(tmp_path) == {}
    assert not staging.written
    path = staging.stage(written).path
    assert files(tmp_path).keys() == {path} == staging.written.keys()


@pytest.mark.parametrize("hashed", [2, 0])
def test_a_file_of_that_name_is_taken_if_it_is_whole_and_replaced_if_it_is_not(tmp_path: Path, hashed: int) -> None:
    staging = Staging(Storage.open(tmp_path, fsync=False))
    path = tmp_path / staging.stage(encoded(5, 2**20, hashed=hashed)).path
    content, number = path.read_bytes(), path.stat().st_ino
    for forgotten in (False, True):
        if forgotten:
            staging.forget()
        staging.stage(encoded(5, 2**20, hashed=hashed))
        assert path.stat().st_ino == number
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    staging.forget()
    staging.stage(encoded(5, 2**20, hashed=hashed))
    assert files(tmp_path) == {str(path.relative_to(tmp_path)): content}


@pytest.mark.kill
@pytest.mark.parametrize(
    ("way", "where", "saves"),
    [
        (way, where, saves)
        for way, saves in (("all", HASHED_BEFOREHAND), ("all", HASHED_MEANWHILE), ("0", HASHED_BEFOREHAND))
        for where in ("write:1", "write:2", "fsync:1", "link:1", "unlink:1", *["ftruncate:1"] * (way == "all"))
    ],
)
@pytest.mark.in_gate(2)
def test_a_kill_while_one_is_written_harms_nothing_and_leaves_nothing(
    tmp_path: Path, way: str, where: str, saves: int
) -> None:
    """Killed before that call of the last save: those before it are intact, and the next run cleans up."""
    name, _, number = where.partition(":")
    name = "pwrite" if (name, way) == ("write", "all") else name
    command = [sys.executable, "-m", "tests.support.killed_saver", str(tmp_path), name, number, str(saves)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, VARIABLE: way}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [name for name in files(tmp_path) if ".tmp-" in name]
    saver = Saver(tmp_path)
    before = saver.store.commits()
    assert len(before) == min(saves - 1, 2)
    for commit in before:
        saver.store.verify(saver.store.manifest(commit))
    saver.save({"a": np.ones(100)})
    saver.save({"a": np.zeros(100)})
    assert not {name for name in files(tmp_path) if ".tmp-" in name or "/000001/" in name}

"""Local files that no backup needs any more are written over instead of new ones; nothing else ever is."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage.direct_io import VARIABLE
from keras_dist_callbacks.storage.storage import Storage
from tests.backups.test_store import commit
from tests.support import tiny


@pytest.fixture(autouse=True)
def through_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files are written around it, none is written over."""
    monkeypatch.setenv(VARIABLE, "0")


def recycling(directory: Path) -> BackupStore:
    store = BackupStore(Storage.open(directory), recycle=True)
    store.claim({})
    return store


def save(store: BackupStore, number: int, rows: int = 100) -> None:
    commit(store, number + 1, {"a": np.full((rows, 10), number, "float32")})
    store.prune(keep=2)


def blobs(directory: Path) -> dict[int, Path]:
    return {path.stat().st_ino: path for path in directory.glob("blobs/*/*")}


def test_files_of_pruned_backups_are_written_over(tmp_path: Path) -> None:
    store = recycling(tmp_path)
    for number in range(3):
        save(store, number)
    first = blobs(tmp_path)
    assert len(first) == 3, "two backups and one spare file"
    for number in range(3, 9):
        save(store, number)
    assert blobs(tmp_path).keys() == first.keys()
    reader = BackupStore(Storage.open(tmp_path))
    for number, commit_id in zip((7, 8), reader.commits(), strict=True):
        np.testing.assert_array_equal(reader.load(reader.manifest(commit_id), 0).tensors["a"][0], np.full(10, number))
    store.delete_recycled()
    assert len(blobs(tmp_path)) == 2


@pytest.mark.parametrize("rows", [60, 180])
def test_a_spare_file_of_another_size_is_cut_or_grows(tmp_path: Path, rows: int) -> None:
    store = recycling(tmp_path)
    for number in range(3):
        save(store, number)
    known = blobs(tmp_path)
    save(store, 3, rows)
    newest = BackupStore(Storage.open(tmp_path)).commits()[-1]
    reader = BackupStore(Storage.open(tmp_path))
    (blob,) = reader.manifest(newest).blobs
    assert (tmp_path / blob.path).stat().st_size == blob.size
    assert (tmp_path / blob.path).stat().st_ino in known
    reader.verify(reader.manifest(newest))


def test_a_file_that_a_user_has_linked_is_left_alone(tmp_path: Path) -> None:
    store = recycling(tmp_path)
    save(store, 0)
    (blob,) = (tmp_path / "blobs/000001").iterdir()
    os.link(blob, tmp_path / "mine")
    content = blob.read_bytes()
    for number in range(1, 6):
        save(store, number)
    assert (tmp_path / "mine").read_bytes() == content


def test_content_that_returns_is_found_in_the_spare_file(tmp_path: Path) -> None:
    store = recycling(tmp_path)
    for number in (0, 1, 2, 0, 1):
        save(store, number)
    reader = BackupStore(Storage.open(tmp_path))
    for commit_id in reader.commits():
        reader.verify(reader.manifest(commit_id))


def test_a_backup_that_fails_while_it_writes_over_a_file_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = recycling(tmp_path)
    for number in range(3):
        save(store, number)
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: real(file, data[:7]) and _full())
        with pytest.raises(StorageError, match="No space left"):
            save(store, 3)
    reader = BackupStore(Storage.open(tmp_path))
    assert len(reader.commits()) == 2
    for commit_id in reader.commits():
        reader.verify(reader.manifest(commit_id))
    save(store, 4)
    assert not list(tmp_path.glob("blobs/*/*.tmp-*"))


def _full() -> int:
    raise OSError(28, os.strerror(28))


@pytest.mark.slow
def test_no_spare_file_is_left_when_fit_ends_with_an_error_or_well(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 1, 3)
    reader = BackupStore(Storage.open(tmp_path))
    needed = {blob.path for commit_id in reader.commits() for blob in reader.manifest(commit_id).blobs}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("blobs/*/*")} == needed
    model: keras.Model = tiny.model()
    tiny.fit(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_where_files_go_around_the_page_cache_none_is_kept_to_be_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones go through it: what was kept of these is deleted where a large one could take its place."""
    monkeypatch.delenv(VARIABLE)
    store = recycling(tmp_path)
    for number in range(3):
        save(store, number, rows=26_000)  # 1.04 MB, below the smallest that is worth it
    assert len(blobs(tmp_path)) == 3
    save(store, 3, rows=30_000)
    if not store.storage.writes_directly:
        pytest.skip("the file system here takes no such writes")
    for number in range(4, 7):
        save(store, number, rows=30_000)
        assert len(blobs(tmp_path)) == 2

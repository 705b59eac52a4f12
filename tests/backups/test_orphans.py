"""What interrupted saves leave is deleted; what a kept commit, a newer run or an inspection needs is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keras_dist_callbacks.backups.packing import Packer, fingerprints
from keras_dist_callbacks.backups.snapshot import SharedArray
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.backups.test_store import commit, new_store
from tests.support.states import HASH, TOKEN


def test_what_interrupted_saves_left_is_collected_by_a_later_generation(tmp_path: Path) -> None:
    crashed = new_store(tmp_path)
    held = {"a": SharedArray(np.arange(5))}
    crashed.stage_all(Packer({}, crashed.blob_directory).pack(held, fingerprints(held)))
    (tmp_path / f"blobs/000001/.{'0' * 32}.safetensors.tmp-{'1' * 32}").write_bytes(b"half")
    store = new_store(tmp_path)
    manifest = commit(store, 1)
    store.collect_orphans()
    assert not (tmp_path / "blobs/000001").exists()
    assert not (tmp_path / "owners/000001.json").exists()
    store.verify(manifest)


def test_blobs_that_kept_commits_of_older_generations_need_are_no_orphans(tmp_path: Path) -> None:
    manifest = commit(new_store(tmp_path), 1)
    store = new_store(tmp_path)
    commit(store, 1, {"a": np.arange(5)})
    store.collect_orphans()
    BackupStore(Storage.open(tmp_path)).verify(manifest)


def test_orphans_are_deleted_before_the_first_commit_and_owner_records_stay(tmp_path: Path) -> None:
    kept = commit(new_store(tmp_path), 1)
    orphans = [f".{HASH}.safetensors.tmp-{HASH}", f"{HASH}.safetensors"]
    for name in orphans:
        (tmp_path / "blobs/000001" / name).write_bytes(b"half")
    older = new_store(tmp_path)
    newer = new_store(tmp_path)
    held = {"a": SharedArray(np.arange(5))}
    newer.stage_all(Packer({}, newer.blob_directory).pack(held, fingerprints(held)))
    unfinished = [tmp_path / f"commits/.{n:06d}-00000001-{TOKEN}.json.tmp-{HASH}" for n in (1, 2, 3)]
    for path in unfinished:
        path.touch()
    older.delete_orphans()
    assert [path.exists() for path in unfinished] == [False, False, True]
    assert newer.staged.keys() == {str(path.relative_to(tmp_path)) for path in tmp_path.glob("blobs/000003/*")}
    assert not [name for name in orphans if (tmp_path / "blobs/000001" / name).exists()]
    assert len(list(tmp_path.glob("owners/*.json"))) == 3
    older.verify(kept)


def test_the_blobs_of_a_commit_that_was_read_are_kept_if_a_listing_does_not_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = commit(new_store(tmp_path), 1)
    store = BackupStore(Storage.open(tmp_path))
    store.manifest(manifest.id)  # the one that a run resumes from
    store.claim({})
    monkeypatch.setattr(store, "commits", list)
    store.delete_orphans()
    store.verify(manifest)


def test_of_a_generation_with_a_quarantined_commit_only_unfinished_files_are_deleted(tmp_path: Path) -> None:
    first = new_store(tmp_path)
    manifest = commit(first, 1)
    unfinished = tmp_path / f"blobs/000001/.{HASH}.safetensors.tmp-{HASH}"
    unfinished.write_bytes(b"half")
    first.quarantine(manifest.id)
    new_store(tmp_path).collect_orphans()
    assert not unfinished.exists()
    first.verify(manifest)
    assert (tmp_path / "owners/000001.json").exists()

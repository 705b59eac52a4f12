"""Who made a backup directory: only what a job made goes with its backup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.backups import owners
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.backups.test_store import commit


def run(directory: Path, *, delete: bool) -> BackupStore:
    store = BackupStore(Storage.open(directory, fsync=False))
    store.prepare()
    store.claim({})
    commit(store, 1)
    store.collect_orphans()
    if delete:
        store.delete_everything()
    return store


def test_a_directory_that_was_there_before_stays(tmp_path: Path) -> None:
    run(tmp_path, delete=True)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_an_interrupted_run_made_goes_with_the_backup_of_the_last_one(tmp_path: Path) -> None:
    for _ in range(3):
        run(tmp_path / "made", delete=False)
    run(tmp_path / "made", delete=True)
    assert not (tmp_path / "made").exists()


def test_a_users_file_keeps_a_directory_that_a_run_made(tmp_path: Path) -> None:
    store = run(tmp_path / "made", delete=False)
    (tmp_path / "made/notes.txt").write_text("mine")
    store.delete_everything()
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["notes.txt"]


def test_the_working_directory_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path / "made")
    run(Path(), delete=True)
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize("value", [None, "yes", 1, [], {}])
def test_a_record_that_does_not_say_it_clearly_says_no(tmp_path: Path, value: Any) -> None:
    run(tmp_path / "made", delete=False)
    record = tmp_path / "made/owners/000001.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "made_directory": value}))
    assert not owners.read_owner(Storage.open(tmp_path / "made"), 1).made_directory
    run(tmp_path / "made", delete=True)
    assert (tmp_path / "made").exists()

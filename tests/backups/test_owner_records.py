"""Who owns a backup directory, and who made it: only what a job made goes with its backup."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import xxhash

from keras_dist_callbacks.backups import owner_records
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupError, FencedError
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.storage.transfer import FileInfo
from tests.backups.test_store import commit, new_store


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
    fields = {name: field for name, field in json.loads(record.read_text()).items() if name != "seal"}
    text = json.dumps({**fields, "made_directory": value}, separators=(",", ":")).encode()[:-1]
    record.write_bytes(text + b',"seal":"%s"}' % xxhash.xxh3_128_hexdigest(text).encode())
    assert owner_records.read_owner(Storage.open(tmp_path / "made"), 1) is None
    run(tmp_path / "made", delete=True)
    assert (tmp_path / "made").exists()


@pytest.fixture
def stale_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every listing of owner records is empty, as that of a cache."""
    real = Storage.files

    def stale(self: Storage, directory: str = "") -> list[FileInfo]:
        return [] if directory == "owners" else real(self, directory)

    monkeypatch.setattr(Storage, "files", stale)


@pytest.mark.usefixtures("stale_listings")
@pytest.mark.timeout(20)
def test_a_claim_takes_the_next_free_number_where_listings_do_not_show_the_taken_ones(tmp_path: Path) -> None:
    stores = [new_store(tmp_path) for _ in range(3)]
    assert [store.generation for store in stores] == [1, 2, 3]
    commit(stores[-1], 1)


@pytest.mark.usefixtures("stale_listings")
@pytest.mark.timeout(20)
def test_a_claim_that_finds_only_taken_numbers_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "create", lambda *given: (_ for _ in ()).throw(FileExistsError(given[1])))
    with pytest.raises(BackupError, match=r"owners: the listings of this store are not consistent: .*000001.json to"):
        BackupStore(Storage.open(tmp_path)).claim({})


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_a_directory_that_vanishes_during_the_run_is_reported_as_that(tmp_path: Path, how: str) -> None:
    store = new_store(tmp_path / "backup")
    commit(store, 1)
    (tmp_path / "backup").rename(tmp_path / "elsewhere")
    if how == "deleted":
        shutil.rmtree(tmp_path / "elsewhere")
    with pytest.raises(FencedError, match=r"backup was deleted or renamed during the run; nothing is saved there") as e:
        commit(store, 2)
    assert e.value.nothing_left


def test_the_error_of_a_run_that_was_taken_over_names_the_newer_run_and_how_to_only_read(tmp_path: Path) -> None:
    older = new_store(tmp_path)
    BackupStore(Storage.open(tmp_path)).claim({}, "Checkpointer")
    with pytest.raises(FencedError) as caught:
        commit(older, 1)
    text = str(caught.value)
    assert f"The newer run: Checkpointer, {Path(sys.argv[0]).name}, process {os.getpid()}, on " in text
    assert " UTC. " in text
    assert "A script that only reads a backup, such as an evaluation, must use kdc.load_backup" in text
    assert not caught.value.nothing_left


def test_the_record_of_an_older_version_says_nothing_of_its_process(tmp_path: Path) -> None:
    older = new_store(tmp_path)
    (tmp_path / "owners/000002.json").write_text('{"token":"' + "0" * 32 + '","made_directory":false}')
    with pytest.raises(FencedError, match=r"must stop\. Give each run a directory of its own"):
        commit(older, 1)

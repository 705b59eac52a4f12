"""Whose a file is, by its name alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.backups import names
from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.backups.select_backup import latest_intact
from keras_dist_callbacks.backups.snapshot import CommitId
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.support.checkpoints import listed
from tests.support.cli_backups import begin, commit, kdc
from tests.support.states import HASH, TOKEN

FOREIGN = [
    ".notes.tmp-backup",
    f".notes.tmp-{HASH}",
    "commits/mine.json.tmp-1",
    f"commits/.notes.tmp-{HASH}",
    "commits/readme.txt",
    "owners/people.json",
    "owners/²²²²²².json",
    "blobs/000001/weights.safetensors",
    f"blobs/000001/{HASH}.txt",
    "blobs/000001/.notes.tmp-1",
    "damaged/mine.json",
]
SPARSE = 20 * 2**30


@pytest.mark.parametrize(
    "name",
    [
        "²²²²²²-00000001-aaaaaaaaaaaa.json",
        "\u0660\u0660\u0660\u0660\u0660\u0661-00000001-aaaaaaaaaaaa.json",
        f"0000001-00000001-{TOKEN}.json",
        f"000001-000000001-{TOKEN}.json",
        f"000001-00000001-{TOKEN}.json\n",
        "000001-00000001-.json",
        f"{'9' * 5000}-00000001-{TOKEN}.json",
        f".000001-00000001-{TOKEN}.json.tmp-{HASH}",
    ],
)
def test_a_name_that_no_commit_has_is_none(name: str) -> None:
    assert CommitId.parse(name) is None


def test_every_name_that_is_written_is_read() -> None:
    for generation in (1, 999_999, 10**8 - 1):
        for sequence in (1, 10**8, 10**11):
            commit_id = CommitId(generation, sequence, TOKEN)
            file_name = commit_id.name.rpartition("/")[2]
            assert CommitId.parse(file_name) == commit_id
            assert names.is_partial(f".{file_name}.tmp-{HASH}", names.COMMITS)
            assert names.quarantined_name(f"01234567-{file_name}") == file_name
        assert names.owner_generation(names.owner_name(generation).rpartition("/")[2]) == generation
        assert names.blob_generation(f"{names.blob_directory(generation)}/{HASH}.safetensors") == generation
    assert names.owner_generation("²²²²²².json") is None
    assert names.is_partial(f"..probe.tmp-{HASH}.tmp-{HASH}", ""), "a probe that was cut off while it was written"


def test_a_resume_and_a_prune_leave_everything_alone_that_is_not_ours(tmp_path: Path) -> None:
    store = begin(tmp_path)
    commit(store, 1)
    ours = [f"commits/.000001-00000009-{TOKEN}.json.tmp-{HASH}", f"blobs/000001/{HASH}.safetensors"]
    for name in [*FOREIGN, *ours]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    later = begin(tmp_path)
    for sequence in (1, 2, 3):
        commit(later, sequence)
        later.prune(Rules(max_to_keep=1))
    later.collect_orphans()
    assert [name for name in FOREIGN if not (tmp_path / name).exists()] == []
    assert [name for name in ours if (tmp_path / name).exists()] == []
    for name in ours:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("left by a killed run")
    result = kdc("prune", tmp_path, "--keep", 1, "--yes")
    assert result.exit_code == 0, result.output
    assert [name for name in FOREIGN if not (tmp_path / name).exists()] == []
    later.delete_everything()
    assert [name for name in FOREIGN if not (tmp_path / name).exists()] == []


def test_a_record_with_a_huge_number_costs_no_time(tmp_path: Path) -> None:
    commit(begin(tmp_path), 1)
    (tmp_path / "owners/99999998.json").write_text("{}")
    os.utime(tmp_path / "owners/99999998.json", (1e9, 1e9))  # no run is writing
    for command in (["ls"], ["show"], ["verify"], ["doctor"], ["prune", "--keep", "1", "--yes"]):
        began = time.monotonic()
        result = kdc(command[0], tmp_path, *command[1:])
        assert result.exit_code == 0, (command, result.output)
        assert time.monotonic() - began < 10, command
    begin(tmp_path)


@pytest.mark.in_gate(2)
@pytest.mark.slow
@pytest.mark.parametrize("command", ["ls", "show --commit 1-1", "verify", "doctor", "prune --keep 1 --yes"])
def test_records_of_any_size_are_not_read_into_memory(tmp_path: Path, command: str) -> None:
    store = begin(tmp_path)
    good = commit(store, 1)
    records = ["owners/000002.json", "model.keras"]
    for name in [*records, f"commits/000001-00000002-{TOKEN}.json"]:
        (tmp_path / name).write_bytes(b"")
        os.truncate(tmp_path / name, SPARSE)
    began = time.monotonic()
    verb, *options = command.split()
    result = kdc(verb, tmp_path, *options)
    assert result.exit_code in {0, 1}, result.output
    assert "Usage" not in result.output
    assert time.monotonic() - began < 10
    if verb == "prune":
        return
    reader = BackupStore(Storage.open(tmp_path))
    with pytest.warns(RuntimeWarning, match="which is too large for this kind of file"):
        found = latest_intact(reader, 1)
    assert found is not None
    assert found[0] == good.id
    assert [one.name for one in listed(tmp_path).foreign] == ["model.keras"]

"""`kdc prune`: what may go goes, in a safe order; a good backup and a running fit are never touched."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.backups import owner_records
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base import machine
from keras_dist_callbacks.base.errors import FencedError, StorageError
from keras_dist_callbacks.cli import inventory, upkeep
from keras_dist_callbacks.storage.local_files import final_name
from keras_dist_callbacks.storage.storage import Storage
from tests.support import ROOT, cli_backups
from tests.support.cli_backups import begin, commit, everything, flip, kdc, kdc_json, rewrite
from tests.support.states import HASH, TOKEN

url = cli_backups.url
END = Position("end", 3, 0, 30)


def verify_all(url: str | Path) -> list[str]:
    """The short names of the backups that are left; each of them is intact."""
    assert kdc_json("verify", url)["all_intact"] is True
    return [row["commit"] for row in kdc_json("ls", url)["commits"]]


def test_all_but_the_newest_go_with_what_only_they_needed(url: str) -> None:
    store = begin(url)
    same = {"variables/same@0": range(500)}
    first = commit(store, 1, {**same, "variables/w@0": [1.0]})
    for sequence in (2, 3, 4):
        newest = commit(store, sequence, {**same, "variables/w@0": [float(sequence)]}, known=first)
    shared = {blob.path for blob in first.blobs} & {blob.path for blob in newest.blobs}
    assert shared
    found = kdc_json("prune", url, "--keep", 2, "--yes")
    assert found["deleted"] is True
    assert [name[:22] for name in found["commits"]] == ["commits/000001-0000000", "commits/000001-0000000"]
    assert verify_all(url) == ["1-4", "1-3"]
    left = everything(url)
    assert not found["blobs"].keys() & left.keys()
    assert not set(found["commits"]) & left.keys()
    assert shared <= left.keys()
    assert found["bytes"] == sum(found["blobs"].values())


def test_a_dry_run_deletes_nothing_and_shows_the_same(url: str) -> None:
    store = begin(url)
    for sequence in (1, 2, 3):
        commit(store, sequence)
    before = everything(url)
    told = kdc_json("prune", url, "--keep", 1, "--dry-run")
    assert told["deleted"] is False
    assert everything(url) == before
    done = kdc_json("prune", url, "--keep", 1, "--yes")
    assert {**told, "deleted": True} == done
    assert set(before) - set(everything(url)) == {*told["commits"], *told["blobs"]}
    assert len(told["commits"]) == len(told["blobs"]) == 2


def test_it_asks_first_and_a_no_or_no_answer_deletes_nothing(tmp_path: Path) -> None:
    store = begin(tmp_path)
    commit(store, 1)
    commit(store, 2)
    before = everything(tmp_path)
    for answer in ("n\n", ""):
        result = kdc("prune", tmp_path, "--keep", 1, input=answer)
        assert result.exit_code == 1
        assert "nothing was deleted" in result.stderr
        assert everything(tmp_path) == before
    assert kdc("prune", tmp_path, "--keep", 1, "--json").exit_code == 2
    assert everything(tmp_path) == before
    result = kdc("prune", tmp_path, "--keep", 1, input="y\n")
    assert result.exit_code == 0
    assert "freed" in result.stdout
    assert verify_all(tmp_path) == ["1-2"]


def test_the_newest_intact_backup_stays_if_none_of_those_to_keep_is(url: str) -> None:
    store = begin(url)
    manifests = [commit(store, sequence) for sequence in (1, 2, 3, 4)]
    flip(url, manifests[3].blobs[0].path)
    flip(url, manifests[2].id.name)
    found = kdc_json("prune", url, "--keep", 2, "--yes")
    assert found["kept"] == [m.id.name for m in reversed(manifests[1:])]
    assert kdc_json("verify", url, "--commit", "1-2")["all_intact"] is True
    assert manifests[0].id.name not in everything(url)


def test_where_no_backup_is_intact_nothing_is_deleted(url: str) -> None:
    store = begin(url)
    for sequence in (1, 2):
        flip(url, commit(store, sequence).blobs[0].path)
    before = everything(url)
    result = kdc("prune", url, "--keep", 1, "--yes")
    assert result.exit_code == 1
    assert "none of the 2 backups is intact" in result.stderr
    assert everything(url) == before


def test_blobs_that_an_unreadable_manifest_may_name_stay_with_it(tmp_path: Path) -> None:
    commit(begin(tmp_path), 1)
    store = begin(tmp_path)
    dangling, unreadable, _ = (commit(store, sequence) for sequence in (1, 2, 3))
    rewrite(tmp_path, dangling.id.name, None)
    rewrite(tmp_path, unreadable.id.name, b"{}")
    found = kdc_json("prune", tmp_path, "--keep", 2, "--yes")
    assert [path[:12] for path in found["blobs"]] == ["blobs/000001"]
    assert {unreadable.blobs[0].path, dangling.blobs[0].path} <= everything(tmp_path).keys()
    found = kdc_json("prune", tmp_path, "--keep", 1, "--yes")
    assert found["blobs"].keys() == {unreadable.blobs[0].path, dangling.blobs[0].path}
    assert verify_all(tmp_path) == ["2-3"]


def test_a_backup_that_a_run_has_quarantined_keeps_its_blobs(tmp_path: Path) -> None:
    store = begin(tmp_path)
    aside = commit(store, 1)
    commit(store, 2)
    store.quarantine(aside.id)
    assert kdc_json("prune", tmp_path, "--keep", 1, "--yes")["blobs"] == {}
    assert aside.blobs[0].path in everything(tmp_path)


def test_what_interrupted_runs_left_goes_too(url: str) -> None:
    for _ in range(2):
        crashed = begin(url)
        lost = commit(crashed, 1)
        crashed.storage.delete(lost.id.name)
    store = begin(url)
    commit(store, 1)
    for name in (f"commits/.000001-00000002-{TOKEN}.json.tmp-{HASH}", f"blobs/000003/.{HASH}.safetensors.tmp-{HASH}"):
        store.storage.create(name, [b"half"])
    found = kdc_json("prune", url, "--keep", 5, "--yes")
    assert found["owners"] == [1, 2]
    assert len(found["blobs"]) == 2
    assert len(found["temporaries"]) == 2
    left = everything(url)
    assert {name for name in left if name.startswith("owners/")} == {
        "owners/000003.json",
        "owners/000003.committed",
    }
    assert not any(".tmp-" in name for name in left)
    assert verify_all(url) == ["3-1"]
    assert kdc_json("prune", url, "--keep", 5, "--yes")["deleted"] is False


def test_an_owner_of_another_generation_is_still_fenced_afterwards(tmp_path: Path) -> None:
    older = begin(tmp_path)
    commit(older, 1)
    commit(begin(tmp_path), 1)
    begin(tmp_path)  # the newest owner has no backup yet
    kdc_json("prune", tmp_path, "--keep", 1, "--yes")
    assert [name for name in everything(tmp_path) if name.endswith(".json") and "owners" in name] == [
        "owners/000002.json",
        "owners/000003.json",
    ]
    with pytest.raises(FencedError, match="generation 3, this run is 1"):
        older.check_ownership()


@pytest.mark.parametrize(
    ("claimed", "ages", "position", "running"),
    [
        (60, [], None, True),  # a run began
        (cli_backups.DAY, [], None, False),
        (cli_backups.DAY, [60], None, True),  # it has saved
        (cli_backups.DAY, [60], END, False),  # it has ended
        (17 * 60, [16 * 60], None, False),
        (cli_backups.DAY, [16 * 60], None, True),  # its first backup took a day
        (cli_backups.DAY, [3 * 3600, 2 * 3600], None, True),  # it saves once an hour
        (cli_backups.DAY, [6 * 3600, 5 * 3600], None, False),
    ],
)
def test_a_run_seems_to_write_while_it_gives_signs_of_life(
    tmp_path: Path, claimed: float, ages: list[float], position: Position | None, running: bool
) -> None:
    commit(begin(tmp_path), 1, age=5)  # of an earlier run; says nothing about the newest
    store = begin(tmp_path, claimed)
    for sequence, age in enumerate(ages, start=1):
        commit(store, sequence, age=age, position=position)
    life = inventory.liveness(inventory.take_inventory(BackupStore(Storage.open(tmp_path))))
    assert (life.running, life.generation) == (running, 2)


@pytest.mark.parametrize("behind", [20 * 60.0, -20 * 60.0, -20 * 3600.0])
@pytest.mark.parametrize(("age", "running"), [(60.0, True), (18 * 60.0, False)])
def test_whether_a_run_writes_is_judged_by_the_clock_of_the_store(
    url: str, behind: float, age: float, running: bool
) -> None:
    commit(begin(url), 1)
    store = begin(url, age + 60 + behind)
    commit(store, 1, age=age + 30, behind=behind)
    commit(store, 2, age=age, behind=behind)
    before = everything(url)
    result = kdc("prune", url, "--keep", 1, "--yes")
    assert result.exit_code == (1 if running else 0)
    if running:
        assert "the last backup was written 1 min ago by the store's clock" in " ".join(result.stderr.split())
        assert everything(url) == before


KILLED = """
import os, signal, sys
from tests.support.cli_backups import begin, commit
store = begin(sys.argv[1], age=30)
commit(store, 1, age=20)
lost = commit(store, 2, age=10)
store.storage.delete(lost.id.name)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(url: str | Path) -> None:
    """Leaves what a run that is killed leaves: a backup, and of the next one the blobs."""
    command = [sys.executable, "-c", KILLED, str(url)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL


@pytest.mark.kill
def test_after_a_kill_of_a_process_of_this_machine_it_does_not_wait(tmp_path: Path) -> None:
    commit(begin(tmp_path), 1)
    killed(tmp_path)
    (run,) = [c for c in kdc_json("doctor", tmp_path)["checks"] if c["name"] == "run"]
    assert run["detail"] == "none seems to be running"
    found = kdc_json("prune", tmp_path, "--keep", 1, "--yes")
    assert (len(found["commits"]), len(found["blobs"]), found["spared_generation"]) == (1, 2, 0)
    assert verify_all(tmp_path) == ["2-1"]


@pytest.mark.kill
@pytest.mark.parametrize("what", ["another container", "another machine", "a process that lives"])
def test_what_is_not_known_to_have_ended_is_judged_by_its_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    commit(begin(tmp_path), 1)
    if what == "a process that lives":
        commit(begin(tmp_path, age=30), 1, age=20)
    else:
        killed(tmp_path)
        where = (machine, "process_namespace") if what == "another container" else (owner_records.platform, "node")
        monkeypatch.setattr(*where, lambda: "another one")
    before = everything(tmp_path)
    result = kdc("prune", tmp_path, "--keep", 1, "--yes")
    assert result.exit_code == 1
    assert "generation 2: the last backup was written" in result.stderr
    assert everything(tmp_path) == before


def test_in_a_store_that_does_not_say_what_time_it_is_a_run_may_be_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(begin(tmp_path), 1)

    def refuse(self: Storage) -> float:
        raise StorageError("read-only")

    monkeypatch.setattr(Storage, "now", refuse)
    result = kdc("prune", tmp_path, "--keep", 1, "--yes")
    assert result.exit_code == 1
    assert "generation 1: the store does not say when it wrote" in " ".join(result.stderr.split())


def test_next_to_a_running_fit_it_refuses_and_with_force_leaves_that_run_alone(url: str) -> None:
    earlier = begin(url)
    commit(earlier, 1)
    commit(earlier, 2)
    running = begin(url, age=30)
    for sequence in (1, 2):
        commit(running, sequence, age=20 - sequence)
    staged = commit(running, 3)
    running.storage.delete(staged.id.name)  # its blobs are written, its manifest is not
    running.storage.create(f"commits/.000002-00000003-{TOKEN}.json.tmp-{HASH}", [b"half"])
    before = everything(url)
    for extra in (["--yes"], ["--yes", "--json"]):
        result = kdc("prune", url, "--keep", 1, *extra)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "a run may still be writing (generation 2: the last backup was written 1" in result.stderr
    told = kdc_json("prune", url, "--keep", 1, "--dry-run")
    assert everything(url) == before
    found = kdc_json("prune", url, "--keep", 1, "--yes", "--force")
    assert {**told, "deleted": True} == found
    assert found["spared_generation"] == 2
    gone = before.keys() - everything(url).keys()
    assert gone == {name for name in before if "/000001" in name}
    running.check_ownership()
    commit(running, 4)
    assert verify_all(url) == ["2-4", "2-2", "2-1"]


def test_a_backup_that_appears_meanwhile_ends_it_before_any_blob_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = begin(tmp_path)
    old, _ = commit(store, 1), commit(store, 2)
    real = Storage.delete

    def while_a_run_commits(self: Storage, name: str) -> None:
        real(self, name)
        if final_name(name) is None:  # else it has asked the store for the time
            monkeypatch.setattr(Storage, "delete", real)
            commit(store, 3)

    monkeypatch.setattr(Storage, "delete", while_a_run_commits)
    result = kdc("prune", tmp_path, "--keep", 1, "--yes")
    assert result.exit_code == 1
    assert "a run has written meanwhile" in result.stderr
    assert old.blobs[0].path in everything(tmp_path)
    assert verify_all(tmp_path) == ["1-3", "1-2"]


def test_a_run_that_begins_meanwhile_ends_it_before_anything_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = begin(tmp_path)
    commit(store, 1)
    commit(store, 2)
    real = upkeep.plan_prune

    def while_a_run_begins(*arguments: Any) -> Any:
        plan = real(*arguments)
        begin(tmp_path)
        return plan

    monkeypatch.setattr(upkeep, "plan_prune", while_a_run_begins)
    result = kdc("prune", tmp_path, "--keep", 1, "--yes")
    assert result.exit_code == 1
    assert verify_all(tmp_path) == ["1-2", "1-1"]


def test_interrupted_at_any_deletion_what_is_left_is_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deletions = 1
    while True:
        directory = tmp_path / str(deletions)
        commit(begin(directory), 1)
        store = begin(directory)
        for sequence in (1, 2, 3):
            commit(store, sequence)
        real, left = Storage.delete, [deletions]

        def until_it_dies(self: Storage, name: str, real: Any = real, left: list[int] = left) -> None:
            left[0] -= final_name(name) is None
            if left[0] <= 0:
                raise OSError("killed")
            real(self, name)

        with monkeypatch.context() as patch:
            patch.setattr(Storage, "delete", until_it_dies)
            result = kdc("prune", directory, "--keep", 1, "--yes")
        newest = verify_all(directory)[0]
        assert newest == "2-3"
        if result.exit_code == 0:
            break
        deletions += 1
    assert deletions > 6


def test_a_backup_of_a_newer_version_is_never_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keras_dist_callbacks.backups import manifest

    store = begin(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "MANIFEST", dataclasses.replace(manifest.MANIFEST, version=99))
        commit(store, 1)
    commit(store, 2)
    before = everything(tmp_path)
    result = kdc("prune", tmp_path, "--keep", 1, "--yes")
    assert result.exit_code == 2
    assert "Install a newer" in result.stderr
    assert everything(tmp_path) == before

"""Which backups a run keeps: a table of rules over twelve epochs, restarts with other rules, and full disks."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.backups.snapshot import Position, SharedArray, Snapshot
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import ConfigError, StorageError
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run.engine import committer
from keras_dist_callbacks.run.engine.committer import Committer, EngineOptions
from keras_dist_callbacks.run.engine.worker_exchange import WorkerStateExchange
from keras_dist_callbacks.storage.storage import Storage
from tests.support.states import loop_state

STEPS, EPOCHS, HOUR = 10, 12, 3600.0
EACH_EPOCH = [Position("between", epoch, 0, epoch * STEPS) for epoch in range(1, EPOCHS + 1)]
EVERY_7 = [
    Position("within" if step % STEPS else "between", step // STEPS, step % STEPS, step)
    for step in range(7, EPOCHS * STEPS + 1, 7)
]


class Clock:
    """An epoch takes an hour."""

    now = 0.0

    def time(self) -> float:
        return self.now

    monotonic = time


class Training:
    """The processes of one training, each of which takes the directory over from the one before."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.clock, self.saves = directory, Clock(), 0
        monkeypatch.setattr(committer, "time", self.clock)
        self.notes: list[str] = []

    def start(self, rules: Rules, **options: Any) -> None:
        self.store = BackupStore(Storage.open(self.directory, fsync=False))
        self.store.prepare()
        before = self.store.commits()
        self.store.claim({})
        exchange = WorkerStateExchange(Cluster(), "fit", 2**20, 5.0)
        self.committer = Committer(self.store, exchange, EngineOptions(rules=rules, **options), self.notes.append)
        if before:
            self.committer.begun = self.store.manifest(before[-1]).info["begun"]

    def save(self, *positions: Position, bad: float = 0.0) -> None:
        for position in positions:
            self.clock.now = position.step / STEPS * HOUR
            self.saves += 1
            held = {
                "variables/w@0": SharedArray(np.full(100, position.step + bad, "float32")),
                "variables/frozen@0": SharedArray(np.arange(100.0)),
            }
            self.committer.commit(self.saves, Snapshot(position, held, loop_state()))

    @property
    def steps(self) -> list[int]:
        """Those of the backups that are there and complete."""
        store = BackupStore(Storage.open(self.directory))
        manifests = [store.manifest(commit) for commit in store.commits()]
        for manifest in manifests:
            store.verify(manifest)
        return sorted(manifest.position.step for manifest in manifests)


class Row(NamedTuple):
    max_to_keep: int
    keep_every: int | datetime.timedelta | None
    each_epoch: list[int]
    every_7: list[int]


HOURS = datetime.timedelta(hours=4)
TABLE = [
    Row(1, None, [120], [119]),
    Row(2, None, [110, 120], [112, 119]),
    Row(5, None, [80, 90, 100, 110, 120], [91, 98, 105, 112, 119]),
    Row(1, 1, list(range(10, 121, 10)), [14, 21, 35, 42, 56, 63, 70, 84, 91, 105, 112, 119]),
    Row(2, 1, list(range(10, 121, 10)), [14, 21, 35, 42, 56, 63, 70, 84, 91, 105, 112, 119]),
    Row(5, 1, list(range(10, 121, 10)), [14, 21, 35, 42, 56, 63, 70, 84, 91, 98, 105, 112, 119]),
    Row(1, 3, [30, 60, 90, 120], [35, 63, 91, 119]),
    Row(2, 3, [30, 60, 90, 110, 120], [35, 63, 91, 112, 119]),
    Row(5, 3, [30, 60, 80, 90, 100, 110, 120], [35, 63, 91, 98, 105, 112, 119]),
    # counted from the first backup: at 1 h, so at 5 and 9 h; at 0.7 h, so at 4.7 and 8.7 h
    Row(1, HOURS, [50, 90, 120], [49, 91, 119]),
    Row(2, HOURS, [50, 90, 110, 120], [49, 91, 112, 119]),
    Row(5, HOURS, [50, 80, 90, 100, 110, 120], [49, 91, 98, 105, 112, 119]),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.max_to_keep}-{row.keep_every}")
def test_what_stays_after_twelve_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row) -> None:
    for name, positions, expected in (("epochs", EACH_EPOCH, row.each_epoch), ("steps", EVERY_7, row.every_7)):
        training = Training(tmp_path / name, monkeypatch)
        training.start(Rules(row.max_to_keep, keep_every=row.keep_every))
        training.save(*positions)
        assert training.steps == expected


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.max_to_keep}-{row.keep_every}")
@pytest.mark.parametrize("killed", [1, 4, 7, 11])
def test_a_restart_at_any_epoch_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row, killed: int
) -> None:
    training = Training(tmp_path, monkeypatch)
    training.start(Rules(row.max_to_keep, keep_every=row.keep_every))
    training.save(*EACH_EPOCH[:killed])
    training.start(Rules(row.max_to_keep, keep_every=row.keep_every))
    training.save(*EACH_EPOCH[killed:])
    assert training.steps == row.each_epoch


def test_what_a_rule_keeps_does_not_move_when_a_restart_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, rules = Training(tmp_path, monkeypatch), Rules(1, keep_every=3)
    training.start(rules)
    training.save(*[p for p in EVERY_7 if p.step <= 42])
    training.start(rules)  # resumes in the epoch of which a backup is kept
    training.save(*[p for p in EVERY_7 if 42 < p.step <= 77])
    assert training.steps == [35, 63, 77]


def test_changed_rules_apply_from_the_first_new_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path, monkeypatch)
    training.start(Rules(5))
    training.save(*EACH_EPOCH[:6])
    training.start(Rules(1, keep_every=2))
    assert training.steps == [20, 30, 40, 50, 60]
    training.save(EACH_EPOCH[6])
    assert training.steps == [20, 40, 60, 70]
    training.start(Rules(1))
    training.save(EACH_EPOCH[7])
    assert training.steps == [80]


def test_unchanged_tensors_are_there_once_however_many_backups_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, monkeypatch)
    training.start(Rules(2, keep_every=1))
    training.save(*EACH_EPOCH)
    sizes = [path.stat().st_size for path in tmp_path.glob("blobs/*/*")]
    assert sum(size > 800 for size in sizes) == 1


def test_a_full_disk_takes_nothing_that_a_rule_keeps_and_says_what_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, monkeypatch)
    training.start(Rules(1, keep_every=1))
    training.save(*EACH_EPOCH[:4])

    def full(*arguments: Any) -> None:
        error = StorageError("no space left")
        error.full = True
        raise error

    monkeypatch.setattr(training.store, "stage_all", full)
    with pytest.raises(StorageError, match=r"there are 1 of them while another one.*`kdc prune .* --keep 1` does when"):
        training.save(EACH_EPOCH[4])
    assert training.steps == [10, 20, 30, 40]


def test_a_delete_that_fails_is_one_warning_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path, monkeypatch)
    training.start(Rules(1))

    def refuse(storage: Storage, name: str) -> None:
        raise StorageError("403")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", refuse)
        training.save(*EACH_EPOCH[:4])
    assert [note for note in training.notes if "cannot be deleted" in note] == training.notes
    assert len(training.notes) == 1
    assert training.steps == [10, 20, 30, 40]
    training.save(EACH_EPOCH[4])
    assert training.steps == [50]


def test_two_successive_backups_need_that_two_are_kept() -> None:
    with pytest.raises(ConfigError, match="max_to_keep=1: double_checkpoint=True"):
        EngineOptions(double_checkpoint=True, rules=Rules(1))


# --- values that are not finite


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_newest_finite_backup_stays_however_many_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    training = Training(tmp_path, monkeypatch)
    training.start(Rules(2))
    training.save(*EACH_EPOCH[:4])
    training.save(*EACH_EPOCH[4:9], bad=bad)
    assert training.steps == [40, 80, 90]
    (note,) = training.notes
    assert note.startswith("the backup at the end of epoch 5 (step 50) holds values that are not finite (w); ")
    assert "the newest finite one is 1-4, at the end of epoch 4 (step 40): it is kept, and `kdc rollback " in note
    training.start(Rules(1))
    training.save(*EACH_EPOCH[9:10], bad=bad)
    assert training.steps == [40, 100]
    training.save(EACH_EPOCH[10])
    assert training.steps == [110]


def test_without_a_finite_backup_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path, monkeypatch)
    training.start(Rules(1))
    training.save(*EACH_EPOCH[:2], bad=np.nan)
    assert [note.rpartition("; ")[2] for note in training.notes] == ["no backup is finite"]
    assert training.steps == [20]


def test_where_something_is_not_finite_all_of_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path, monkeypatch)
    training.start(Rules(1))
    large = np.zeros(100_000, "float32")
    large[7] = np.nan  # between the values that each save looks at
    held = {"variables/large@0": SharedArray(large), "variables/whole@0": SharedArray(np.zeros(4, "float32"))}
    training.committer.commit(1, Snapshot(EACH_EPOCH[0], held, loop_state()))
    assert "not_finite" not in training.store.manifest(training.store.commits()[-1]).info
    held["variables/whole@0"] = SharedArray(np.array([np.inf], ml_dtypes.bfloat16))
    training.committer.commit(2, Snapshot(EACH_EPOCH[1], held, loop_state()))
    found = training.store.manifest(training.store.commits()[-1]).info["not_finite"]
    assert found == ["variables/large@0", "variables/whole@0"]


def test_metrics_integers_and_what_the_user_holds_may_be_infinite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, monkeypatch)
    training.start(Rules(1))
    infinite = SharedArray(np.array([np.inf]))
    held = {"variables/best@0": infinite, "callbacks/Own/best": infinite, "variables/seed@0": SharedArray(np.arange(2))}
    state = {**loop_state(), "variables/metrics": ["best"]}
    training.committer.commit(1, Snapshot(EACH_EPOCH[0], held, state))
    assert training.notes == []

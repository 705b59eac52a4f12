"""Backups that are due faster than they are written: the newest is queued, and the ones before it cost nothing."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.snapshot import Position, SharedArray, Snapshot
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.engine import save_queue
from keras_dist_callbacks.engine.committer import EngineOptions
from keras_dist_callbacks.engine.engine import BackupEngine
from keras_dist_callbacks.engine.worker_state import WorkerStateExchange
from keras_dist_callbacks.engine.writer import Writer, shared_writer
from keras_dist_callbacks.options import WriteOptions
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny
from tests.support.callback_helpers import ignore_keras_warnings
from tests.support.grouped import grouped
from tests.support.states import loop_state

BYTES = 4000


class Engine(BackupEngine):
    """One whose writer waits until it is let go, and that notes which saves workers are to forget."""

    def __init__(self, directory: Path, **options: Any) -> None:
        cluster = Cluster()
        self.skipped: list[int] = []
        self.lined_up: list[int] = []
        exchange = WorkerStateExchange(cluster, "fit", 2**20, 5.0)
        self.store, self.queue, self.gate = BackupStore(Storage.open(directory)), Writer(), threading.Event()
        super().__init__(self.store, cluster, exchange, self.queue, EngineOptions(write=WriteOptions(**options)))
        object.__setattr__(exchange, "skip", lambda save, first=1: self.skipped.append(save))
        object.__setattr__(exchange, "mark_queued", self.lined_up.append)
        self.prepare()
        self.claim({})

    def hold(self) -> None:
        """A job before the next backup."""
        self.gate.clear()
        self.queue.submit(lambda: self.gate.wait(60), "a slow upload")

    def begin_slowly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Saves step 1, whose commit waits in its midst, as all others do, until they are let go."""
        begun, original = threading.Event(), self.store.check_ownership

        def check() -> None:
            begun.set()
            self.gate.wait(60)
            original()

        monkeypatch.setattr(self.store, "check_ownership", check)
        self.save(snapshot(1))
        assert begun.wait(10)

    def steps(self) -> list[int]:
        """Of the backups that are there."""
        return [self.store.manifest(commit).position.step for commit in self.store.commits()]


@pytest.fixture
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(tmp_path / "backup", **getattr(request, "param", {}))
    yield made
    made.gate.set()
    made.queue.wait(10)


def snapshot(step: int) -> Snapshot:
    value = np.full(BYTES // 4, step, np.float32)
    return Snapshot(Position("within", 0, step, step), {"variable/w@0": SharedArray(value)}, loop_state())


def test_the_newest_is_written_after_the_one_that_is_being_written(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.begin_slowly(monkeypatch)
    for step in (2, 3, 4):
        engine.save(snapshot(step))
        assert engine.writing
    assert engine.skipped == [2, 3]  # at once: other workers hold them too
    engine.gate.set()
    assert engine.drain(10)
    assert engine.steps() == [1, 4]
    assert not engine.writing
    assert engine.committed == Position("within", 0, 4, 4)


def test_one_that_another_job_of_the_queue_holds_up_is_superseded_too(engine: Engine) -> None:
    engine.hold()
    for step in (1, 2, 3):
        engine.save(snapshot(step))
    engine.gate.set()
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([3], [1, 2])


def test_what_is_superseded_is_free_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.begin_slowly(monkeypatch)
    held = []
    for step in range(2, 6):
        taken = snapshot(step)
        held.append(weakref.ref(taken.tensors["variable/w@0"].array()))
        engine.save(taken)
        del taken
    gc.collect()
    assert [value() is not None for value in held] == [False, False, False, True]


@pytest.mark.parametrize("engine", [{"max_held_bytes": 2 * BYTES - 1}, {"max_held_bytes": 0}], indirect=True)
def test_where_two_states_do_not_fit_none_is_queued(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.begin_slowly(monkeypatch)
    for step in (2, 3):
        engine.save(snapshot(step))
    engine.gate.set()
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([1], [2, 3])
    engine.save(snapshot(4))
    assert engine.drain(10)
    assert engine.steps() == [1, 4]


@pytest.mark.parametrize("engine", [{"max_held_bytes": 2 * BYTES}], indirect=True)
def test_where_two_states_just_fit_one_does(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.begin_slowly(monkeypatch)
    engine.save(snapshot(2))
    engine.gate.set()
    assert engine.drain(10)
    assert engine.steps() == [1, 2]


def test_one_that_must_be_written_is_not_superseded(engine: Engine) -> None:
    engine.hold()
    engine.save(snapshot(1), must=True)
    for step in (2, 3):
        engine.save(snapshot(step))
    engine.gate.set()
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([1, 3], [2])


def test_one_that_must_be_written_supersedes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.begin_slowly(monkeypatch)
    engine.save(snapshot(2))
    threading.Timer(0.2, engine.gate.set).start()
    engine.save(snapshot(3), must=True)
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([1, 3], [2])


@pytest.mark.parametrize("engine", [{"when_busy": "wait"}], indirect=True)
def test_where_training_waits_none_is_skipped(engine: Engine) -> None:
    for step in range(1, 6):
        engine.hold()
        threading.Timer(0.05, engine.gate.set).start()
        engine.save(snapshot(step))
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([4, 5], [])


def test_a_failure_of_one_backup_does_not_stop_the_queued_one(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    original, committed = engine.store.commit, list[int]()

    def commit(manifest: Any) -> None:
        committed.append(manifest.position.step)
        if len(committed) == 1:
            raise kdc.errors.StorageError("the disk is away")
        original(manifest)

    monkeypatch.setattr(engine.store, "commit", commit)
    engine.begin_slowly(monkeypatch)
    engine.save(snapshot(2))
    engine.gate.set()
    assert engine.drain(10)
    assert (committed, engine.steps()) == ([1, 2], [2])
    assert any("the disk is away" in note for note in engine.take_notes())
    assert not engine.writing


@pytest.mark.parametrize(("kind", "line"), [("", "0::/job/step"), ("memory", "5:cpu,memory:/job/step")])
def test_half_of_the_free_memory_knows_the_limits_of_containers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, line: str
) -> None:
    assert 2**20 < save_queue.half_of_free_memory() < 2**50
    limit, used, inactive = save_queue._FILES[kind]
    for group, most in (("", "max"), ("job", "5000"), ("job/step", str(2**62))):
        directory = tmp_path / kind / group
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in ((limit, most), (used, "3000"), ("memory.stat", f"anon 1\n{inactive} 1000\n")):
            (directory / name).write_text(content + "\n")
    (tmp_path / "own").write_text(f"7:devices:/\n{line}\n")
    monkeypatch.setattr(save_queue, "_GROUPS", tmp_path)
    monkeypatch.setattr(save_queue, "_OWN", tmp_path / "own")
    assert save_queue.half_of_free_memory() == (5000 - 3000 + 1000) // 2
    (tmp_path / "own").unlink()
    assert 2**20 < save_queue.half_of_free_memory() < 2**50


def test_other_jobs_of_the_queue_do_not_hold_backups_up_for_ever(engine: Engine) -> None:
    """A queued backup keeps its place once something is queued after it; else two writers would always come first."""
    engine.hold()
    for step in range(1, 9):
        engine.save(snapshot(step))
        engine.queue.submit(lambda: None, "an artefact")
    engine.gate.set()
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([1], [2, 3, 4, 5, 6, 7, 8])


def test_workers_learn_which_save_is_queued(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.begin_slowly(monkeypatch)
    for step in (2, 3):
        engine.save(snapshot(step))
    assert (engine.lined_up, engine.skipped) == ([2, 3], [2])
    threading.Timer(0.2, engine.gate.set).start()
    engine.save(snapshot(4), must=True)
    assert engine.drain(10)
    assert (engine.lined_up, engine.skipped) == ([2, 3, 4], [2, 3])
    assert engine.steps() == [1, 4]


def test_what_is_queued_at_the_end_is_not_written(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.begin_slowly(monkeypatch)
    engine.save(snapshot(2))
    threading.Timer(0.2, engine.gate.set).start()
    engine.finish(snapshot(3), delete=False)
    assert (engine.steps(), engine.skipped) == ([1, 3], [2])
    assert engine.take_notes() == []


def test_the_worker_with_the_least_memory_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Cluster.gather

    def gather(cluster: Cluster, value: Any, tag: str, *given: Any, **kind: Any) -> list[Any]:
        others = [2 * BYTES - 1] if tag == "memory for backups" else []
        return [*original(cluster, value, tag, *given, **kind), *others]

    monkeypatch.setattr(Cluster, "gather", gather)
    engine = Engine(tmp_path / "backup", max_held_bytes=2 * BYTES)
    engine.begin_slowly(monkeypatch)
    engine.save(snapshot(2))
    engine.gate.set()
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([1], [2])


def test_a_save_that_fails_before_workers_are_asked_is_skipped(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr("keras_dist_callbacks.engine.committer.fingerprints", full)
    engine.save(snapshot(1))
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([], [1])
    assert "no room" in engine.take_notes()[0]


@pytest.mark.slow
@ignore_keras_warnings
@pytest.mark.filterwarnings("ignore:backups are skipped:RuntimeWarning")
def test_a_slow_store_costs_distance_between_backups_and_not_the_newest_one(tmp_path: Path) -> None:
    """A run that is cut off after its last step finds a backup of that step, however slow the store is."""
    reference = tiny.model()
    tiny.fit(reference, None, [], epochs=2)
    slow = {"when_busy": "skip", "max_bytes_per_second": 60_000}
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [tiny.StopAt(1, 3)], epochs=2, options=slow)
    assert shared_writer().wait(60)
    backup = kdc.BackupAndRestore(tmp_path, save_freq=1, **grouped(**slow))
    model = tiny.model()
    tiny.fit(model, None, [backup], epochs=2)
    assert backup.restored is not None
    assert (backup.restored.position.epoch, backup.restored.position.batch) == (1, 3)
    tiny.assert_same(model, reference)

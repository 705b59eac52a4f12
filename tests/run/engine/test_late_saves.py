"""Backups that are due faster than they are written: one snapshot is held, and the next one is taken after it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.snapshot import Position, SharedArray, Snapshot
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.options import WriteOptions
from keras_dist_callbacks.run.engine.committer import EngineOptions
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.engine.worker_exchange import WorkerStateExchange
from keras_dist_callbacks.run.engine.writer import Writer, shared_writer
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
        self.queued: list[int] = []
        exchange = WorkerStateExchange(cluster, "fit", 2**20, 5.0)
        self.store, self.queue, self.gate = BackupStore(Storage.open(directory)), Writer(), threading.Event()
        super().__init__(self.store, cluster, exchange, self.queue, EngineOptions(write=WriteOptions(**options)))
        object.__setattr__(exchange, "skip", lambda save, first=1: self.skipped.append(save))
        object.__setattr__(exchange, "mark_queued", self.queued.append)
        self.prepare()
        self.claim({})

    def hold(self) -> None:
        """A job before the next backup."""
        self.gate.clear()
        self.queue.submit(lambda: self.gate.wait(60), "a slow upload")

    def begin_slowly(self, monkeypatch: pytest.MonkeyPatch, first: list[Snapshot] | None = None) -> None:
        """Saves step 1, whose commit waits in its midst, as all others do, until they are let go.

        Args:
            monkeypatch: For the store.
            first: The snapshot of step 1, which is taken out of the list.
        """
        begun, original = threading.Event(), self.store.check_ownership

        def check() -> None:
            begun.set()
            self.gate.wait(60)
            original()

        monkeypatch.setattr(self.store, "check_ownership", check)
        self.save(lambda: snapshot(1) if first is None else first.pop())
        assert begun.wait(10)

    def let_go_soon(self) -> None:
        """What is held continues while the main thread waits."""
        threading.Timer(0.2, self.gate.set).start()

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
    return Snapshot(Position("within", 0, step, step), {"variables/w@0": SharedArray(value)}, loop_state())


def test_the_next_snapshot_is_taken_when_the_one_before_is_written_and_free(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = snapshot(1)
    held = weakref.ref(first.tensors["variables/w@0"].array())
    engine.begin_slowly(monkeypatch, [first])
    del first
    assert engine.writing
    assert engine.held_bytes == BYTES

    def take() -> Snapshot:
        gc.collect()
        assert (engine.steps(), engine.writing, held()) == ([1], False, None)
        return snapshot(2)

    engine.let_go_soon()
    engine.save(take)
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([1, 2], [])
    assert (engine.writing, engine.held_bytes) == (False, 0)
    assert engine.committed == Position("within", 0, 2, 2)


def test_another_job_of_the_writer_makes_no_backup_late(engine: Engine) -> None:
    """Else two callbacks that write all the time would hold backups up for ever."""
    engine.hold()
    assert not engine.writing
    engine.save(lambda: snapshot(1))
    assert engine.writing
    engine.gate.set()
    assert engine.drain(10)
    assert engine.steps() == [1]


def test_a_failure_of_one_backup_does_not_stop_the_next(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    original, committed = engine.store.commit, list[int]()

    def commit(manifest: Any) -> None:
        committed.append(manifest.position.step)
        if len(committed) == 1:
            raise kdc.StorageError("the disk is away")
        original(manifest)

    monkeypatch.setattr(engine.store, "commit", commit)
    for step in (1, 2):
        engine.save(lambda step=step: snapshot(step))  # type: ignore[misc]
    assert engine.drain(10)
    assert (committed, engine.steps()) == ([1, 2], [2])
    assert any("the disk is away" in note for note in engine.take_notes())
    assert not engine.writing


def test_workers_learn_which_save_waits_for_the_chiefs_writer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.begin_slowly(monkeypatch)
    assert engine.queued == []
    engine.let_go_soon()
    engine.save(lambda: snapshot(2))
    assert engine.drain(10)
    assert (engine.queued, engine.skipped) == ([2], [])
    engine.hold()
    engine.save(lambda: snapshot(3))
    assert (engine.queued, engine.skipped) == ([2, 3], [])


def test_the_end_waits_for_the_one_that_is_being_written(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.begin_slowly(monkeypatch)
    engine.let_go_soon()
    engine.finish(lambda: snapshot(2), delete=False)
    assert (engine.steps(), engine.skipped) == ([1, 2], [])
    assert engine.take_notes() == []


def test_a_save_that_fails_before_workers_are_asked_is_skipped(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr("keras_dist_callbacks.run.engine.committer.fingerprints", full)
    engine.save(lambda: snapshot(1))
    assert engine.drain(10)
    assert (engine.steps(), engine.skipped) == ([], [1])
    assert "no room" in engine.take_notes()[0]


def test_a_state_that_cannot_be_captured_is_no_save_that_workers_wait_for(engine: Engine) -> None:
    def take() -> Snapshot:
        raise OSError("no state")

    with pytest.raises(OSError, match="no state"):
        engine.save(take)
    assert engine.skipped == [1]


class Release(keras.callbacks.Callback):
    """Lets the writer continue after a step, and waits until it is free."""

    def __init__(self, after: int, go_on: threading.Event) -> None:
        super().__init__()
        self.left, self.go_on = after, go_on

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            self.go_on.set()
            assert shared_writer().wait(60)


kdc.advanced.register_callback_state(Release, None)


@pytest.mark.slow
@ignore_keras_warnings
def test_a_late_backup_is_taken_at_the_first_step_after_the_one_before_and_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = tiny.model()
    tiny.fit(reference, None, [], epochs=2)
    go_on, check = threading.Event(), BackupStore.check_ownership

    def wait(store: BackupStore) -> None:
        go_on.wait(60)
        check(store)

    monkeypatch.setattr(BackupStore, "check_ownership", wait)
    late = {"when_busy": "late"}
    tiny.interrupt(tmp_path, 1, 3, 3, callbacks=[Release(tiny.STEPS + 2, go_on)], epochs=2, options=late)
    assert shared_writer().wait(60)
    store = BackupStore(Storage.open(tmp_path))
    assert [store.manifest(commit).position.step for commit in store.commits()] == [3, tiny.STEPS + 2]
    backup = kdc.BackupAndRestore(tmp_path, save_freq=3, **grouped(**late))
    model = tiny.model()
    tiny.fit(model, None, [backup], epochs=2)
    assert backup.restored is not None
    assert (backup.restored.position.epoch, backup.restored.position.batch) == (1, 2)
    assert backup.restored.verdict == "exact"
    tiny.assert_same(model, reference)

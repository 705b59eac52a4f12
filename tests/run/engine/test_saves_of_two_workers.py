"""Two workers of one process: every save of the other one is answered by the chief, and its state is let go."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups.snapshot import Position, SharedArray, Snapshot
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run.engine.committer import EngineOptions
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.engine.worker_exchange import WorkerStateExchange
from keras_dist_callbacks.run.engine.writer import Writer
from keras_dist_callbacks.storage.storage import Storage
from tests.support.no_threads import refused
from tests.support.service import Service
from tests.support.states import loop_state

TIMEOUT = 0.2


class Pair:
    """The engines of a chief and of another worker; the chief's commits wait until they are let go."""

    def __init__(self, directory: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.service = service
        self.queues = [Writer(), Writer()]
        self.stores = [BackupStore(Storage.open(directory, fsync=False)) for _ in range(2)]
        self.chief, self.worker = (self._engine(number) for number in range(2))
        self.stores[0].prepare()
        self.stores[0].claim({})
        self.go_on, self.begun, original = threading.Event(), threading.Event(), self.stores[0].commit

        def commit(manifest: Any) -> None:
            self.begun.set()
            self.go_on.wait(60)
            original(manifest)

        monkeypatch.setattr(self.stores[0], "commit", commit)
        self.held: list[tuple[int, Any]] = []

    def _engine(self, number: int) -> BackupEngine:
        cluster = Cluster("worker", number, number, ("127.0.0.1:1", "127.0.0.1:2"))
        exchange = WorkerStateExchange(cluster, "fit", 2**20, TIMEOUT)
        return BackupEngine(self.stores[number], cluster, exchange, self.queues[number], EngineOptions())

    def save(self, step: int) -> None:
        self.chief.save(lambda: snapshot(step))
        theirs = [snapshot(step)]
        self.held.append((step, weakref.ref(theirs[0].tensors["variables/w@0"].array())))
        self.worker.save(theirs.pop)

    def worker_holds(self) -> list[int]:
        gc.collect()
        return [step for step, value in self.held if value() is not None]

    def end(self) -> list[int]:
        """Lets all be written; the steps of the backups that are there."""
        self.go_on.set()
        assert all(queue.wait(20) for queue in self.queues)
        return [self.stores[0].manifest(commit).position.step for commit in self.stores[0].commits()]


def snapshot(step: int) -> Snapshot:
    value = np.full(1000, step, np.float32)
    return Snapshot(Position("within", 0, step, step), {"variables/w@0": SharedArray(value)}, loop_state())


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair(tmp_path, Service(monkeypatch), monkeypatch)
    yield made
    made.end()


def test_a_worker_is_done_with_a_backup_when_the_chief_has_its_part(pair: Pair) -> None:
    pair.save(1)
    assert pair.begun.wait(10)
    assert pair.queues[1].wait(10)
    assert pair.worker_holds() == []
    assert (pair.chief.writing, pair.worker.writing) == (True, False)


def test_what_waits_for_a_long_artefact_is_announced_too(pair: Pair) -> None:
    pair.queues[0].submit(lambda: pair.go_on.wait(60), "an artefact")
    pair.save(1)
    time.sleep(4 * TIMEOUT)
    assert pair.worker_holds() == [1]
    assert pair.end() == [1]
    assert (pair.chief.take_notes(), pair.worker.take_notes()) == ([], [])
    assert pair.service.values == {}


class _Broken:
    def array(self) -> Any:
        raise MemoryError("no room")


def test_a_state_that_cannot_be_read_is_answered(pair: Pair) -> None:
    pair.queues[0].submit(lambda: pair.go_on.wait(60), "an artefact")
    broken = Snapshot(Position("within", 0, 1, 1), {"variables/w@0": _Broken()}, loop_state())
    pair.chief.save(lambda: broken)
    pair.worker.save(lambda: snapshot(1))
    assert pair.end() == []
    assert "no room" in pair.chief.take_notes()[0]
    assert pair.worker.take_notes() == []
    assert pair.service.values == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt("impatient"), RuntimeError("can't start new thread")])
def test_a_save_that_is_not_handed_over_is_answered(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*given: Any, **options: Any) -> Any:
        raise error

    interrupted = isinstance(error, KeyboardInterrupt)
    with monkeypatch.context() as patch:
        patch.setattr(pair.queues[0], "wait_for" if interrupted else "submit", fail)
        with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
            pair.chief.save(lambda: snapshot(1))
    assert len(pair.chief.take_notes()) == (0 if interrupted else 1)
    pair.worker.save(lambda: snapshot(1))
    assert pair.queues[1].wait(10)
    assert pair.end() == []
    assert pair.service.values == {}


def test_a_worker_without_a_thread_for_its_part_notes_it_and_trains_on(pair: Pair) -> None:
    with refused():
        pair.worker.save(lambda: snapshot(1))
    (note,) = pair.worker.take_notes()
    assert note.startswith("this worker's part of the backup at")
    assert "can't start new thread" in note
    assert not pair.worker.writing


def test_a_chief_that_can_start_no_thread_at_all_notes_the_save_and_trains_on(pair: Pair) -> None:
    with refused():
        pair.chief.save(lambda: snapshot(1))
    assert "failed and training continues: no thread can be started" in pair.chief.take_notes()[0]
    pair.worker.save(lambda: snapshot(1))
    assert pair.queues[1].wait(20)
    assert pair.worker.take_notes() == []  # it is answered all the same
    pair.save(2)
    assert pair.end() == [2]

"""The background thread: its priority, and what it does with jobs that come and go."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from keras_dist_callbacks.engine import background
from keras_dist_callbacks.engine.writer import Writer
from tests.support.busy_machine import REAL_PRIORITY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux alone")

LOWER = background._NICENESS


@pytest.fixture(autouse=True)
def the_real_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_dist_callbacks.engine.writer.lower_priority", REAL_PRIORITY)


def _own() -> tuple[int, int]:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.sched_getscheduler(0)


def test_jobs_run_at_a_lower_priority_and_training_keeps_its_own() -> None:
    before, found = _own(), list[tuple[int, int]]()
    writer = Writer()
    writer.submit(lambda: found.append(_own()), "a job")
    assert writer.wait(30)
    assert found == [(before[0] + LOWER, os.SCHED_BATCH)]
    assert _own() == before


def test_threads_that_a_job_starts_have_its_priority() -> None:
    found: list[tuple[int, int]] = []

    def job() -> None:
        thread = threading.Thread(target=lambda: found.append(_own()))
        thread.start()
        thread.join()

    writer = Writer()
    writer.submit(job, "a job")
    assert writer.wait(30)
    assert found == [(_own()[0] + LOWER, os.SCHED_BATCH)]


def test_training_that_is_nice_itself_is_not_overtaken() -> None:
    found, writer = list[tuple[int, int]](), Writer()

    def nice() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
        writer.submit(lambda: found.append(_own()), "a job")
        writer.wait(30)

    training = threading.Thread(target=nice)
    training.start()
    training.join()
    assert found == [(7 + LOWER, os.SCHED_BATCH)]


def test_a_thread_that_cannot_start_leaves_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, done = Writer(), list[int]()
    with monkeypatch.context() as patch:

        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            writer.submit(lambda: done.append(1), "refused")
    assert writer.wait(1)
    writer.submit(lambda: done.append(2), "later")
    assert writer.wait(10)
    assert done == [2]


def test_a_job_that_is_withdrawn_before_its_thread_gets_to_it_leaves_nothing_to_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, done, go_on = Writer(), list[int](), threading.Event()
    begin = writer._next
    # The writer's thread has begun, and the job has not.
    monkeypatch.setattr(writer, "_next", lambda: begin() if go_on.wait(10) else None)
    ticket = writer.submit(lambda: done.append(1), "withdrawn")
    assert writer.withdraw(ticket)
    assert not writer.withdraw(ticket)
    go_on.set()
    assert writer.wait(10)
    assert not writer.busy
    writer.submit(lambda: done.append(2), "later")
    assert writer.wait(10)
    assert done == [2]


def test_jobs_that_come_and_go_all_the_time_are_all_done_or_withdrawn() -> None:
    writer, done, withdrawn = Writer(), list[int](), list[int]()
    for number in range(3000):
        ticket = writer.submit(lambda number=number: done.append(number), "a job")  # type: ignore[misc]
        if number % 3 and writer.withdraw(ticket):
            withdrawn.append(number)
    assert writer.wait(30)
    assert sorted(done + withdrawn) == list(range(3000))
    assert done == sorted(done)

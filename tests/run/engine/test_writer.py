"""The background thread: its priority, and what it does with jobs that come and go."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from keras_dist_callbacks.run.engine import background
from keras_dist_callbacks.run.engine.writer import Owner, Writer
from tests.support.busy_machine import REAL_PRIORITY
from tests.support.no_threads import refused

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux alone")

LOWER = background._NICENESS


@pytest.fixture(autouse=True)
def the_real_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_dist_callbacks.run.engine.writer.lower_priority", REAL_PRIORITY)


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


def test_a_thread_that_cannot_start_leaves_nothing_to_wait_for() -> None:
    writer, owner, done = Writer(), Owner(), list[int]()
    with refused(), pytest.raises(RuntimeError, match=r"can't start new thread\): raise the limit of threads"):
        writer.submit(lambda: done.append(1), "refused", owner)
    assert writer.wait(1)
    writer.wait_for(owner)
    writer.submit(lambda: done.append(2), "later")
    assert writer.wait(10)
    assert done == [2]


def test_jobs_that_come_all_the_time_are_all_done_in_their_order() -> None:
    writer, owner, done = Writer(), Owner(), list[int]()
    for number in range(3000):
        writer.submit(lambda number=number: done.append(number), "a job", owner)  # type: ignore[misc]
    assert writer.wait(30)
    assert writer.is_done(owner)
    assert done == list(range(3000))


def _fail(text: str) -> None:
    raise OSError(text)


def test_a_job_is_waited_for_without_those_after_it() -> None:
    writer, one, other, go_on = Writer(), Owner(), Owner(), threading.Event()
    writer.submit(lambda: None, "first", one)
    writer.submit(lambda: go_on.wait(30), "second", other)
    writer.wait_for(one)
    assert writer.busy
    assert (writer.is_done(one), writer.is_done(other)) == (True, False)
    go_on.set()
    assert writer.wait(30)


def test_each_owner_is_given_its_own_failures_and_each_once() -> None:
    writer, one, other = Writer(), Owner(), Owner()
    for text in ("first", "second"):
        writer.submit(lambda text=text: _fail(text), text, one)  # type: ignore[misc]
    assert writer.wait(30)
    assert (writer.failed(one), writer.failed(other), writer.take_failure(other)) == (True, False, None)
    for text in ("first", "second"):
        with pytest.raises(OSError, match=text):
            writer.raise_failure(one)
    writer.raise_failure(one)
    writer.report_left()


def test_a_failure_that_its_owner_did_not_ask_for_before_it_ended_is_one_warning() -> None:
    runs = [True]
    writer, owner = Writer(), Owner(lambda: runs[0])
    writer.submit(lambda: _fail("no space"), "a file", owner)
    assert writer.wait(30)
    writer.report_left()
    runs.clear()
    runs.append(False)
    with pytest.warns(RuntimeWarning, match=r"a write of an earlier fit\(\) failed: no space"):
        writer.finish_earlier()
    writer.report_left()


def test_a_warning_that_is_an_error_costs_neither_the_thread_nor_the_report() -> None:
    writer, done = Writer(), list[int]()
    writer.submit(lambda: _fail("no space"), "a file", Owner(lambda: False))  # pytest turns warnings into errors
    writer.submit(lambda: done.append(1), "another")
    assert writer.wait(30)
    assert done == [1]
    with pytest.warns(RuntimeWarning, match="no space"):
        writer.report_left()

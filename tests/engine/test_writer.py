"""The background thread: what its priority is, and that it takes more where it got nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from keras_dist_callbacks.engine import writer as writer_module
from keras_dist_callbacks.engine.background import CpuTimes, Priority, cpu_times
from keras_dist_callbacks.engine.save_queue import SaveQueue
from keras_dist_callbacks.engine.writer import Writer
from tests.support.busy_machine import REAL_TAKE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux alone")

_STARVED = CpuTimes(ran=0.1, waited=5.0)


@pytest.fixture(autouse=True)
def the_real_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Priority, "take", REAL_TAKE)


def _own() -> tuple[int, int]:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.sched_getscheduler(0)


def _in_thread(priority: Priority, share: float = 0.0) -> tuple[int, int]:
    found: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: (priority.take(share), found.append(_own())))
    thread.start()
    thread.join()
    return found[0]


def test_jobs_run_at_the_lowest_priority_and_training_keeps_its_own() -> None:
    before, found = _own(), list[tuple[int, int]]()
    writer = Writer()
    writer.submit(lambda: found.append(_own()), "a job")
    assert writer.wait(30)
    assert found == [(19, os.SCHED_BATCH)]
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
    assert found == [(19, os.SCHED_BATCH)]


def test_after_a_thread_that_starved_the_next_takes_more() -> None:
    priority = Priority()
    priority.learn(_STARVED)
    assert _in_thread(priority) == (10, os.SCHED_OTHER)


@pytest.mark.parametrize("later", [CpuTimes(0.1, 0.2), None])
def test_it_keeps_taking_more_until_one_had_little_to_wait_for(later: CpuTimes | None) -> None:
    priority = Priority()
    priority.learn(_STARVED)
    priority.learn(later)
    assert _in_thread(priority)[0] == 10
    priority.learn(CpuTimes(ran=0.1, waited=0.05))
    assert _in_thread(priority) == (19, os.SCHED_BATCH)


@pytest.mark.parametrize("times", [CpuTimes(ran=0.01, waited=0.3), CpuTimes(ran=5.0, waited=6.0), None])
def test_a_short_or_a_proportionate_wait_is_not_starvation(times: CpuTimes | None) -> None:
    priority = Priority()
    priority.learn(times)
    assert _in_thread(priority)[0] == 19


def test_after_a_thread_that_was_held_up_while_the_next_backup_came_due_the_next_takes_more() -> None:
    priority = Priority()
    priority.learn(CpuTimes(ran=0.02, waited=0.2))
    assert _in_thread(priority)[0] == 19
    priority.learn(CpuTimes(ran=0.02, waited=0.2), late=True)
    assert _in_thread(priority) == (10, os.SCHED_OTHER)
    priority.learn(CpuTimes(ran=0.02, waited=0.01), late=True)
    assert _in_thread(priority)[0] == 10, "whoever is late all the same gets no less"
    priority.learn(CpuTimes(ran=0.02, waited=0.01))
    assert _in_thread(priority) == (19, os.SCHED_BATCH)


def test_a_disk_that_is_slow_takes_no_more_of_the_processor() -> None:
    priority = Priority()
    priority.learn(CpuTimes(ran=0.2, waited=0.1), late=True)
    assert _in_thread(priority) == (19, os.SCHED_BATCH)


def test_a_write_that_was_held_up_gets_more_priority_again() -> None:
    priority, found = Priority(), []
    for _ in range(4):
        found.append(_in_thread(priority)[0])
        priority.learn(CpuTimes(ran=0.02, waited=0.2), late=True)
    assert found == [19, 10, 1, 0]


@pytest.mark.parametrize(
    ("share", "niceness"), [(0.0, 19), (1e-9, 19), (0.004, 19), (0.01, 15), (0.1, 3), (0.16, 0), (0.2, 0), (1e300, 0)]
)
def test_a_thread_gets_what_it_needs_to_be_done_in_time(share: float, niceness: int) -> None:
    got, policy = _in_thread(Priority(), share)
    assert got == niceness
    assert policy == (os.SCHED_BATCH if niceness == 19 else os.SCHED_OTHER)
    assert niceness == 0 or _part_beside_another(niceness) >= 3 * share or niceness == 19
    assert niceness in (0, 19) or _part_beside_another(niceness + 1) < 3 * share, "and not more"


@pytest.mark.parametrize(("share", "niceness"), [(0.0, 19), (0.1, 8), (0.2, 5)])
def test_training_that_is_nice_itself_keeps_its_share(share: float, niceness: int) -> None:
    found: list[int] = []

    def nice() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        found.append(_in_thread(Priority(), share)[0])

    training = threading.Thread(target=nice)
    training.start()
    training.join()
    assert found == [niceness]


def _part_beside_another(niceness: int) -> float:
    weight = 1.25**-niceness
    return weight / (1 + weight)


_WITHOUT_PRIVILEGES = """
import json, os, resource, threading
from keras_dist_callbacks.engine.writer import Writer

resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
if os.getuid() == 0:
    os.setgroups([])
    os.setresuid(65534, 65534, 65534)
writer, found, go_on = Writer(), [], threading.Event()
note = lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
writer.submit(lambda: (note(), go_on.wait(60)), "at the lowest priority")
writer.submit(note, "behind it", share=0.1)
writer.submit(note, "at that of training", urgent=True)
go_on.set()
assert writer.wait(60)
print(json.dumps(found))
"""


@pytest.mark.process
def test_what_waits_for_a_thread_of_the_lowest_priority_gets_more_without_a_right_to_raise_any() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PRIVILEGES], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [19, 3, 0]


@pytest.mark.parametrize(("behind", "then"), [("backup", 10), ("artefact", 19)])
def test_a_backup_after_a_backup_is_late_and_nothing_else(
    behind: str, then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    writer, go_on = Writer(), threading.Event()
    line = SaveQueue(writer)
    monkeypatch.setattr(writer_module, "cpu_times", lambda: CpuTimes(ran=0.02, waited=0.2))
    first, second = (lambda: go_on.wait(10)), (lambda: found.append(_own()[0]))
    if behind == "backup":
        line.enter(1, first, "backup", lasting=False, urgent=False)
        line.enter(2, second, "backup", lasting=False, urgent=False)
    else:
        writer.submit(first, "an artefact")
        line.enter(1, second, "backup", lasting=False, urgent=False)
    go_on.set()
    assert writer.wait(10)
    assert found == [then]


def test_each_thread_of_the_writer_is_judged_by_its_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    writer = Writer()
    monkeypatch.setattr(writer_module, "cpu_times", lambda: _STARVED)
    for _ in range(2):
        writer.submit(lambda: found.append(_own()[0]), "a job")
        assert writer.wait(30)
    assert found == [19, 10]


def test_the_times_of_a_thread_are_its_own() -> None:
    before = cpu_times()
    assert before is not None
    while (now := cpu_times()) is not None and now.ran == before.ran:
        sum(range(10_000))
    assert now is not None
    found: list[CpuTimes | None] = []
    thread = threading.Thread(target=lambda: found.append(cpu_times()))
    thread.start()
    thread.join()
    assert found[0] is not None
    assert found[0].ran < now.ran


def test_each_job_has_a_thread_and_a_priority_of_its_own() -> None:
    """Else what is queued after the first backup would be written at training's priority, for the complete run."""
    found, learned = list[tuple[int, int]](), list[CpuTimes | None]()
    writer = Writer()
    writer._priority.learn = lambda times, **_: learned.append(times)  # type: ignore[method-assign]
    go_on = threading.Event()
    writer.submit(lambda: (go_on.wait(10), found.append(_own())), "first", urgent=True)
    for _ in range(2):
        writer.submit(lambda: found.append(_own()), "in line")
    go_on.set()
    assert writer.wait(10)
    assert found == [_own(), (19, os.SCHED_BATCH), (19, os.SCHED_BATCH)]
    assert len(learned) == 3


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


def test_where_no_further_thread_starts_the_one_there_is_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, done, go_on = Writer(), list[int](), threading.Event()
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "kdc-writer-job":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = _own()
    writer.submit(lambda: (go_on.wait(10), done.append(1)), "first")
    for number in (2, 3):
        writer.submit(lambda number=number: done.append(number), "in line")  # type: ignore[misc]
    go_on.set()
    assert writer.wait(10)
    assert done == [1, 2, 3]
    assert _own() == before


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
        ticket = writer.submit(lambda number=number: done.append(number), "a job", urgent=True)  # type: ignore[misc]
        if number % 3 and writer.withdraw(ticket):
            withdrawn.append(number)
    assert writer.wait(30)
    assert sorted(done + withdrawn) == list(range(3000))
    assert done == sorted(done)

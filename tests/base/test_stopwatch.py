"""Where the time of a process goes."""

from __future__ import annotations

import time

import pytest

from keras_dist_callbacks.base import machine
from keras_dist_callbacks.base.process import PARTS
from keras_dist_callbacks.base.stopwatch import Stopwatch, stopwatch


class Clock:
    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "time", lambda: clock.now + 5000.0)
    monkeypatch.setattr(machine, "process_start", lambda: 5990.0)
    monkeypatch.setitem(PARTS, Stopwatch, Stopwatch())
    return clock


def test_each_second_belongs_to_one_category_from_the_begin_of_the_process_on(clock: Clock) -> None:
    watch = stopwatch()
    clock.now += 5
    watch.enter("training_prep")
    clock.now += 2
    with watch.during("unproductive_checkpoint_restore_time"):
        clock.now += 1
    clock.now += 1
    watch.enter("training")
    clock.now += 7
    assert watch.lap.began == 5990.0
    assert watch.lap.read() == {
        "program_startup": 15.0,
        "training_prep": 3.0,
        "unproductive_checkpoint_restore_time": 1.0,
        "training": 7.0,
    }


def test_the_time_of_a_second_run_begins_where_the_first_has_ended(clock: Clock) -> None:
    watch = stopwatch()
    watch.enter("training")
    clock.now += 5
    watch.end_lap()
    clock.now += 3
    watch.enter("training")
    clock.now += 4
    assert watch.lap.began == 6005.0
    assert watch.lap.read() == {"other": 3.0, "training": 4.0}


def test_what_a_spare_process_has_done_before_it_is_needed_does_not_count(clock: Clock) -> None:
    watch = stopwatch()
    clock.now += 100
    watch.begin_at(clock.now + 5000.0 - 3)  # it was told to begin, and had not imported everything
    clock.now += 2
    assert watch.lap.began == 6097.0
    assert watch.lap.read() == {"program_startup": 5.0}

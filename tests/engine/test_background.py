"""What share of a processor a backup is thought to need until the next ones come due."""

from __future__ import annotations

import sys

import pytest

from keras_dist_callbacks.engine import background as priority_module
from keras_dist_callbacks.engine.background import CpuShareEstimator, CpuTimes, cpu_times
from keras_dist_callbacks.engine.save_queue import SaveQueue
from keras_dist_callbacks.engine.writer import Writer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux alone")


def _due_at(monkeypatch: pytest.MonkeyPatch, *times: float, ran: float = 0.06) -> list[float]:
    pace, found = CpuShareEstimator(), []
    spent = iter([CpuTimes(1.0, 0.0), CpuTimes(1.0 + ran, 9.0)] * len(times))
    monkeypatch.setattr(priority_module, "cpu_times", lambda: next(spent))
    for time in times:
        monkeypatch.setattr(priority_module.time, "monotonic", lambda time=time: time)
        found.append(round(pace.due(), 4))
        with pace.done():
            pass
    return found


def test_what_a_backup_needs_is_known_from_the_second_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _due_at(monkeypatch, 100, 100.6, 101.2) == [0.0, 0.1, 0.1]


def test_a_pause_does_not_slow_down_the_backup_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _due_at(monkeypatch, 100, 101, 102, 132, 133) == [0.0, 0.06, 0.06, 0.06, 0.06]


def test_two_backups_close_to_each_other_are_not_hurried_as_one_may_be_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _due_at(monkeypatch, 100, 110, 110.01, 120, 120.01)[2:] == [0.012, 0.012, 0.012]


def test_what_was_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _due_at(monkeypatch, 100, 101, 102, *range(112, 222, 10))
    assert found[3] == 0.06
    assert found[-1] == 0.006


def test_backups_due_in_the_same_instant_need_what_no_one_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _due_at(monkeypatch, 100, 100) == [0.0, 0.0]


def test_what_failed_does_not_tell_how_long_it_takes() -> None:
    pace = CpuShareEstimator()
    with pytest.raises(ValueError, match="no space"), pace.done():
        raise ValueError("no space")
    pace.due()
    assert pace.due() == 0.0


def test_a_line_asks_for_what_its_backups_need(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, asked = Writer(), list[float]()
    monkeypatch.setattr(writer._priority, "take", asked.append)
    line = SaveQueue(writer)

    def busy() -> None:
        before = cpu_times()
        while before is not None and (now := cpu_times()) is not None and now.ran < before.ran + 0.01:
            sum(range(1000))

    for save in (1, 2):
        line.enter(save, busy, "backup", lasting=False, urgent=False)
        assert writer.wait(30)
    assert asked[0] == 0.0
    assert asked[1] > 0.0

"""Backups that are skipped: a warning by the seconds of training at risk, not by their number."""

from __future__ import annotations

import pytest

from keras_dist_callbacks.run.engine import skipped_saves
from keras_dist_callbacks.run.engine.skipped_saves import SkippedSaves


class Clock:
    """Time as the test says it is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(skipped_saves, "time", found)
    return found


def late_at(saves: SkippedSaves, clock: Clock, seconds: float, steps: range, every: int = 1) -> list[str]:
    """One is late after each of these steps, `seconds` apart; the warnings."""
    warned = []
    for step in steps:
        clock.now += seconds
        warned.append(saves.record_late(step, every))
    return [note for note in warned if note]


def test_many_skips_within_seconds_are_no_reason_to_warn(clock: Clock) -> None:
    saves = SkippedSaves()
    saves.record_start(1)
    assert late_at(saves, clock, 0.01, range(2, 2000)) == []
    assert saves.summary() is None


def test_training_at_risk_for_half_a_minute_is_warned_of_once(clock: Clock) -> None:
    saves = SkippedSaves()
    saves.record_start(100)
    (warning,) = late_at(saves, clock, 0.1, range(110, 1000), every=10)
    assert "a kill now loses the last 30 s of training" in warning
    assert "because the backup at step 100 is still being written after 30 s" in warning
    assert "save_freq=310 or more" in warning
    saves.record_commit()
    saves.record_start(1001)
    assert str(saves.summary()).startswith("89 of 91 backups were skipped")


def test_where_backups_are_rare_by_intention_several_intervals_must_be_at_risk(clock: Clock) -> None:
    saves = SkippedSaves()
    saves.record_start(100)
    assert late_at(saves, clock, 60.0, range(200, 400, 10), every=100) == []
    assert len(late_at(saves, clock, 60.0, range(400, 500, 10), every=100)) == 1


def test_what_is_committed_is_not_at_risk_although_others_were_skipped(clock: Clock) -> None:
    saves = SkippedSaves()
    for step in range(0, 1000, 3):
        saves.record_start(step)
        assert late_at(saves, clock, 5.0, range(step + 1, step + 3)) == []
        saves.record_commit()
    assert saves.summary() is None


def test_what_was_saved_long_before_it_was_committed_counts_from_when_it_was_saved(clock: Clock) -> None:
    saves = SkippedSaves()
    saves.record_start(1)
    assert late_at(saves, clock, 1.0, range(2, 29)) == []
    saves.record_commit()
    saves.record_start(29)
    (warning,) = late_at(saves, clock, 1.0, range(30, 40))
    assert "loses the last 30 s" in warning

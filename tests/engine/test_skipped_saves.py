"""Backups that are skipped: a warning by the seconds of training at risk, not by their number."""

from __future__ import annotations

import pytest

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.engine import save_queue
from keras_dist_callbacks.engine.save_queue import SkippedSaves


def at(step: int) -> Position:
    return Position("within", 0, step, step)


class Clock:
    """Time as the test says it is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(save_queue, "time", found)
    return found


def skip_every(saves: SkippedSaves, clock: Clock, seconds: float, steps: range) -> list[str]:
    """One due and skipped at each step, `seconds` apart; the warnings."""
    warned = []
    for step in steps:
        clock.now += seconds
        saves.record_due(at(step))
        warned.append(saves.record_skip(at(step)))
    return [note for note in warned if note]


def test_many_skips_within_seconds_are_no_reason_to_warn(clock: Clock) -> None:
    saves = SkippedSaves()
    saves.record_due(at(1))
    saves.record_start(at(1))
    assert skip_every(saves, clock, 0.01, range(2, 2000)) == []
    assert saves.summary() is None


def test_training_at_risk_for_half_a_minute_is_warned_of_once(clock: Clock) -> None:
    saves = SkippedSaves()
    saves.record_due(at(100))
    saves.record_start(at(100))
    (warning,) = skip_every(saves, clock, 1.0, range(110, 1000, 10))
    assert "a kill now loses the last 30 s of training" in warning
    assert "because the backup at step 100 is still being written after 30 s" in warning
    assert "save_freq=300 or more" in warning
    assert str(saves.summary()).startswith("89 of 90 backups were skipped")


def test_where_backups_are_rare_by_intention_several_intervals_must_be_at_risk(clock: Clock) -> None:
    saves = SkippedSaves()
    saves.record_due(at(1))
    saves.record_start(at(1))
    assert skip_every(saves, clock, 600.0, range(2, 4)) == []
    assert len(skip_every(saves, clock, 600.0, range(4, 6))) == 1


def test_what_is_committed_is_not_at_risk_although_others_were_skipped(clock: Clock) -> None:
    saves = SkippedSaves()
    for step in range(0, 1000, 3):
        saves.record_due(at(step))
        saves.record_start(at(step))
        assert skip_every(saves, clock, 5.0, range(step + 1, step + 3)) == []
        saves.record_commit(at(step))
    assert saves.summary() is None
    assert len(saves._due) <= 3


def test_what_was_saved_long_before_it_was_committed_counts_from_when_it_was_saved(clock: Clock) -> None:
    saves = SkippedSaves()
    saves.record_due(at(1))
    saves.record_start(at(1))
    assert skip_every(saves, clock, 1.0, range(2, 29)) == []
    saves.record_commit(at(1))
    (warning,) = skip_every(saves, clock, 1.0, range(29, 40))
    assert "loses the last 30 s" in warning

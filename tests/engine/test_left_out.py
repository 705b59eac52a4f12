"""Backups that are left out: told at the first streak, and counted."""

from __future__ import annotations

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.engine.left_out import LeftOut


def at(step: int) -> Position:
    return Position("within", 0, step, step)


def test_the_first_streak_is_told_once_with_an_interval_that_fits() -> None:
    found = LeftOut()

    def another(step: int) -> str | None:
        found.due()
        return found.another(at(step))

    found.due()
    found.begun(at(100))
    told = [another(step) for step in range(207, 1000, 107)]
    assert [note is not None for note in told] == [False, False, True, False, False, False, False, False]
    assert "3 backups in a row were left out: the one at step 100 is still being written" in str(told[2])
    assert "save_freq=330 or more" in str(told[2])  # 321 steps so far
    found.due()
    found.begun(at(1000))
    assert [another(1000 + step) for step in range(4)] == [None] * 4
    assert str(found.in_all()).startswith("12 of 14 backups were left out")


def test_single_ones_are_only_counted() -> None:
    found = LeftOut()
    for step in range(1, 30, 3):
        for _ in range(3):
            found.due()
        found.begun(at(step))
        assert found.another(at(step + 1)) is None
        assert found.another(at(step + 2)) is None
    assert str(found.in_all()).startswith("20 of 30 backups were left out")


def test_nothing_is_said_where_none_is_left_out() -> None:
    found = LeftOut()
    found.begun(at(1))
    assert found.in_all() is None

"""Backups that are left out because the one before is still being written."""

from __future__ import annotations

import time

from keras_dist_callbacks.backups.snapshot import Position

_STREAK = 3


class LeftOut:
    """Counts them, and tells of the first streak while there is still something to be done about it."""

    def __init__(self) -> None:
        self._count = self._saves = self._in_a_row = 0
        self._told = False
        self._step = 0
        self._since = 0.0

    def due(self) -> None:
        """It is time for a backup."""
        self._saves += 1

    def begun(self, position: Position) -> None:
        """One is going to be written now, or as soon as the queue comes to it."""
        self._in_a_row, self._step, self._since = 0, position.step, time.monotonic()

    def another(self, position: Position) -> str | None:
        """One is left out for the one that is due at `position`; what to say, if it is time to."""
        self._count += 1
        self._in_a_row += 1
        if self._told or self._in_a_row < _STREAK:
            return None
        self._told = True
        steps = _rounded_up(position.step - self._step)
        return (
            f"{_STREAK} backups in a row were left out: the one at step {self._step} is still being written after "
            f"{time.monotonic() - self._since:.1f} s, and a kill now loses what came after the backup before it. Save "
            f"less often, with save_freq={steps} or more, or let save_freq='auto' find out"
        )

    def in_all(self) -> str | None:
        """What to say at the end."""
        if not self._count:
            return None
        return (
            f"{self._count} of {self._saves} backups were left out because the one before was still being written; "
            "save less often, or wait with when_busy='wait'"
        )


def _rounded_up(steps: int) -> int:
    """To two digits that differ from zero at most: nobody measures an interval more finely."""
    unit: int = 10 ** max(0, len(str(steps)) - 2)
    return -(-steps // unit) * unit

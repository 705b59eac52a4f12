"""Backups that are skipped because the one before is still being written, and how much training that puts at risk."""

from __future__ import annotations

import time

from keras_dist_callbacks.backups.snapshot import Position

_LEAST_RISK = 30.0  # seconds of training that no backup holds
_INTERVALS = 3  # and as many times the time between two backups that are due


class SkippedSaves:
    """Counts them, and warns once when a kill would lose much more training than the user asked for."""

    def __init__(self) -> None:
        self._count = self._saves = 0
        self._has_warned = False
        self._started = (0, 0.0)  # step and time of the backup that is being written
        self._due: dict[int, float] = {}  # when, by step, since the newest committed backup
        self._first_due = self._last_due = self._safe_until = 0.0

    def record_due(self, position: Position) -> None:
        """It is time for a backup."""
        now = time.monotonic()
        if not self._saves:
            self._first_due = self._safe_until = now
        self._saves, self._last_due, self._due[position.step] = self._saves + 1, now, now

    def record_start(self, position: Position) -> None:
        """One is going to be written now, or as soon as the queue comes to it."""
        self._started = (position.step, time.monotonic())

    def record_commit(self, position: Position) -> None:
        """One is committed: training up to where it was due is safe."""
        self._safe_until = self._due.get(position.step, self._safe_until)
        self._due = {step: due for step, due in dict(self._due).items() if step > position.step}

    def record_skip(self, position: Position) -> str | None:
        """One is skipped or superseded when another one is due at `position`; the warning, if it is time for it."""
        self._count += 1
        now = time.monotonic()
        at_risk = now - self._safe_until
        interval = (self._last_due - self._first_due) / max(1, self._saves - 1)
        if self._has_warned or at_risk < max(_LEAST_RISK, _INTERVALS * interval):
            return None
        self._has_warned = True
        step, since = self._started
        return (
            f"backups are skipped: a kill now loses the last {at_risk:.0f} s of training, because the backup at step "
            f"{step} is still being written after {now - since:.0f} s. Save less often, with "
            f"save_freq={_rounded_up(position.step - step)} or more, or let save_freq='auto' choose"
        )

    def summary(self) -> str | None:
        """What to say at the end, where there was a warning."""
        if not self._has_warned:
            return None
        return (
            f"{self._count} of {self._saves} backups were skipped because the one before was still being written; "
            "save less often, or wait with when_busy='wait'"
        )


def _rounded_up(steps: int) -> int:
    """To two digits that differ from zero at most, as people choose an interval."""
    unit: int = 10 ** max(0, len(str(steps)) - 2)
    return -(-steps // unit) * unit

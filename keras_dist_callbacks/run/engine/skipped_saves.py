"""Backups that are not taken because the one before was still being written when they were due."""

from __future__ import annotations

import time

_LEAST_RISK = 30.0  # seconds of training that no backup holds
_INTERVALS = 3  # and as many times the steps between two backups that are due


class SkippedSaves:
    """Counts them, and warns once when a kill would lose much more training than the user asked for."""

    def __init__(self) -> None:
        self._taken = self._skipped = 0
        self._late: tuple[int, int] | None = None  # the step at which a late backup was due, and the interval
        self._newest = self._safe = (0, 0.0)  # step and time of the newest snapshot, and of the newest committed one
        self._has_warned = False

    def record_start(self, step: int) -> None:
        """A backup is taken: of those that were due since it was, none is."""
        if self._late is not None:
            due, every = self._late
            self._skipped, self._late = self._skipped + step // every - due // every, None
        self._newest = (step, time.monotonic())
        if not self._taken:
            self._safe = self._newest
        self._taken += 1

    def record_commit(self) -> None:
        """The backup that was taken last is committed."""
        self._safe = self._newest

    def record_late(self, step: int, every: int) -> str | None:
        """A backup waits for the one that is being written; the warning, if it is time for it.

        Args:
            step: Batches trained.
            every: Batches between two backups, as the user asked for them.
        """
        self._late = self._late or (step, every)
        now = time.monotonic()
        (safe, safe_at), (written, since) = self._safe, self._newest
        if self._has_warned or now - safe_at < _LEAST_RISK or step - safe < _INTERVALS * every:
            return None
        self._has_warned = True
        return (
            f"backups are skipped: a kill now loses the last {now - safe_at:.0f} s of training, because the backup at "
            f"step {written} is still being written after {now - since:.0f} s. Save less often, with "
            f"save_freq={_rounded_up(step - written)} or more, or let save_freq='auto' choose"
        )

    def summary(self) -> str | None:
        """What to say at the end, where there was a warning."""
        if not self._has_warned:
            return None
        return (
            f"{self._skipped} of {self._taken + self._skipped} backups were skipped because the one before was still "
            "being written; save less often, or wait with when_busy='wait'"
        )


def _rounded_up(steps: int) -> int:
    """To two digits that differ from zero at most, as people choose an interval."""
    unit: int = 10 ** max(0, len(str(steps)) - 2)
    return -(-steps // unit) * unit

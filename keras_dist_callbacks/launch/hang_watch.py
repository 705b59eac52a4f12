"""Whether a worker hangs: it reports no progress for longer than its phase ever took."""

from __future__ import annotations

from typing import Literal

from keras_dist_callbacks.base.progress_file import Phase, ProgressReport

_TIMES = 5
_LEAST_SECONDS = 60.0
_SEEN = 2


class HangWatch:
    """Follows the reports of one worker from its start.

    What a process does outside of its phases, such as its start and the first step of each `fit()`, has no limit.

    Args:
        timeout: Seconds for any phase; "auto" for five times its longest duration and at least a minute, once it was
            complete twice; None for no limit.
    """

    def __init__(self, timeout: float | Literal["auto"] | None) -> None:
        self._timeout = timeout
        self._last: ProgressReport | None = None
        self._waited = 0.0  # since the last progress
        self._longest: dict[Phase, float] = {}
        self._steps = 0

    def look(self, report: ProgressReport, seconds: float) -> float | None:
        """Takes a report; returns the limit that the worker has exceeded, or None.

        Args:
            report: What the worker says now.
            seconds: Since the last look, or less: a launcher that was stopped itself has seen nothing.
        """
        before, self._last = self._last, report
        self._waited += seconds
        if before is None or (before.entries, before.step) != (report.entries, report.step):
            if before is not None:  # its phase, or its step, is over
                self._longest[before.phase] = max(self._waited, self._longest.get(before.phase, 0.0))
                self._steps += before.phase is Phase.STEP
            self._waited = 0.0
            return None
        if report.phase is Phase.OUTSIDE:
            return None
        limit = self._timeout
        if limit == "auto":
            seen = self._steps if report.phase is Phase.STEP else report.entries[report.phase] - 1
            longest = self._longest.get(report.phase, 0.0)
            limit = max(_LEAST_SECONDS, _TIMES * longest) if seen >= _SEEN else None
        return limit if limit is not None and self._waited > limit else None

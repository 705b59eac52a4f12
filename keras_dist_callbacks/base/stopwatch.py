"""What this process has done with its time so far, by category."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from keras_dist_callbacks.base import machine
from keras_dist_callbacks.base.process import Shared, shared

Category = Literal[
    "program_startup",
    "training_prep",
    "training",
    "unproductive_checkpoint_save_time",
    "unproductive_checkpoint_restore_time",
    "data_loading_sync",
    "custom_badput_events/eval_step",
    "wasted_progress_from_disruption",
    "infrastructure_recovery_from_disruption",
    "other",
]
"""Where the time of a job goes; the names are those of Google's ml-goodput-measurement, but for the productive part."""


@dataclass(frozen=True)
class Lap:
    """What the process does for one run: from its own begin, or the end of the run before, on.

    Attributes:
        began: When that was, in seconds since 1970.
        before: What the process had done before, in seconds by category.
    """

    began: float
    before: Mapping[Category, float]

    def read(self) -> dict[str, float]:
        """Seconds by category since then, without what was not done."""
        now = stopwatch().read()
        found = {category: round(seconds - self.before.get(category, 0.0), 3) for category, seconds in now.items()}
        return {category: seconds for category, seconds in found.items() if seconds > 0}


class Stopwatch(Shared):
    """Is always in one category; the time is that of the monotonic clock."""

    def __init__(self) -> None:
        self.begin_at(machine.process_start())

    def begin_at(self, began: float) -> None:
        """What was before does not count.

        Args:
            began: In seconds since 1970.
        """
        now = time.time()
        began = min(began, now)
        self._category: Category = "program_startup"
        self._since = time.monotonic() - (now - began)
        self._seconds: dict[Category, float] = {}
        self.lap = Lap(began, {})

    def in_child(self) -> Self:
        """A fork does not train for its parent."""
        return type(self)()

    def enter(self, category: Category) -> Category:
        """Something else begins; returns what has ended."""
        before, now = self._category, time.monotonic()
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._category, self._since = category, now
        return before

    @contextlib.contextmanager
    def during(self, category: Category) -> Iterator[None]:
        """Enters a category for the `with` block, and the one before again after it."""
        before = self.enter(category)
        try:
            yield
        finally:
            self.enter(before)

    def read(self) -> Mapping[Category, float]:
        """Seconds by category, up to now."""
        found, running = dict(self._seconds), time.monotonic() - self._since
        found[self._category] = found.get(self._category, 0.0) + running
        return found

    def end_lap(self) -> None:
        """A run has ended: what follows belongs to the next one."""
        self.enter("other")
        self.lap = Lap(time.time(), self.read())


def stopwatch() -> Stopwatch:
    """That of this process."""
    return shared(Stopwatch)

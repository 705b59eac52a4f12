"""The journal of a run's training, as each backup of the run holds it."""

from __future__ import annotations

import json
import os

import msgspec

from keras_dist_callbacks.backups.journal import AttemptRecord, Journal
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.progress_file import BEFORE
from keras_dist_callbacks.base.stopwatch import stopwatch

_CLOCK_SECONDS = 1.0  # by which the times of two processes may differ


class _Before(msgspec.Struct):
    """What a launcher has seen of the process before this one."""

    began: float
    ended: float
    step: int


class Chronicle:
    """Knows the processes before this one, and what this one has done so far.

    Attributes:
        past: The journal of the processes before.
        end: How the run ends; empty as long as it goes on.
    """

    def __init__(self) -> None:
        self._lap = stopwatch().lap
        self.past = Journal()
        self._generation, self._first = 0, 0
        self.end = ""

    def begin(self, generation: int, first: int) -> None:
        """The run has claimed its directory.

        Args:
            generation: The run's number.
            first: Steps that were trained before.
        """
        self._generation, self._first = generation, first
        told, newest = os.environ.get(BEFORE), self.past.newest
        before = validation.convert(json.loads(told), _Before) if told else None
        if before is not None and newest is not None and newest.began > before.began - _CLOCK_SECONDS:
            after = max(0.0, before.ended - newest.heard)
            self.past = self.past.with_attempt(msgspec.structs.replace(newest, after=after, after_step=before.step))

    def now(self, step: int) -> Journal:
        """Returns the journal as it is now.

        Args:
            step: Steps that are trained.
        """
        own = AttemptRecord(self._generation, self._lap.began, self._first, step, self._lap.read(), self.end)
        return self.past.with_attempt(own)

"""At which step the next backup is due, the same one on every worker.

A fixed interval needs no agreement. A measured one is decided by the chief at a step where all workers are
anyway, a save or the end of a short calibration, so that no other step costs any communication.
"""

from __future__ import annotations

import collections
import math
import statistics
import time
from collections.abc import Callable

from keras_dist_callbacks.checkpointing.policies import SavePolicy
from keras_dist_callbacks.cluster import Cluster

_CALIBRATION_STEPS = 20
_FIRST_INTERVAL = 50  # what a write in the background costs is known only after it
_REMEMBERED_STEPS = 101
_REMEMBERED_SAVES = 3


class Schedule:
    """Tells after each step whether a backup is due.

    Args:
        policy: What was asked for.
        cluster: Who has to agree.
        clock: Seconds; for tests.
    """

    def __init__(self, policy: SavePolicy, cluster: Cluster, clock: Callable[[], float] = time.perf_counter) -> None:
        self.at_epoch_end = policy.at_epoch_end
        self._every = policy.every_steps
        self._meter = _Meter(policy, clock) if policy.is_measured else None
        self._cluster = cluster
        self._last = 0
        self._next = _CALIBRATION_STEPS
        self._calibrated = policy.every_seconds is None

    def begin(self, step: int) -> None:
        """Training starts, or goes on, at `step`."""
        self._last = step
        self._next = step + _CALIBRATION_STEPS

    def due(self, step: int, writing: bool) -> bool:
        """Whether a backup is to be taken now.

        With a fixed interval it depends on the count of batches alone, so that all workers decide alike, before and
        after a resume.

        Args:
            step: Batches trained.
            writing: Whether a backup is being written.
        """
        if self._every is not None:
            last, self._last = self._last, step
            return step // self._every > last // self._every
        if self._meter is None:
            return False
        self._meter.note(step - self._last, writing)
        self._last = step
        if step < self._next:
            return False
        if not self._calibrated:
            self._calibrated = True
            self.saved(0.0)
            return False
        return True

    def saved(self, blocked: float) -> None:
        """A backup was taken, or skipped; every worker calls this at the same step.

        Args:
            blocked: Seconds that it kept training.
        """
        if self._meter is not None:
            interval = self._cluster.broadcast(self._meter.interval(blocked), "save interval")
            self._next = self._last + int(interval)


class _Meter:
    """What steps and saves take."""

    def __init__(self, policy: SavePolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._before: float | None = None
        self._quiet: collections.deque[float] = collections.deque(maxlen=_REMEMBERED_STEPS)
        self._disturbed: list[float] = []
        self._blocked: float | None = None  # by the save whose write the disturbed steps ran beside
        self._costs: collections.deque[float] = collections.deque(maxlen=_REMEMBERED_SAVES)
        self._since = clock()
        self._steps = 0

    def note(self, steps: int, writing: bool) -> None:
        """Steps were trained since the last call."""
        now = self._clock()
        self._steps += steps
        if self._before is not None and steps > 0:
            duration = (now - self._before) / steps
            if writing:
                self._disturbed += [duration] * steps
            else:
                self._quiet.append(duration)
        self._before = now

    def interval(self, blocked: float) -> int:
        """Steps until the next backup, given what the one just taken has cost so far."""
        now = self._clock()
        self._before = now  # what the save kept is no part of the next step
        if self._policy.every_seconds is not None:
            per_step = (now - self._since) / max(1, self._steps)
            self._since, self._steps = now, 0
            return max(1, round(self._policy.every_seconds / max(per_step, 1e-9)))
        return self._affordable(blocked)

    def _affordable(self, blocked: float) -> int:
        step = statistics.median(self._quiet) if self._quiet else 0.0
        written = len(self._disturbed)
        if self._blocked is not None:
            # One slow step for another reason is no cost of the backup: the sum tells, not each step.
            self._costs.append(self._blocked + max(0.0, sum(self._disturbed) - step * written))
        first = self._blocked is None
        self._blocked, self._disturbed = blocked, []
        cost = max(statistics.fmean(self._costs) if self._costs else 0.0, blocked)
        steps = math.ceil(cost / (self._policy.max_overhead or 1.0) / step) if step > 0 else _FIRST_INTERVAL
        return max(steps, written + 1, _FIRST_INTERVAL if first else 1)

"""When the next backup is due: the user's policy, and the step, which is the same on every worker.

The chief decides at the steps where a backup is due and, of a measured interval, at a few steps after the begin: it
alone knows whether the one before is still being written, and what saves cost. No other step costs any communication.
"""

from __future__ import annotations

import collections
import datetime
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.options import MAX_OVERHEAD

_Share = Annotated[float, Meta(gt=0, lt=1, description="between 0 and 1, such as 0.02 for 2 %")]


@dataclass(frozen=True)
class SavePolicy:
    """When a backup is taken; at the end of each epoch if nothing else is given.

    Attributes:
        every_steps: Batches between two backups.
        every_seconds: Seconds between two backups, about.
        max_overhead: Share of the training time that backups may cost; the interval follows from it.
        at_end_only: No backup but at the end, and where a run is left early.
    """

    every_steps: int | None = None
    every_seconds: float | None = None
    max_overhead: float | None = None
    at_end_only: bool = False

    @property
    def at_epoch_end(self) -> bool:
        """Whether the end of an epoch is a time to save."""
        return self.every_steps is None and not self.is_measured and not self.at_end_only

    @property
    def is_measured(self) -> bool:
        """Whether the interval in steps follows from measured times."""
        return self.every_seconds is not None or self.max_overhead is not None


def parse_save_freq(save_freq: Any, max_overhead: float = MAX_OVERHEAD) -> SavePolicy:
    """The policy that the arguments stand for.

    Raises:
        ConfigError: `save_freq` is neither `"epoch"`, `"auto"`, an integer of 1 or more nor a positive timedelta, or
            `max_overhead` is not a share.
    """
    share = validation.check("max_overhead", max_overhead, _Share)
    if isinstance(save_freq, str) and save_freq in {"epoch", "auto"}:
        return SavePolicy() if save_freq == "epoch" else SavePolicy(max_overhead=share)
    if validation.is_bool(save_freq) and not save_freq:
        return SavePolicy(at_end_only=True)
    if isinstance(save_freq, datetime.timedelta) and save_freq.total_seconds() > 0:
        return SavePolicy(every_seconds=save_freq.total_seconds())
    try:
        return SavePolicy(validation.check("save_freq", save_freq, validation.number_of("batches", 1)))
    except ConfigError:
        raise validation.invalid_argument(
            "Invalid value: save_freq",
            save_freq,
            "'epoch' or a number of batches of 1 or more (below 2**63), 'auto', a datetime.timedelta above 0, or "
            "False to save only at a preemption and at the end",
        ) from None


def parse_retention(max_to_keep: Any, keep_every: Any) -> Rules:
    """The rules that the arguments stand for.

    Raises:
        ConfigError: `max_to_keep` is no number of 1 or more, or `keep_every` neither one nor a positive timedelta.
    """
    newest = validation.check("max_to_keep", max_to_keep, validation.number_of("backups", 1))
    if isinstance(keep_every, datetime.timedelta) and keep_every.total_seconds() > 0:
        return Rules(newest, keep_every=keep_every)
    try:
        every = validation.check("keep_every", keep_every, validation.number_of("epochs", 1) | None)
    except ConfigError:
        raise validation.invalid_argument(
            "Invalid value: keep_every",
            keep_every,
            "a number of epochs of 1 or more, a datetime.timedelta above 0, or None",
        ) from None
    return Rules(newest, keep_every=every)


_FIRST_LOOKS = (1, 2, 5, 10, 20)
_FIRST_INTERVAL = (50, 60.0)  # steps or seconds: what a write in the background costs is known only after it
_EARLY_SECONDS = 30.0
_REMEMBERED_STEPS = 101
_REMEMBERED_SAVES = 3
_LATER = 10  # several workers ask again after this part of the steps that a backup is late


class Schedule:
    """Decides after each step whether a backup is due.

    Args:
        policy: What was asked for.
        cluster: Who has to agree.
        waits: Whether training waits if a backup is due at a fixed interval while the one before is being written.
        clock: Seconds; for tests.

    Attributes:
        at_epoch_end: Whether the end of an epoch is a time to save.
        every: The fixed interval in steps, if there is one.
    """

    def __init__(
        self,
        policy: SavePolicy,
        cluster: Cluster,
        *,
        waits: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.at_epoch_end = policy.at_epoch_end
        self.every = policy.every_steps
        self._meter = _CostMeter(policy, clock) if policy.is_measured else None
        self._cluster, self._waits = cluster, waits and self.every is not None
        self.begin(0)

    def begin(self, step: int) -> None:
        """Training starts, or continues, at `step`."""
        self._last = self._begun = step
        self._looks = collections.deque(_FIRST_LOOKS)
        self._next = math.inf if self._meter is None else step + self._looks[0]
        if self.every is not None:
            self._next = _multiple_after(step, self.every)
        self._late_since: int | None = None  # on the chief, the step after which a backup was due and was not taken yet

    @property
    def is_late(self) -> bool:
        """Whether a backup was due and waits for the one before; known on the chief."""
        return self._late_since is not None

    def due(self, step: int, writing: bool) -> bool:
        """Whether a backup is to be taken now; every worker asks after the same steps.

        Args:
            step: Batches trained.
            writing: Whether a backup is being written; what the chief says counts.
        """
        if self._meter is not None:
            self._meter.note(step - self._last, writing)
        self._last = step
        if step < self._next:
            return False
        wait = self._agreed(self._steps_to_wait(step, is_late=writing and not self._waits))
        if wait:
            self._next = step + wait
        elif self.every is not None:  # it keeps to its multiples, however late this one is; else `taken` sets it
            self._next = _multiple_after(step, self.every)
        return wait == 0

    def _steps_to_wait(self, step: int, *, is_late: bool) -> int:
        """0 if a backup is to be taken now; else in how many steps to ask again."""
        if not is_late:
            self._late_since = None
            if self._meter is None:
                return 0
            while self._looks and self._begun + self._looks[0] <= step:
                self._looks.popleft()
            to_next_look = self._begun + self._looks[0] - step if self._looks else 0
            return self._meter.steps_to_wait(to_next_look)
        if self._late_since is None:
            self._late_since = step
        if self._cluster.num_workers == 1:
            return 1
        return max(1, (step - self._late_since) // _LATER)  # each question costs all workers a message

    def taken(self, blocked: float) -> None:
        """A backup was taken; every worker calls this at the same step.

        Args:
            blocked: Seconds that it has kept training so far.
        """
        if self._meter is not None:
            self._looks.clear()
            self._next = self._last + self._agreed(self._meter.interval(blocked))

    def _agreed(self, steps: int) -> int:
        return int(self._cluster.broadcast(steps, "save interval", kind=int))


def _multiple_after(step: int, every: int) -> int:
    return (step // every + 1) * every


class _CostMeter:
    """What steps and saves take."""

    def __init__(self, policy: SavePolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._before: float | None = None
        self._quiet: collections.deque[float] = collections.deque(maxlen=_REMEMBERED_STEPS)
        self._disturbed: list[float] = []
        self._blocked: float | None = None  # by the save that was written during the slowed steps
        self._costs: collections.deque[float] = collections.deque(maxlen=_REMEMBERED_SAVES)
        self._since = clock()  # the last save, or the begin
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

    def steps_to_wait(self, to_next_look: int) -> int:
        """0 if it is time for a backup; else in how many steps to ask again.

        Args:
            to_next_look: Steps until the next of the first checks; 0 without one.
        """
        if self._blocked is not None:
            return 0
        elapsed = self._clock() - self._since
        if self._policy.every_seconds is None:
            return to_next_look if elapsed < _EARLY_SECONDS else 0
        left = self._policy.every_seconds - elapsed
        steps = max(0, math.floor(left / self._per_step()))
        return min(steps, to_next_look) if to_next_look else steps

    def interval(self, blocked: float) -> int:
        """Steps until the next backup, given what the one just taken has cost so far."""
        if self._policy.every_seconds is not None:
            steps = max(1, round(self._policy.every_seconds / self._per_step()))
        else:
            step = statistics.median(self._quiet) if self._quiet else self._per_step()
            written = len(self._disturbed)
            if self._blocked is None:  # what the write of the first backup costs is not known yet
                least = min(_FIRST_INTERVAL[0], math.ceil(_FIRST_INTERVAL[1] / max(step, 1e-9)))
            else:  # one slow step for another reason is not a cost of the backup: the sum counts, not each step
                self._costs.append(self._blocked + max(0.0, sum(self._disturbed) - step * written))
                least = 1
            cost = max(statistics.fmean(self._costs) if self._costs else 0.0, blocked)
            steps = max(math.ceil(cost / (self._policy.max_overhead or 1.0) / max(step, 1e-9)), written + 1, least)
        self._since = self._before = self._clock()  # what the save kept is not part of the next step
        self._blocked, self._disturbed, self._steps = blocked, [], 0
        return steps

    def _per_step(self) -> float:
        return max(1e-9, (self._clock() - self._since) / max(1, self._steps))

"""How background work leaves the CPU to training."""

from __future__ import annotations

import collections
import contextlib
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from keras_dist_callbacks.process import Shared, shared

_GENTLE = 19
_FIRMER_BY = 9
_PER_NICENESS = 1.25  # what a thread gets in competition with another one, for each step of niceness: sched(7)
_RESERVE = 3.0  # of the time until the next backup, disks and others need some too
_REMEMBERED = 10
_STARVED_SECONDS = 0.5
_STARVED_SHARE = 4.0
_CPU_TIMES = Path("/proc/thread-self/schedstat")


class CpuTimes(NamedTuple):
    """What a thread had of the processors.

    Attributes:
        ran: Seconds in which it ran.
        waited: Seconds in which it could have run, but others did.
    """

    ran: float
    waited: float


class Priority:
    """The priority of successive background threads."""

    def __init__(self) -> None:
        self._most = self._taken = _GENTLE

    def take(self, share: float = 0.0) -> None:
        """Gives the calling thread, which has that of training, and those that it will start the one that is right now.

        It cannot be raised again, and a thread that this one starts cannot have a higher one.

        Args:
            share: Of one processor's time, what the thread needs at least.
        """
        if sys.platform != "linux":
            return
        self._taken = min(self._most, _niceness(share * _RESERVE))
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())  # training may be nice itself
        if self._taken == _GENTLE:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with contextlib.suppress(OSError):  # forbidden here: then all threads have the same priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(_GENTLE, own + self._taken))

    def learn(self, times: CpuTimes | None, *, late: bool = False) -> None:
        """Decides about the next thread by what this one had.

        Args:
            times: Of the entire thread; None if it is not known.
            late: Whether the next one waits for it.
        """
        if times is None:
            return
        held_up = times.waited > times.ran
        starved = times.waited > _STARVED_SECONDS and times.waited > _STARVED_SHARE * times.ran
        if starved or (late and held_up):
            self._most = max(0, self._taken - _FIRMER_BY)
        elif not held_up and not late:
            self._most = _GENTLE


class CpuShareEstimator:
    """How fast something must be done that comes due again and again."""

    def __init__(self) -> None:
        self._ran = 0.0
        self._due: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)

    def due(self) -> float:
        """The share of a processor's time that it needs to be done in time; 0 if unknown. Call it when it is due.

        One may be queued. So the next two are expected after as short a time as there was for two of late: pauses,
        such as for validation, do not count, nor that the end of an epoch came right after another one.
        """
        self._due.append(time.monotonic())
        times = list(self._due)
        spans = [(later - earlier) / 2 for earlier, later in zip(times, times[2:], strict=False)]
        every = min(spans, default=times[-1] - times[0])
        return self._ran / every if every > 0 else 0.0

    @contextlib.contextmanager
    def done(self) -> Iterator[None]:
        """In here, the calling thread does it."""
        before = cpu_times()
        yield
        if before is not None and (after := cpu_times()) is not None:
            self._ran = after.ran - before.ran


def _niceness(share: float) -> int:
    """The highest one with which a thread gets this share of a core that another one, of niceness 0, never leaves."""
    if share <= 0:
        return _GENTLE
    if share >= 0.5:
        return 0
    return min(_GENTLE, math.floor(math.log((1 - share) / share, _PER_NICENESS)))


def cpu_times() -> CpuTimes | None:
    """What the calling thread had so far; None where the system does not report it."""
    try:
        ran, waited, _ = map(int, _CPU_TIMES.read_text().split())
    except (OSError, ValueError):
        return None
    return CpuTimes(ran / 1e9, waited / 1e9)


@dataclass
class _Pauses(Shared):
    count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def in_child(self) -> _Pauses:
        """The thread that pauses may not be there."""
        if self.count:
            gc.enable()
        return _Pauses()


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """No collection starts within the block.

    A save of thousands of variables makes tens of thousands of objects and frees them again without any cycle. A full
    collection that they set off would find nothing and take, with a large model, up to seconds (measured: 3 s with
    1,000 layers), in which training stands still.
    """
    pauses = shared(_Pauses)
    with pauses.lock:
        if pauses.count == 0 and not gc.isenabled():
            paused = False  # the code that disabled it decides
        else:
            paused, pauses.count = True, pauses.count + 1
            gc.disable()
    try:
        yield
    finally:
        if paused:
            with pauses.lock:
                pauses.count -= 1
                if pauses.count == 0:
                    gc.enable()

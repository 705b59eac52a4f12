"""How much of a busy processor the background thread takes from training.

On Linux a thread has a priority of its own. At a normal one, hashing and writing slow down the steps beside them where
training uses every core: with 100 MB on two cores the next step took 27 ms longer, with `SCHED_BATCH` and niceness 19
14 ms, of which copying on write is 8. Where other threads never leave a core idle, such a thread gets little
(4.6 s instead of 0.1 s for these 100 MB), so after a backup that had to wait like that the next ones take more. So they
do after one that waited for longer than it ran while the next one came due: a save every 0.2 s would else have each one
later than the last, until one is left out (4 to 8 of 65, and 0 of 55 so). `SCHED_IDLE` was a little gentler still, but
took 19 s there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import NamedTuple

_GENTLE = 19
_FIRMER = 10
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
        self._firmer = False

    def take(self) -> None:
        """Gives the calling thread, and those that it will start, the priority that is right now."""
        if sys.platform != "linux":
            return
        if not self._firmer:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with contextlib.suppress(OSError):  # forbidden here: then all threads have the same priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _FIRMER if self._firmer else _GENTLE)

    def learn(self, times: CpuTimes | None, *, late: bool = False) -> None:
        """Decides about the next thread by what this one had.

        Args:
            times: Of the whole thread; None if it is not known.
            late: Whether the next one waits for it.
        """
        if times is None:
            return
        held_up = times.waited > times.ran
        starved = times.waited > _STARVED_SECONDS and times.waited > _STARVED_SHARE * times.ran
        if starved or (late and held_up):
            self._firmer = True
        elif not held_up and not late:
            self._firmer = False


def cpu_times() -> CpuTimes | None:
    """What the calling thread had so far; None where the system does not tell."""
    try:
        ran, waited, _ = map(int, _CPU_TIMES.read_text().split())
    except (OSError, ValueError):
        return None
    return CpuTimes(ran / 1e9, waited / 1e9)

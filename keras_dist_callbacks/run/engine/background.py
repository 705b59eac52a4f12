"""How background work leaves the CPU to training."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from keras_dist_callbacks.base.process import Shared, shared

_NICENESS = 5
"""A third of training's share: where training uses every processor, a backup is still written before the next."""


def lower_priority() -> None:
    """Gives the calling thread, and those that it will start, a lower priority than training has; for good."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    own = os.getpriority(os.PRIO_PROCESS, thread)  # training may be nice itself
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):  # forbidden here: then all threads have the same priority
        os.setpriority(os.PRIO_PROCESS, thread, min(19, own + _NICENESS))


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
            paused = False  # the user has disabled it
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

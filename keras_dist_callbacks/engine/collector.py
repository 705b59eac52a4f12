"""Python's cyclic garbage collector, kept out of the way of a save."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_pauses = 0


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No collection starts within the block.

    A save of thousands of variables makes tens of thousands of objects and frees them again without any cycle. A full
    collection that they set off would find nothing and take, beside a large model, up to seconds (measured: 3 s with
    1,000 layers), in which training stands still.
    """
    global _pauses
    with _lock:
        if _pauses == 0 and not gc.isenabled():
            paused = False  # whoever disabled it decides
        else:
            paused, _pauses = True, _pauses + 1
            gc.disable()
    try:
        yield
    finally:
        if paused:
            with _lock:
                _pauses -= 1
                if _pauses == 0:
                    gc.enable()

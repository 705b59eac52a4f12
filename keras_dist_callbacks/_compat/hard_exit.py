"""What the process may do while TensorFlow runs in it: fork, exit."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable

_SIGEV_THREAD = 2
_CLOCK_MONOTONIC = 1


class _Event(ctypes.Structure):
    """`struct sigevent` of Linux, where a thread is to be started."""

    _fields_ = (
        ("value", ctypes.c_long),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_byte * 32),
    )


class _Times(ctypes.Structure):
    """`struct itimerspec`: the interval, and the first time."""

    _fields_ = (
        ("every_seconds", ctypes.c_long),
        ("every_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


def exit_process_after(seconds: float, code: int) -> Callable[[], None] | None:
    """Ends the process with `code` after `seconds`, without any clean-up, also while TensorFlow holds the GIL.

    Python's `faulthandler.dump_traceback_later` exits with 1, which restarts no job, and has one timer for all.

    Returns:
        What takes it back; None where this system has no such timer.
    """
    library = _library()
    if library is None:
        return None
    function = ctypes.cast(library._exit, ctypes.c_void_p).value
    event = _Event(value=code, notify=_SIGEV_THREAD, function=function)
    timer = ctypes.c_void_p()
    if library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) != 0:
        return None
    whole = int(seconds)
    times = _Times(seconds=whole, nanoseconds=int((seconds - whole) * 1e9))
    if library.timer_settime(timer, 0, ctypes.byref(times), None) != 0:
        library.timer_delete(timer)
        return None

    def cancel_exit() -> None:
        library.timer_delete(timer)

    return cancel_exit


def _library() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    for name in (None, "librt.so.1"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            library.timer_create.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
            library.timer_settime.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
            library.timer_delete.argtypes = [ctypes.c_void_p]
            return library
    return None


def tensorflow_has_context() -> bool:
    """Returns whether a TensorFlow context, with its threads, exists: such a process must not be forked."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context = getattr(module, "_context", None)  # context.context() would make one
    return context is not None and bool(context._initialized)

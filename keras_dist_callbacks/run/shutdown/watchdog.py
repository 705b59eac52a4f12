"""Ends this process when a grace period is over, whatever its main thread is doing.

A thread of Python's does it, which has last words; where it does not come to its turn, a timer of the system's does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable

from keras_dist_callbacks._compat.hard_exit import exit_process_after
from keras_dist_callbacks.base.errors import RESTART_EXIT_CODE
from keras_dist_callbacks.base.terminal import escape_controls

_FLUSH_SECONDS = 1.0
GIL_SECONDS = 3.0  # for this thread to come to its turn, before the process is terminated without it


class Watchdog:
    """A time-out for the rest of the process' life.

    Args:
        seconds: From `start` on.
        last_message: Called when the time is over; what it returns goes to stderr.
    """

    def __init__(self, seconds: float, last_message: Callable[[], str]) -> None:
        self.seconds = seconds
        self._last_message = last_message
        self._lock = threading.Lock()
        self._deadline: float | None = None
        self._cancelled = threading.Event()
        self._cancel_exit: Callable[[], None] | None = None

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.seconds if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def start(self, seconds: float | None = None) -> None:
        """The time begins to run; a second call changes nothing, nor one after `cancel`.

        Args:
            seconds: How long it is; None: as it was given.
        """
        with self._lock:
            if self._deadline is not None or self._cancelled.is_set():
                return
            self.seconds = self.seconds if seconds is None else seconds
            self._deadline = time.monotonic() + self.seconds
            self._cancel_exit = exit_process_after(self.seconds + GIL_SECONDS, RESTART_EXIT_CODE)
        with contextlib.suppress(RuntimeError):  # no thread can be started: the process is ended without a last message
            threading.Thread(target=self._wait, name="kdc-watchdog", daemon=True).start()

    def cancel(self) -> None:
        """The process may continue."""
        with self._lock:
            self._cancelled.set()
            take_back, self._cancel_exit = self._cancel_exit, None
        if take_back is not None:
            take_back()

    def _wait(self) -> None:
        if self._cancelled.wait(self.left):
            return
        flushing = threading.Thread(target=_flush, daemon=True)  # the main thread may hold their locks
        with contextlib.suppress(RuntimeError):
            flushing.start()
        with contextlib.suppress(OSError):  # stderr may be closed
            os.write(2, f"{escape_controls(self._last_message())}\n".encode())
        for child in multiprocessing.active_children():
            if child.daemon:
                child.kill()  # as the interpreter's exit would, which does not follow
        if flushing.ident is not None:
            flushing.join(_FLUSH_SECONDS)
        os._exit(RESTART_EXIT_CODE)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()

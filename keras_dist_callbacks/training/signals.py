"""Signals that ask a process to end, seen at once, also while the main thread sits in a long operation."""

from __future__ import annotations

import os
import signal
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_END = b"\0"
_JOIN_SECONDS = 5.0
_installed: list[SignalWatch] = []
_PROC_STATUS = Path("/proc/self/status")


class SignalWatch:
    """Calls back in a thread of its own when one of some signals arrives.

    Python runs its handlers in the main thread, between two bytecodes: not while a step runs. The interpreter writes
    the number of a signal to a file descriptor at once, though, and a thread reads it there.

    Args:
        on_signal: Called with each signal, in the thread.
        at_once: Called with it in Python's handler too; it may set a value, and nothing else.
        held: Signals whose second arrival raises what Python's own handler does.
    """

    def __init__(
        self,
        on_signal: Callable[[signal.Signals], None],
        at_once: Callable[[signal.Signals], None],
        held: Sequence[signal.Signals] = (signal.SIGINT,),
    ) -> None:
        self._on_signal = on_signal
        self._at_once = at_once
        self._held = set(held)
        self._arrived: set[int] = set()
        self._earlier: dict[signal.Signals, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup: int | None = None
        self._thread: threading.Thread | None = None

    def install(self, signals: Sequence[signal.Signals]) -> None:
        """Takes the signals over; in the main thread."""
        while _installed:
            _installed.pop().remove()  # of a run that was never closed
        _installed.append(self)
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._pipe = reading, writing
        self._thread = threading.Thread(target=self._read, args=(reading,), name="kdc-signals", daemon=True)
        self._thread.start()
        loops = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if loops == -1:
            self._wakeup = writing
        else:
            signal.set_wakeup_fd(loops)  # an event loop's: Python's own handlers tell the thread, a little later
        for number in signals:
            self._earlier[number] = handler_of(number)
            signal.signal(number, self._handle)

    def earlier(self, number: signal.Signals) -> Callable[[int, types.FrameType | None], Any] | None:
        """The handler in Python that was there before, if there was one."""
        handler = self._earlier.get(number)
        return handler if callable(handler) and handler is not signal.default_int_handler else None

    def release(self, number: signal.Signals) -> None:
        """Gives one signal back; in the main thread."""
        if number in self._earlier and signal.getsignal(number) == self._handle:
            signal.signal(number, self._earlier.pop(number))

    def remove(self, *, keep_defaults: bool = False) -> None:
        """Gives the signals back, where nobody else has taken them since; does nothing in another thread.

        Args:
            keep_defaults: Those that would end the process stay caught, because it is ending already.
        """
        if self._pipe is None or threading.current_thread() is not threading.main_thread():
            return
        if self in _installed:
            _installed.remove(self)
        for number, handler in self._earlier.items():
            deadly = handler in (None, signal.SIG_DFL)
            if signal.getsignal(number) == self._handle and not (deadly and keep_defaults):
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._wakeup is not None:
            current = signal.set_wakeup_fd(-1)
            if current != self._wakeup:
                signal.set_wakeup_fd(current)
            self._wakeup = None
        (_, writing), self._pipe = self._pipe, None
        os.write(writing, _END)
        os.close(writing)
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        if self._pipe is not None:
            os.write(self._pipe[1], bytes([number]))
            self._at_once(signal.Signals(number))
        if number in self._held:
            if number in self._arrived:
                signal.default_int_handler(number, frame)
            self._arrived.add(number)

    def _read(self, reading: int) -> None:
        seen: set[int] = set()
        with open(reading, "rb", buffering=0) as pipe:
            while (numbers := pipe.read(64)) and numbers != _END:
                for number in set(numbers) & {int(s) for s in self._earlier} - seen:
                    seen.add(number)  # a second one changes nothing
                    self._on_signal(signal.Signals(number))


def handler_of(number: signal.Signals) -> Any:
    """A signal's handler as users know it: behind what a run that was never closed has left."""
    handler = signal.getsignal(number)
    while isinstance(watch := getattr(handler, "__self__", None), SignalWatch):
        handler = watch._earlier.get(number)
    return handler


def is_foreign(number: signal.Signals) -> bool:
    """Whether something other than Python handles a signal, which would be lost to it."""
    if signal.getsignal(number) not in (signal.SIG_DFL, None):
        return False
    try:
        status = _PROC_STATUS.read_text(encoding="ascii")
    except OSError:
        return signal.getsignal(number) is None
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)

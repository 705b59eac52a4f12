"""Signals that ask a process to exit, seen at once, also while the main thread is busy in a long operation.

`SignalListener` sees them; `StopSignals` chooses those of one run and knows what each asks for.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import signal
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.base.terminal import is_first
from keras_dist_callbacks.options import ShutdownOptions

PREEMPTED, INTERRUPTED = "preempted", "interrupted"
_INTERRUPT_SECONDS = 10.0
_END = 0
_JOIN_SECONDS = 5.0
_PROC_STATUS = Path("/proc/self/status")


@dataclass
class _Listeners(Shared):
    """The watches of this process; a forked child has none.

    Attributes:
        installed: A `fit()` within a callback of another one adds one.
        taken: Signals that any watch has taken so far.
        unheeded: Those that came while a run ended; the next run handles them.
        mask: Of the thread that forks, before it does.
    """

    installed: list[SignalListener] = field(default_factory=list)
    taken: set[signal.Signals] = field(default_factory=set)
    unheeded: list[signal.Signals] = field(default_factory=list)
    mask: threading.local = field(default_factory=threading.local)

    first_in_child: ClassVar[bool] = True  # until then no signal ends it, and other parts may wait for a lock forever

    def in_child(self) -> _Listeners:
        """A child leaves signals to its parent, and ends at one."""
        for number in self.taken:
            if handler_of(number) != signal.getsignal(number):
                signal.signal(number, handler_of(number) or signal.SIG_DFL)
        current = signal.set_wakeup_fd(-1)
        if not _is_ours(current):
            signal.set_wakeup_fd(current)
        for watch in self.installed:
            for end in watch._pipe or ():
                os.close(end)
            watch._pipe = watch._wakeup = None
        if hasattr(self.mask, "before"):
            _unblock()
        return _Listeners(taken=self.taken, mask=self.mask)


class SignalListener:
    """Calls back in a thread of its own when one of some signals arrives.

    Python runs its handlers in the main thread, between two bytecodes: not while a step runs. The interpreter writes
    the number of a signal to a file descriptor at once, though, and a thread reads it there.

    Watches nest: the last one that was installed gets the signals; when it is removed, the one before gets them again.
    A forked child has no watch: its signals do what they did before the first one was installed.

    Args:
        on_signal: Called with each signal, in the thread.
        in_handler: Called with it in Python's handler too; it may set a value, and nothing else.
    """

    def __init__(
        self, on_signal: Callable[[signal.Signals], None], in_handler: Callable[[signal.Signals], None]
    ) -> None:
        self._on_signal = on_signal
        self._note_in_handler = in_handler
        self._is_interrupted = False
        self._previous: dict[signal.Signals, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup: int | None = None
        self._thread: threading.Thread | None = None

    def install(self, signals: Sequence[signal.Signals]) -> None:
        """Takes the signals over; in the main thread."""
        _register_fork_hooks()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._thread = threading.Thread(target=self._read, args=(reading,), name="kdc-signals", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started: then this is no watch, and nothing is to be removed
            os.close(reading)
            os.close(writing)
            raise
        self._pipe = reading, writing
        current = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if current == -1 or _is_ours(current):
            self._wakeup = writing
        else:
            signal.set_wakeup_fd(current)  # an event loop's: Python's own handlers notify the thread, a little later
        shared(_Listeners).installed.append(self)
        for number in signals:
            shared(_Listeners).taken.add(number)
            self._previous[number] = signal.signal(number, self._handle)

    def watches(self, number: signal.Signals) -> bool:
        """Returns whether this watch took a signal over, even if an inner one gets it at present."""
        return number in self._previous

    def previous_handler(self, number: signal.Signals) -> Callable[[int, types.FrameType | None], Any] | None:
        """Returns the user's Python handler, if there was one."""
        handler = _without(self._previous.get(number), number)
        return handler if callable(handler) and handler is not signal.default_int_handler else None

    def release(self, number: signal.Signals) -> None:
        """Gives one signal back; in the main thread."""
        if number in self._previous and signal.getsignal(number) == self._handle:
            signal.signal(number, self._next_handler(number))
            del self._previous[number]

    def remove(self, *, keep_defaults: bool = False) -> None:
        """Gives the signals back, unless other code has taken them since; does nothing in another thread.

        Args:
            keep_defaults: Those that would terminate the process stay caught, because it is exiting already.
        """
        if self._pipe is None or threading.current_thread() is not threading.main_thread():
            return
        shared(_Listeners).installed.remove(self)
        for number in self._previous:
            handler = self._next_handler(number)
            deadly = handler == signal.SIG_DFL
            if signal.getsignal(number) == self._handle and not (deadly and keep_defaults):
                signal.signal(number, handler)
        if self._wakeup is not None:
            watches = reversed(shared(_Listeners).installed)
            outer = next((watch._wakeup for watch in watches if watch._wakeup is not None), -1)
            current = signal.set_wakeup_fd(outer, warn_on_full_buffer=False)
            if current != self._wakeup:  # other code has put in its own since, such as an event loop
                signal.set_wakeup_fd(current)
            self._wakeup = None
        (_, writing), self._pipe = self._pipe, None
        os.write(writing, bytes([_END]))
        os.close(writing)
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _next_handler(self, number: signal.Signals) -> Any:
        """What handles a signal once this watch is removed: an outer watch, the user's handler, or the default."""
        handler = _without(self._previous[number], number, keep=shared(_Listeners).installed)
        return signal.SIG_DFL if handler is None else handler

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):  # the thread has enough to read
                os.write(self._pipe[1], bytes([number]))
            self._note_in_handler(signal.Signals(number))
        if number == signal.SIGINT:
            if self._is_interrupted:  # the second Ctrl-C does not wait for the step
                signal.default_int_handler(number, frame)
            self._is_interrupted = True

    def _read(self, reading: int) -> None:
        seen: set[int] = set()
        numbers = b""
        while _END not in numbers and (numbers := os.read(reading, 64)):
            for number in set(numbers) & {int(s) for s in self._previous} - seen:
                seen.add(number)  # a second one changes nothing
                self._on_signal(signal.Signals(number))
        os.close(reading)


class StopSignals:
    """The signals that end one run early: which of them are taken over, and what each asks for.

    Args:
        options: Which ones mean a preemption, and whether Ctrl-C waits for the step.
        several_workers: TensorFlow handles SIGTERM then; it is taken over all the same.
        tell: Prints a line, on the chief.
        on_stop: Called with `PREEMPTED` or `INTERRUPTED` and the reason, in a thread of its own.
        in_handler: Called with the same in Python's handler; it may set a value, and nothing else.
    """

    def __init__(
        self,
        options: ShutdownOptions,
        several_workers: bool,
        tell: Callable[[str], None],
        on_stop: Callable[[str, str], None],
        in_handler: Callable[[str, str], None],
    ) -> None:
        self._options, self._several_workers, self._tell, self._on_stop = options, several_workers, tell, on_stop
        self._listener = SignalListener(self._on_signal, lambda number: in_handler(*self._meaning(number)))
        self._arrived: signal.Signals | None = None  # the one that means a preemption
        self._impatience: threading.Timer | None = None

    def install(self) -> None:
        """Takes over those that may be, in the main thread; handles what came while the run before ended."""
        signals = self._available()
        if signals:
            self._listener.install(signals)
        unheeded = shared(_Listeners).unheeded
        for number in [number for number in unheeded if number in signals]:
            unheeded.remove(number)
            self._on_stop(*self._meaning(number))

    def _available(self) -> list[signal.Signals]:
        options = self._options
        wanted = [signal.Signals[str(name)] for name in options.signals] if options.save_before_preemption else []
        names = ", ".join(number.name for number in wanted)
        if not wanted and not options.save_on_exception:
            return []
        if threading.current_thread() is not threading.main_thread():
            self._tell_once(f"{names or 'Ctrl-C'} is not handled: fit() does not run in the main thread")
            return []
        if getattr(builtins, "__IPYTHON__", False):
            if wanted:
                self._tell_once(f"In a notebook, {names} saves no backup: a restart resumes from the last regular one")
            return []
        found = []
        for number in wanted:
            of_tensorflow = number == signal.SIGTERM and self._several_workers
            if has_non_python_handler(number) and not of_tensorflow:
                self._tell_once(f"{number.name} is not handled: code other than Python handles it already")
            elif handler_of(number) != signal.SIG_IGN:
                found.append(number)
        if options.save_on_exception and handler_of(signal.SIGINT) is signal.default_int_handler:
            found.append(signal.SIGINT)
        return found

    def _tell_once(self, text: str) -> None:
        if self._options.save_before_preemption and is_first(text):
            self._tell(text)

    def _meaning(self, number: signal.Signals) -> tuple[str, str]:
        preempts = self._options.save_before_preemption and number.name in self._options.signals
        return (PREEMPTED, number.name) if preempts else (INTERRUPTED, "Ctrl-C")

    def _on_signal(self, number: signal.Signals) -> None:
        kind, why = self._meaning(number)
        if kind == PREEMPTED:
            self._arrived = number
        else:
            self._impatience = threading.Timer(_INTERRUPT_SECONDS, _interrupt)
            self._impatience.daemon = True
            with contextlib.suppress(RuntimeError):  # no thread can be started: a second Ctrl-C does not wait
                self._impatience.start()
        self._on_stop(kind, why)

    def release_interrupt(self) -> None:
        """No step is left that Ctrl-C would have to wait for."""
        self._listener.release(signal.SIGINT)

    def step_is_over(self) -> None:
        """What Ctrl-C has waited for is done: it is not raised in its midst."""
        if self._impatience is not None:
            self._impatience.cancel()

    def call_handler(self) -> bool:
        """Calls the user's own handler of the signal that came; whether there is one."""
        handler = None if self._arrived is None else self._listener.previous_handler(self._arrived)
        if handler is not None and self._arrived is not None:
            handler(int(self._arrived), None)
        return handler is not None

    def remove(self, *, exits: bool) -> None:
        """The run is over: gives the signals back. One that came too late for it may raise what its handler does.

        Args:
            exits: It was left early, so that the process is exiting, and no signal was too late.
        """
        self._listener.remove(keep_defaults=exits)
        self.step_is_over()  # here, when the thread that starts it has ended
        if exits or (number := self._arrived) is None:
            return
        installed = [watch for watch in shared(_Listeners).installed if watch is not self._listener]
        outer = next((watch for watch in reversed(installed) if watch.watches(number)), None)
        if outer is not None:
            outer._on_signal(number)  # the run around this one
        elif not self.call_handler():
            shared(_Listeners).unheeded[:] = [number]


def _interrupt() -> None:
    """Ctrl-C again, for the main thread: unlike `interrupt_main`, it wakes one that waits in the system."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)


def handler_of(number: signal.Signals) -> Any:
    """Returns a signal's handler as the user sees it, without any watch."""
    return _without(signal.getsignal(number), number)


def _without(handler: Any, number: signal.Signals, keep: Sequence[SignalListener] = ()) -> Any:
    """Returns a handler, or what it has replaced if it is that of a watch that is not to be kept."""
    while isinstance(watch := getattr(handler, "__self__", None), SignalListener) and watch not in keep:
        handler = watch._previous.get(number)
    return handler


def _is_ours(descriptor: int) -> bool:
    return any(watch._wakeup == descriptor for watch in shared(_Listeners).installed)


@functools.cache
def _register_fork_hooks() -> None:
    """A forked child must not answer a signal in its parent's place, nor fail to end at one."""
    os.register_at_fork(before=_block, after_in_parent=_unblock)  # in a child: _Listeners.in_child


def _block() -> None:
    """Until the child has no watch: a signal to it would be written into the parent's pipe."""
    shared(_Listeners).mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, shared(_Listeners).taken)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, shared(_Listeners).mask.before)


def let_children_end() -> None:
    """Removes a Python handler of SIGCHLD: torch's raises an error for a worker that got SIGTERM too."""
    if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGCHLD)):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def has_non_python_handler(number: signal.Signals) -> bool:
    """Returns whether something other than Python handles a signal, which would be lost to it."""
    if signal.getsignal(number) not in (signal.SIG_DFL, None):
        return False
    try:
        status = _PROC_STATUS.read_text(encoding="ascii")
    except OSError:
        return signal.getsignal(number) is None
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)

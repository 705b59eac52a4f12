"""Ends a run early: at a preemption, at Ctrl-C, and when one worker alone wants to stop."""

from __future__ import annotations

import builtins
import contextlib
import enum
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, NoReturn

import tensorflow as tf

from keras_dist_callbacks.backups.snapshot import Position, Snapshot
from keras_dist_callbacks.cluster import messaging, peer_monitor, timeouts
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.coordinated_stop import CoordinatedStop, StopRequest
from keras_dist_callbacks.engine.engine import BackupEngine
from keras_dist_callbacks.errors import ClusterError, ConfigError, KdcError, Preempted, StorageError, is_repeated
from keras_dist_callbacks.options import ShutdownOptions
from keras_dist_callbacks.process import Shared, shared
from keras_dist_callbacks.progress_file import unless_restarted
from keras_dist_callbacks.shutdown.preemption_notice import Notice, NoticePoller
from keras_dist_callbacks.shutdown.signals import SignalListener, handler_of, has_non_python_handler, let_children_end
from keras_dist_callbacks.shutdown.time_limit import TimeLimit
from keras_dist_callbacks.shutdown.watchdog import GIL_SECONDS, Watchdog
from keras_dist_callbacks.terminal import data_size, is_first

PREEMPTED, INTERRUPTED, STOPPED = "preempted", "interrupted", "stopped"
_INTERRUPT_SECONDS = 10.0
_BUDGET_SECONDS = 120.0
_LOSS_BUDGET_SECONDS = 8.0
_LEAST_SECONDS = 5.0  # to end in, once a loss is known
_NOTICE_SECONDS = 4.0  # between the end of heartbeats' time and that
_ALL_RAISE_SECONDS = 3.0  # for the other workers to raise too
_Request = tuple[str, str, int, float | None] | None  # of a `StopRequest`


class _Phase(enum.Enum):
    """Where a run is.

    Attributes:
        NEW: It watches for nothing yet.
        TRAINING: Requests are handled at the next boundary.
        FINISHING: No boundary follows; requests come too late.
        EXITING: It ends early; its exception is on the way.
        EXITED: It has ended early.
        CLOSED: It has ended otherwise.
    """

    NEW = enum.auto()
    TRAINING = enum.auto()
    FINISHING = enum.auto()
    EXITING = enum.auto()
    EXITED = enum.auto()
    CLOSED = enum.auto()


_OPEN = (_Phase.TRAINING, _Phase.FINISHING, _Phase.EXITING)
_LISTENING = (_Phase.NEW, _Phase.TRAINING, _Phase.EXITING)


@dataclass
class Runs(Shared):
    """Runs that may be left early, a `fit()` within a callback of another one last.

    Attributes:
        open: Those that have begun.
        unheeded: Signals that came while a run ended; the next run handles them.
    """

    open: list[ShutdownController] = field(default_factory=list)
    unheeded: list[signal.Signals] = field(default_factory=list)


class ShutdownController:
    """Watches for what ends one run early, and ends it.

    Args:
        options: What was asked for.
        engine: The run's.
        cluster: Who has to agree.
        name: What distinguishes this run from another; the same on every worker.
        say: Prints a line, on the chief.
        runs: Whether the run has not ended, to be asked in any thread.

    Raises:
        ConfigError: `peer_timeout` is over before the loss of a worker is known.
    """

    def __init__(
        self,
        options: ShutdownOptions,
        engine: BackupEngine,
        cluster: Cluster,
        name: str,
        say: Callable[[str], None],
        runs: Callable[[], bool] = lambda: True,
    ) -> None:
        known = messaging.heartbeat_timeout() + _NOTICE_SECONDS + GIL_SECONDS
        peer_timeout = timeouts.seconds_of("peer_timeout")
        if cluster.num_workers > 1 and peer_timeout < known + _LEAST_SECONDS:
            heartbeat_timeout = messaging.heartbeat_timeout()
            raise ConfigError(
                f"peer_timeout={peer_timeout:g} is too short: the loss of a worker is known after {known:g} s "
                f"(heartbeat_timeout={heartbeat_timeout:g}); set it in ClusterOptions, or KDC_PEER_TIMEOUT in the "
                f"environment, to {known + _LEAST_SECONDS:g} or more"
            )
        self.options = options
        self._preempting = [signal.Signals[str(name)] for name in options.signals]  # which made names of them
        self._engine = engine
        self._cluster = cluster
        self._say = say
        self._name = name
        self._stop = CoordinatedStop(cluster, name, self._on_request)
        self._signals = SignalListener(self._on_signal, self._note_in_handler)
        self._limit = None
        if options.time_limit is not None:
            self._limit = TimeLimit.of(options.time_limit, options.grace_period, lambda: engine.seconds_to_save)
        self._notices: list[NoticePoller] = []
        self._watchdog = Watchdog(options.grace_period, self._last_message)
        self._peer_loss_watchdog = Watchdog(max(_LEAST_SECONDS, peer_timeout - known), self._message_after_loss)
        self._runs = runs
        self._process = os.getpid()
        self._impatience: threading.Timer | None = None
        self._signalled: signal.Signals | None = None
        self._phase = _Phase.NEW
        self._stuck = False  # a thread still writes

    def begin(self) -> None:
        """Training begins: from now on signals are taken over."""
        if self.options.save_before_preemption and self.options.notice is not None:
            self._add_notice(Notice.of(self.options.notice), lambda: None)
        if (limit := self._limit) is not None and self._cluster.is_chief:
            self._add_notice(Notice(limit.name, limit.is_reached), lambda: limit.left)
        for notice in self._notices:
            notice.start()  # first: the user's may raise, and nothing is to be given back then
        for abandoned in [run for run in shared(Runs).open if not run._runs()]:
            abandoned.close()
        self._phase = _Phase.TRAINING
        shared(Runs).open.append(self)
        peer_monitor.begin(self._cluster, self._on_loss)
        self._stop.start()
        signals = self._ours()
        if signals:
            self._signals.install(signals)
        for number in [number for number in shared(Runs).unheeded if number in signals]:
            shared(Runs).unheeded.remove(number)
            self._stop.request(*self._meaning(number))

    def _add_notice(self, notice: Notice, seconds: Callable[[], float | None]) -> None:
        """Adds what asks for a stop; `seconds` is how long that may take, None for the grace period."""
        self._notices.append(NoticePoller(notice, lambda why: self._stop.request(PREEMPTED, why, seconds())))

    def boundary(self, *, stop: str | None = None) -> StopRequest | None:
        """Between two steps, on every worker; the request if this is where all stop.

        Args:
            stop: This worker is to stop here, for this reason, without leaving.
        """
        return self._stop.boundary(None if stop is None else STOPPED, stop or "")

    def pending_at_end(self) -> StopRequest | None:
        """No step follows: a request that no boundary was left for, on any worker; later ones come too late."""
        self._signals.release(signal.SIGINT)  # there is no step left for it to wait for
        pending = self._stop.pending
        wish = None if pending is None or pending.kind == STOPPED else list(astuple(pending))
        found = next(filter(None, self._cluster.gather(wish, "stopping at the end", kind=_Request)), None)
        if found is None:
            self._phase = _Phase.FINISHING
            self._watchdog.cancel()
        return None if found is None else StopRequest(*found)

    def save_and_exit(self, request: StopRequest, snapshot: Snapshot) -> NoReturn:
        """Saves, and ends the run on every worker.

        Args:
            request: Why.
            snapshot: What is to be saved.

        Raises:
            Preempted: The process was asked to end.
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        self._phase = _Phase.EXITING
        if self._impatience is not None:
            self._impatience.cancel()
        let_children_end()
        preempted, position = request.kind == PREEMPTED, snapshot.position
        left = self._watchdog.left if preempted else _BUDGET_SECONDS
        try:
            saved = self._engine.leave(snapshot, left)
            text = _outcome(request, saved, position, self._engine.take_notes(), self._cluster.num_workers)
        except ClusterError as error:
            text = f"{_cause(request, self._cluster.num_workers)} at {position}: {error}"
        if not preempted:
            raise KeyboardInterrupt(text)
        self._say(text + unless_restarted(". Start the job again to resume"))
        handler = None if self._signalled is None else self._signals.previous_handler(self._signalled)
        if handler is not None and self._signalled is not None:
            handler(int(self._signalled), None)
        raise Preempted(text)

    def on_exception(self, error: BaseException, step: int | None, at_hand: Callable[[], Snapshot | None]) -> None:
        """An exception ends the run: what was handed over is committed before it is raised on, and notes say more.

        Args:
            error: The exception; one of `save_and_exit` is left as it is.
            step: Batches trained; None if they were not counted.
            at_hand: Captures the state after the last step; None if it is not known.

        Raises:
            PeerLostError: The exception means that another worker is lost; this one says which.
            Preempted: The process was asked to exit meanwhile; its children were too, maybe, and that is the reason.
        """
        if self._phase in (_Phase.EXITING, _Phase.EXITED) or not self._is_here:
            return
        if self._is_preempted:
            let_children_end()
        of_memory = _of_memory(error, self._engine.held_bytes)  # before they are written
        lost, together = None, False
        if peer_monitor.is_loss(self._cluster, error):
            self._end_soon()  # what comes may hang
            lost = peer_monitor.describe_peer_failure(self._cluster, error)
        else:
            together = self._save_at(error, step, at_hand)
        if lost is None and not together:
            peer_monitor.announce_exit(self._cluster, error)
        drained = self._engine.drain(_BUDGET_SECONDS if lost is None else _LOSS_BUDGET_SECONDS)
        if together:
            self._cluster.gather_soon(
                None, f"{self._name}/saved", _ALL_RAISE_SECONDS
            )  # with the chief, the service goes
        self._engine.abort()
        self._stuck = not drained
        later = self._engine.take_failure()
        notes = [*self._engine.take_notes(), *([] if later is None else [f"and after it: {later}"])]
        for note in [*of_memory, *notes, *self._cost(step, error)]:
            (lost or error).add_note(note)
        self._raise_preempted(lost or error)
        if lost is not None:
            raise lost from error

    @property
    def _is_preempted(self) -> bool:
        return self._stop.pending is not None and self._stop.pending.kind == PREEMPTED

    def _raise_preempted(self, error: BaseException) -> None:
        pending = self._stop.pending
        if pending is None or pending.kind != PREEMPTED or not isinstance(error, Exception):
            return
        reason = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        text = f"{_cause(pending, self._cluster.num_workers)}, then {reason}"
        self._phase = _Phase.EXITING
        self._say(text + unless_restarted(". Start the job again to resume"))
        raise Preempted(text) from error

    def _save_at(self, error: BaseException, step: int | None, at_hand: Callable[[], Snapshot | None]) -> bool:
        """Saves if the state is known and all workers end there; whether they do, so none is lost to the rest."""
        newest, alone = self._engine.committed, self._cluster.num_workers == 1
        if alone and newest is not None and step is not None and newest.step >= step:
            return False
        try:
            snapshot = at_hand() if self._saves_at(error) else None
            if not self._all_raise([step, None if snapshot is None else snapshot.position.kind]):
                return False
            if snapshot is not None:
                self._engine.save(lambda: snapshot)
        except Exception as failure:  # noqa: BLE001 - the first error is the one to be seen
            error.add_note(f"training could not be saved: {failure}")
            return False
        return True

    def _all_raise(self, where: list[Any]) -> bool:
        """Returns whether an exception has ended the run on every worker, at the same place; one alone cannot save."""
        answers = self._cluster.gather_soon(where, f"{self._name}/exception", _ALL_RAISE_SECONDS)
        return answers is not None and all(other == where for other in answers)

    def _cost(self, step: int | None, error: BaseException) -> list[str]:
        """Returns what a restart costs; of an error that each restart repeats, that it does not help."""
        newest, fenced = self._engine.committed, self._engine.fenced
        if fenced is not None and not fenced.nothing_left:
            return []  # what a restart finds is up to the newer run
        if is_repeated(error):
            return [f"{where}; a restart alone raises this error again" for where in self._newest()]
        lost = 0 if step is None else step - (newest.step if newest else 0)
        if newest is None:
            cost = "; a restart starts from the beginning"
        elif lost > 0:
            cost = f"; a restart trains {lost} step{'s' if lost > 1 else ''} again"
        else:
            cost = "" if step is None else "; a restart loses no step"
        return [f"{where}{cost}" for where in self._newest()]

    def _newest(self) -> list[str]:
        """Returns where the newest backup is; the chief alone knows."""
        newest = self._engine.committed
        where = f"the newest backup in {self._engine.directory} is at {newest}" if newest else "no backup was committed"
        return [where] if self._cluster.is_chief else []

    def _saves_at(self, error: BaseException) -> bool:
        if isinstance(error, Preempted):  # of a fit() within a callback of this one
            return self.options.save_before_preemption
        ours = isinstance(error, KdcError) and not isinstance(error, StorageError | ConfigError)
        return self.options.save_on_exception and not ours

    def close(self) -> None:
        """The run is over: gives signals back. A watchdog that counts continues if the run exits early."""
        if self._phase not in _OPEN or not self._is_here:
            return
        exits = self._phase is _Phase.EXITING
        self._phase = _Phase.EXITED if exits else _Phase.CLOSED
        peer_monitor.end(self._on_loss)
        if self in shared(Runs).open:
            shared(Runs).open.remove(self)
        self._stop.close()
        for notice in self._notices:
            notice.stop()
        self._signals.remove(keep_defaults=exits)  # its thread starts what is cancelled here
        if self._impatience is not None:
            self._impatience.cancel()
        if not exits:
            self._watchdog.cancel()
        if not self._stuck:  # else a thread that writes would hold up the process' end
            self._peer_loss_watchdog.cancel()
        if self._signalled is not None and not exits:
            self._pass_late_signal_on(self._signalled)

    def _pass_late_signal_on(self, number: signal.Signals) -> None:
        """Leaves a signal that came too late for this run to the run around it, to the user, or to the next run."""
        outer = next((run for run in reversed(shared(Runs).open) if run._signals.watches(number)), None)
        handler = self._signals.previous_handler(number)
        if outer is not None:
            outer._on_signal(number)
        elif handler is not None:
            handler(int(number), None)
        else:
            shared(Runs).unheeded[:] = [number]

    @property
    def _is_here(self) -> bool:
        """Whether this is the process that trains, not one that a callback or the input forked from it."""
        return os.getpid() == self._process

    # --- what asks for it

    def _ours(self) -> list[signal.Signals]:
        """Returns those signals that may be taken over."""
        wanted = self._preempting if self.options.save_before_preemption else []
        if not wanted and not self.options.save_on_exception:
            return []
        if threading.current_thread() is not threading.main_thread():
            self._warn_user(f"{_names(wanted)} is not handled: fit() does not run in the main thread")
            return []
        if getattr(builtins, "__IPYTHON__", False):
            if wanted:
                self._warn_user(
                    f"In a notebook, {_names(wanted)} saves no backup: a restart resumes from the last regular one"
                )
            return []
        ours = []
        for number in wanted:
            tensorflow = number == signal.SIGTERM and self._cluster.num_workers > 1
            if has_non_python_handler(number) and not tensorflow:
                self._warn_user(f"{number.name} is not handled: code other than Python handles it already")
            elif handler_of(number) != signal.SIG_IGN:
                ours.append(number)
        if self.options.save_on_exception and handler_of(signal.SIGINT) is signal.default_int_handler:
            ours.append(signal.SIGINT)
        return ours

    def _note_in_handler(self, number: signal.Signals) -> None:
        if self._phase in _LISTENING:
            self._stop.note(*self._meaning(number))

    def _meaning(self, number: signal.Signals) -> tuple[str, str]:
        ends = number in self._preempting and self.options.save_before_preemption
        return (PREEMPTED, number.name) if ends else (INTERRUPTED, "Ctrl-C")

    def _on_signal(self, number: signal.Signals) -> None:
        kind, why = self._meaning(number)
        if kind == INTERRUPTED:
            self._impatience = threading.Timer(_INTERRUPT_SECONDS, _interrupt)
            self._impatience.daemon = True
            with contextlib.suppress(RuntimeError):  # no thread can be started: a second Ctrl-C does not wait
                self._impatience.start()
        else:
            self._signalled = number
        if self._phase in _LISTENING:
            self._stop.request(kind, why)

    def _on_request(self, request: StopRequest) -> None:
        if request.kind == PREEMPTED and self._phase in _LISTENING:
            self._watchdog.start(request.seconds)

    def _on_loss(self) -> None:
        if self._runs():  # an exception may have ended it unnoticed
            self._end_soon()

    def _end_soon(self) -> None:
        self._engine.abort()
        self._peer_loss_watchdog.start()

    def _message_after_loss(self) -> str:
        lost = (
            f"{self._cluster.name}: {messaging.lost() or 'another worker is lost'}. Training cannot continue without it"
        )
        return "; ".join([f"{lost}, and this process did not exit and is terminated", *self._newest()])

    def _last_message(self) -> str:
        over = (
            f"{self._cluster.name}: the grace period of {self._watchdog.seconds:.3g} s is over, and this process is "
            "terminated"
        )
        return "; ".join([over, *self._newest()])

    def _warn_user(self, text: str) -> None:
        if self.options.save_before_preemption and is_first(text):
            self._say(text)


def _interrupt() -> None:
    """Ctrl-C again, for the main thread: unlike `interrupt_main`, it wakes one that waits in the system."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)


def _outcome(request: StopRequest, saved: Position | None, position: Position, notes: list[str], workers: int) -> str:
    cause = f"{_cause(request, workers)} at {position}"
    if saved is not None and saved.step == position.step:
        return f"{cause}; everything is saved"
    because = f" ({'; '.join(notes)})" if notes else ""
    if saved is None:
        return f"{cause}; nothing is saved{because}"
    return f"{cause}; not saved{because}: the newest backup is {position.step - saved.step} steps old"


def _cause(request: StopRequest, workers: int) -> str:
    where = f" on worker {request.worker}" if workers > 1 else ""
    verb = "Preempted" if request.kind == PREEMPTED else "Interrupted"
    return f"{verb} by {request.why}{where}"


def _of_memory(error: BaseException, held: int) -> list[str]:
    """Returns what a backup held, in bytes, when memory was wanting; nothing for other errors."""
    if not isinstance(error, MemoryError | tf.errors.ResourceExhaustedError) or not held:
        return []
    return [
        f"an unfinished backup held up to {data_size(held)} of this computer's memory then: a backup holds the state "
        "of training once more until it is written; with a larger save_freq that is less often, and with "
        "save_freq=False at the end only"
    ]


def _names(signals: Sequence[signal.Signals]) -> str:
    return ", ".join(number.name for number in signals) or "Ctrl-C"

"""Ends a run early: at a preemption, at Ctrl-C, and when one worker alone wants to stop."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import NoReturn

import tensorflow as tf

from keras_dist_callbacks.backups.snapshot import Position, Snapshot
from keras_dist_callbacks.base.errors import (
    ClusterError,
    ConfigError,
    Diverged,
    KdcError,
    Preempted,
    StorageError,
    is_repeated,
)
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.base.progress_file import unless_restarted
from keras_dist_callbacks.base.terminal import data_size
from keras_dist_callbacks.cluster import messaging, peer_monitor, timeouts
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.coordinated_stop import CoordinatedStop, StopRequest
from keras_dist_callbacks.options import ShutdownOptions
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.shutdown.preemption_notice import Notice, NoticePoller
from keras_dist_callbacks.run.shutdown.signals import PREEMPTED, StopSignals, let_children_end
from keras_dist_callbacks.run.shutdown.time_limit import TimeLimit
from keras_dist_callbacks.run.shutdown.watchdog import GIL_SECONDS, Watchdog

STOPPED, DIVERGED = "stopped", "diverged"
_BUDGET_SECONDS = 120.0
_LOSS_BUDGET_SECONDS = 8.0
_LEAST_SECONDS = 5.0  # to end in, once a loss is known
_NOTICE_SECONDS = 4.0  # between the end of heartbeats' time and that
_ALL_RAISE_SECONDS = 3.0  # for the other workers to raise too


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
class StoppableRuns(Shared):
    """Runs that may be left early, a `fit()` within a callback of another one last.

    Attributes:
        open: Those that have begun.
    """

    open: list[ShutdownController] = field(default_factory=list)


class ShutdownController:
    """Watches for what ends one run early, and ends it.

    Args:
        options: What was asked for.
        engine: The run's.
        say: Prints a line, on the chief.

    Attributes:
        options: As given.
        stop: What the workers agree on between two steps: whether to stop there.

    Raises:
        ConfigError: `peer_timeout` is over before the loss of a worker is known.
    """

    def __init__(self, options: ShutdownOptions, engine: BackupEngine, say: Callable[[str], None]) -> None:
        self.options = options
        self._engine, self._cluster, self._say = engine, engine.cluster, say
        self._phase = _Phase.NEW
        self.stop = CoordinatedStop(self._cluster, engine.name, self._on_request)
        self._signals = StopSignals(options, self._cluster.num_workers > 1, say, self._ask, self._note)
        self._notices: list[NoticePoller] = []
        if options.save_before_preemption and options.notice is not None:
            given = Notice.of(options.notice)
            self._notices.append(NoticePoller(given, lambda why: self.stop.request(PREEMPTED, why)))
        if options.time_limit is not None:
            limit = TimeLimit.of(options.time_limit, options.grace_period, lambda: self._engine.seconds_to_save)
            if self._cluster.is_chief:  # which knows how long a save takes
                over = Notice(limit.name, limit.is_reached)
                self._notices.append(NoticePoller(over, lambda why: self.stop.request(PREEMPTED, why, limit.left)))
        self._watchdog = Watchdog(options.grace_period, self._last_message)
        self._peer_loss_watchdog = Watchdog(_seconds_after_loss(self._cluster), self._message_after_loss)
        self._process = os.getpid()

    def begin(self) -> None:
        """Training begins: from now on signals are taken over."""
        for notice in self._notices:
            notice.start()  # first: the user's may raise, and nothing is to be given back then
        for abandoned in [run for run in shared(StoppableRuns).open if not run._engine.is_alive]:
            abandoned.close()
        self._phase = _Phase.TRAINING
        shared(StoppableRuns).open.append(self)
        peer_monitor.begin(self._cluster, self._on_loss)
        self.stop.start()
        self._signals.install()

    def pending_at_end(self) -> StopRequest | None:
        """No step follows: a request that no boundary was left for, on any worker; later ones come too late."""
        self._signals.release_interrupt()
        pending = self.stop.pending
        wish = None if pending is None or pending.kind == STOPPED else list(astuple(pending))
        kind = tuple[str, str, int, float | None] | None
        found = next(filter(None, self._cluster.gather(wish, "stopping at the end", kind=kind)), None)
        if found is not None:
            return StopRequest(*found)
        self._phase = _Phase.FINISHING
        self._watchdog.cancel()
        return None

    def save_and_exit(self, request: StopRequest, snapshot: Snapshot) -> NoReturn:
        """Saves, and ends the run on every worker.

        Args:
            request: Why.
            snapshot: What is to be saved.

        Raises:
            Preempted: The process was asked to end.
            KeyboardInterrupt: Ctrl-C was pressed.
            Diverged: Training has computed what is not finite.
        """
        self._begin_exit()
        preempted, position = request.kind == PREEMPTED, snapshot.position
        self._engine.chronicle.end = request.kind
        left = self._watchdog.left if preempted else _BUDGET_SECONDS
        cause = f"{self._cause(request)} at {position}"
        try:
            saved = self._engine.leave(snapshot, left)
        except ClusterError as error:
            text = f"{cause}: {error}"
        else:
            notes = self._engine.take_notes()
            because = f" ({'; '.join(notes)})" if notes else ""
            if saved is None:
                text = f"{cause}; nothing is saved{because}"
            elif saved.step == position.step:
                text = f"{cause}; everything is saved"
            else:
                steps = position.step - saved.step
                text = f"{cause}; not saved{because}: the newest backup is {steps} steps old"
        if request.kind == DIVERGED:
            raise self._diverged(text)
        if not preempted:
            raise KeyboardInterrupt(text)
        self._say(text + unless_restarted(". Start the job again to resume"))
        if summary := self._engine.summary:
            self._say(summary)
        self._signals.call_handler()
        raise Preempted(text)

    def exit_after(self, request: StopRequest, position: Position, act: Callable[[], tuple[str, bool]]) -> NoReturn:
        """Ends the run on every worker, once something was done about what is not finite.

        Args:
            request: Why.
            position: Where training is.
            act: Returns in words what has happened, and whether a restart continues from there.

        Raises:
            Preempted: A restart continues.
            Diverged: It does not.
        """
        self._begin_exit()
        what, goes_on = act()
        text = f"{self._cause(request)} at {position}; {what}"
        if not goes_on:
            raise self._diverged(text)
        self._say(text + unless_restarted(". Start the job again to continue from there"))
        raise Preempted(text)

    def _begin_exit(self) -> None:
        self._phase = _Phase.EXITING
        self._signals.step_is_over()
        let_children_end()

    def _cause(self, request: StopRequest) -> str:
        where = f" on worker {request.worker}" if self._cluster.num_workers > 1 else ""
        if request.kind == DIVERGED:
            return f"{request.why} is not finite{where}"
        verb = "Preempted" if request.kind == PREEMPTED else "Interrupted"
        return f"{verb} by {request.why}{where}"

    def _diverged(self, text: str) -> Diverged:
        return Diverged(f"{text}. `kdc rollback {self._engine.directory} --to ...` goes back to a backup before it")

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
        self._engine.chronicle.end = "failed"
        if self._preemption is not None:
            let_children_end()
        notes = _of_memory(error, self._engine.held_bytes)  # before they are written
        lost, together = None, False
        if peer_monitor.is_loss(self._cluster, error):
            self._end_soon()  # what comes may hang
            lost = peer_monitor.describe_peer_failure(self._cluster, error)
        else:
            together = self._save_at(error, step, at_hand)
        if lost is None and not together:
            peer_monitor.announce_exit(self._cluster, error)
        self._engine.drain(_BUDGET_SECONDS if lost is None else _LOSS_BUDGET_SECONDS)
        if together:  # all wait for the chief, with which the coordination service goes
            self._cluster.gather_soon(None, f"{self._engine.name}/saved", _ALL_RAISE_SECONDS)
        self._engine.abort()
        later = self._engine.take_failure()
        notes += [*self._engine.take_notes(), *([] if later is None else [f"and after it: {later}"])]
        ends_with = lost or error
        for note in [*notes, *self._cost(step, error)]:
            ends_with.add_note(note)
        if (request := self._preemption) is not None and isinstance(ends_with, Exception):
            reason = "; ".join([f"{type(ends_with).__name__}: {ends_with}", *getattr(ends_with, "__notes__", ())])
            text = f"{self._cause(request)}, then {reason}"
            self._phase = _Phase.EXITING
            self._say(text + unless_restarted(". Start the job again to resume"))
            raise Preempted(text) from ends_with
        if lost is not None:
            raise lost from error

    @property
    def _preemption(self) -> StopRequest | None:
        """What asks the process to end, if it does; a signal may come at any time."""
        pending = self.stop.pending
        return pending if pending is not None and pending.kind == PREEMPTED else None

    def _save_at(self, error: BaseException, step: int | None, at_hand: Callable[[], Snapshot | None]) -> bool:
        """Saves if the state is known and all workers end there; whether they do, so none is lost to the rest."""
        newest, alone = self._engine.committed, self._cluster.num_workers == 1
        if alone and newest is not None and step is not None and newest.step >= step:
            return False
        try:
            snapshot = at_hand() if self._saves_at(error) else None
            # One worker alone cannot save: an exception must have ended the run on all of them, at the same place.
            where = [step, None if snapshot is None else snapshot.position.kind]
            answers = self._cluster.gather_soon(where, f"{self._engine.name}/exception", _ALL_RAISE_SECONDS)
            if answers is None or any(other != where for other in answers):
                return False
            if snapshot is not None:
                self._engine.save(lambda: snapshot)
        except Exception as failure:  # noqa: BLE001 - the first error is the one to be seen
            error.add_note(f"training could not be saved: {failure}")
            return False
        return True

    def _cost(self, step: int | None, error: BaseException) -> list[str]:
        """Returns what a restart costs; of an error that each restart repeats, that it does not help."""
        newest, fenced = self._engine.committed, self._engine.fenced
        if fenced is not None and not fenced.nothing_left:
            return []  # what a restart finds is up to the newer run
        if is_repeated(error):
            cost = "; a restart alone raises this error again"
        elif newest is None:
            cost = "; a restart starts from the beginning"
        elif step is None:
            cost = ""
        elif step > newest.step:
            lost = step - newest.step
            cost = f"; a restart trains {lost} step{'s' if lost > 1 else ''} again"
        else:
            cost = "; a restart loses no step"
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
        self._engine.events.happened("attempt_ended", self._engine.committed, self._engine.chronicle.end)
        self._engine.events.close()
        self._phase = _Phase.EXITED if exits else _Phase.CLOSED
        peer_monitor.end(self._on_loss)
        if self in shared(StoppableRuns).open:
            shared(StoppableRuns).open.remove(self)
        self.stop.close()
        for notice in self._notices:
            notice.stop()
        if not exits:
            self._watchdog.cancel()
        if self._engine.drain(0):  # else a thread that still writes would hold up the process' end
            self._peer_loss_watchdog.cancel()
        self._signals.remove(exits=exits)  # last: a late signal's handler may raise

    @property
    def _is_here(self) -> bool:
        """Whether this is the process that trains, not one that a callback or the input forked from it."""
        return os.getpid() == self._process

    # --- what asks for it

    def _note(self, kind: str, why: str) -> None:
        if self._phase in _LISTENING:
            self.stop.note(kind, why)

    def _ask(self, kind: str, why: str) -> None:
        if self._phase in _LISTENING:
            self.stop.request(kind, why)

    def _on_request(self, request: StopRequest) -> None:
        if request.kind == PREEMPTED and self._phase in _LISTENING:
            self._engine.events.happened("preemption_requested", message=request.why)
            self._watchdog.start(request.seconds)

    def _on_loss(self) -> None:
        self._engine.events.happened("worker_lost", message=messaging.lost() or "")
        if self._engine.is_alive:  # an exception may have ended it unnoticed
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


def _seconds_after_loss(cluster: Cluster) -> float:
    """Returns how long a process may take to end once it is known that another worker is lost.

    Raises:
        ConfigError: `peer_timeout` leaves no time for it.
    """
    heartbeat_timeout, peer_timeout = messaging.heartbeat_timeout(), timeouts.seconds_of("peer_timeout")
    known = heartbeat_timeout + _NOTICE_SECONDS + GIL_SECONDS
    if cluster.num_workers > 1 and peer_timeout < known + _LEAST_SECONDS:
        raise ConfigError(
            f"peer_timeout={peer_timeout:g} is too short: the loss of a worker is known after {known:g} s "
            f"(heartbeat_timeout={heartbeat_timeout:g}); set it in ClusterOptions, or KDC_PEER_TIMEOUT in the "
            f"environment, to {known + _LEAST_SECONDS:g} or more"
        )
    return max(_LEAST_SECONDS, peer_timeout - known)


def _of_memory(error: BaseException, held: int) -> list[str]:
    """Returns what a backup held, in bytes, when memory was wanting; nothing for other errors."""
    if not isinstance(error, MemoryError | tf.errors.ResourceExhaustedError) or not held:
        return []
    return [
        f"an unfinished backup held up to {data_size(held)} of this computer's memory then: a backup holds the state "
        "of training once more until it is written; with a larger save_freq that is less often, and with "
        "save_freq=False at the end only"
    ]

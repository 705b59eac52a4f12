"""Peers: whether they live, and what their loss is called."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from keras_dist_callbacks._compat import coordination
from keras_dist_callbacks._compat.hard_exit import exit_process_after
from keras_dist_callbacks.base.errors import RESTART_EXIT_CODE, PeerLostError
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.cluster import messaging
from keras_dist_callbacks.cluster.roles import Role, split_address

_POLL_SECONDS = 1.0
_FAILURES = 2  # in a row, before a service that does not answer is taken for lost


@dataclass
class PeerMonitor(Shared):
    """Who watches, and the thread that does it for all of them.

    Attributes:
        count: Of those that have begun and not ended.
        listeners: To be called at a loss.
        threads: At most one.
        lock: For all of these.
    """

    count: int = 0
    listeners: list[Callable[[], None]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def in_child(self) -> PeerMonitor:
        """Another thread may have held the lock."""
        return PeerMonitor(self.count, self.listeners, self.threads)


@contextlib.contextmanager
def monitoring(role: Role) -> Iterator[None]:
    """Within the block, `messaging` raises when a worker is lost."""
    try:
        begin(role)
        yield
    finally:
        end()


def begin(role: Role, on_loss: Callable[[], None] | None = None) -> None:
    """As `monitoring`, until `end`.

    Args:
        role: Of this worker.
        on_loss: Called, in any thread, as soon as a worker is lost; who that is may be known a little later.
    """
    ours = shared(PeerMonitor)
    with ours.lock:
        ours.count += 1
        if on_loss is not None:
            ours.listeners.append(on_loss)
        if role.num_workers > 1 and not ours.threads and messaging.lost() is None:
            ours.threads.append(threading.Thread(target=_watch, args=(role,), name="kdc-peers", daemon=True))
            try:
                ours.threads[0].start()
            except RuntimeError:  # no thread can be started: the next run tries it again
                ours.threads.clear()
                raise
    if on_loss is not None and messaging.lost() is not None:
        on_loss()


def end(on_loss: Callable[[], None] | None = None) -> None:
    """Takes one `begin` back."""
    ours = shared(PeerMonitor)
    with ours.lock:
        ours.count -= 1
        if on_loss is not None:
            ours.listeners.remove(on_loss)


def _watch(role: Role) -> None:
    """Until a worker is lost, or `monitoring` has ended."""
    answer_seconds = messaging.heartbeat_timeout() / _FAILURES
    look = functools.partial(coordination.get_value, KEY, int(_POLL_SECONDS * 1000))
    sign = functools.partial(coordination.set_once, f"kdc/sign/{role.worker_index}", "")
    jobs = [(name, len(hosts)) for name, hosts in role.jobs.items()]
    try:
        failures, fails_since = 0, 0.0
        while _is_alive():
            began, lost = time.monotonic(), []
            try:
                # What a worker has said of itself or another. This waits for it, which is the pause of this loop.
                report = messaging.call_with_timeout(
                    look, _POLL_SECONDS + answer_seconds, "asking which worker is lost"
                )
                if role.is_chief:
                    lost = coordination.lost_tasks(jobs)
                else:  # of a key that nobody sets, a frozen service says as little as a live one; of this it should
                    messaging.call_with_timeout(sign, answer_seconds, "checking that the coordination service answers")
            except Exception:  # noqa: BLE001 - whatever a service says that is slow, or ends
                failures, fails_since = failures + 1, fails_since if failures else began
                # The chief's own service is never lost to it, but slow.
                if not role.is_chief and failures >= _FAILURES:
                    silent = time.monotonic() - fails_since >= messaging.heartbeat_timeout()
                    if silent or has_ended(role, 0):
                        return _declare(functools.partial(describe_unresponsive, role, 0))
                time.sleep(_POLL_SECONDS)  # its answer may have come at once
                continue
            failures = 0
            if report is not None:
                return None if is_own_report(role, report) else _declare(functools.partial(parse_report, role, report))
            if lost:
                return _declare(functools.partial(report_lost_tasks, role, lost))
    finally:
        with shared(PeerMonitor).lock:
            _forget_this_thread()


def _is_alive() -> bool:
    ours = shared(PeerMonitor)
    with ours.lock:
        if not ours.count:
            _forget_this_thread()  # with the lock: who begins now starts another
        return bool(ours.count)


def _forget_this_thread() -> None:
    threads = shared(PeerMonitor).threads
    if threading.current_thread() in threads:
        threads.remove(threading.current_thread())


def _declare(who: Callable[[], str | None]) -> None:
    """A worker is lost; who that is may take seconds to find out."""
    ours = shared(PeerMonitor)
    with ours.lock:
        if not ours.count:
            return  # it has ended as it should
        listeners = list(ours.listeners)
    for listener in listeners:
        listener()
    text = who()
    if text is not None:
        messaging.mark_peer_lost(text)


_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:([0-9]{1,5})(?![0-9])")
_PASSED_ON = re.compile(r"lost: (.*?)(?: \[type\.googleapis|\n|$)")
_FAREWELL = re.compile(r"worker ([0-9]{1,5}) ended with (.*?)(?: \[type\.googleapis|\n|$)")
KEY = "kdc/lost"
"""Under which the coordination service keeps what is known of a lost worker."""
_SILENT = "sends no heartbeats: it has ended, is frozen or is disconnected"
_CONNECT_SECONDS = 1.0
_ANSWER_SECONDS = 3.0
_HANG_SECONDS = _EXIT_SECONDS = 8.0
_LONGEST_REASON = 300


def is_loss(role: Role, error: BaseException) -> bool:
    """Returns whether an exception of one worker means that another is gone."""
    several = role.num_workers > 1 and not role.is_evaluator
    return several and isinstance(error, (*coordination.peer_errors(), PeerLostError))


def announce_exit(role: Role, error: BaseException) -> None:
    """Reports to the other workers that this one ends, so that they need not wait for its heartbeats to stay away."""
    if role.num_workers > 1:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_REASON]
        _say(f"worker {role.worker_index} ended with {reason}")


def describe_peer_failure(role: Role, error: BaseException) -> PeerLostError:
    """Returns the error that names the lost worker; it is reported to the others too, which may know less.

    Args:
        role: Of this worker.
        error: What TensorFlow or the coordination service said.
    """
    who = messaging.lost()
    if who is None:
        passed_on = _PASSED_ON.search(str(error))
        who = parse_report(role, str(error))
        if passed_on is None:
            _say(f"lost: {who}")
        messaging.mark_peer_lost(who)
    _bound_exit()
    return PeerLostError(f"{role.name}: {who}. See its log{messaging.cannot_continue()}")


@functools.cache
def _bound_exit() -> None:
    """Once: what TensorFlow does at the process' end may wait for a peer that is cut off (measured: for a minute)."""
    process = os.getpid()

    def exit_soon() -> None:
        if os.getpid() == process:  # a forked child has nothing to do with the lost peer
            exit_process_after(_EXIT_SECONDS, RESTART_EXIT_CODE)

    atexit.register(exit_soon)


def describe_if_peer_failure(error: Exception) -> Exception:
    """TensorFlow's error as `describe_peer_failure` words it; any other, and that of a single worker, unchanged."""
    role = Role.detect()
    if not is_loss(role, error):
        return error
    report = describe_peer_failure(role, error)
    report.__cause__ = error
    return report


def is_own_report(role: Role, report: str) -> bool:
    """Returns whether it was this worker that has said that it ends."""
    farewell = _FAREWELL.search(report)
    return farewell is not None and int(farewell[1]) == role.worker_index


def parse_report(role: Role, report: str) -> str:
    """Who is lost and why, of what another worker has said."""
    passed_on = _PASSED_ON.search(report)
    if passed_on is None:
        return _who(role, report)
    is_this = passed_on[1].startswith(_named(role, role.worker_index))
    return f"the other workers have lost this one, which {passed_on[1].partition(') ')[2]}" if is_this else passed_on[1]


def report_lost_tasks(role: Role, tasks: list[tuple[str, int]]) -> str | None:
    """Who is lost and why, of tasks that the coordination service has given up; reports it to the other workers."""
    known = (_worker(role, job, index) for job, index in tasks)
    workers = [worker for worker in known if worker not in (None, role.worker_index)]
    if not workers:
        return None
    errors = _port_errors(role, workers)
    who = "; ".join(f"{_named(role, worker)} {_in_words(errors[worker], _SILENT)}" for worker in workers)
    _say(f"lost: {who}")
    return who


def describe_unresponsive(role: Role, worker: int) -> str:
    """Returns the words for a lost worker that does not answer."""
    found = _in_words(_port_error(role.addresses[worker]), "does not answer: it is frozen or disconnected")
    return f"{_named(role, worker)} {found}"


def has_ended(role: Role, worker: int) -> bool:
    """Returns whether nothing listens on a worker's port any more."""
    return isinstance(_port_error(role.addresses[worker]), ConnectionRefusedError)


def _who(role: Role, text: str) -> str:
    """Who is lost and why, of an error of TensorFlow's or what another worker has said."""
    farewell = _FAREWELL.search(text)
    if farewell is not None and int(farewell[1]) < role.num_workers:
        return f"{_named(role, int(farewell[1]))} reported that it ended with {farewell[2]}"
    reported = {worker for job, index in _TASK.findall(text) if (worker := _worker(role, job, int(index))) is not None}
    reported.discard(role.worker_index)
    errors = _port_errors(role, [worker for worker in range(role.num_workers) if worker != role.worker_index])
    # Where all that are named still listen, it may be the chief that is lost: who is cut off from it ends its step, and
    # is named, and the chief is not. Only a chief that still listens can be cut off; one that has ended may have done
    # so because of the worker that is named.
    chief_may_listen = not role.is_chief and not isinstance(errors[0], ConnectionRefusedError)
    if reported and chief_may_listen and not any(errors[worker] for worker in reported):
        reported = reported if _service_answers(role) else set()
    lost = [f"{_named(role, worker)} {_in_words(errors[worker], _SILENT)}" for worker in reported]
    lost = lost or [f"{_named(role, worker)} {_in_words(error, _SILENT)}" for worker, error in errors.items() if error]
    if not lost and not _service_answers(role):
        return describe_unresponsive(role, 0)
    first = text.partition("\n")[0][:_LONGEST_REASON]
    return "; ".join(lost) or f"another worker seems to be lost, or something else is not available ({first})"


def _service_answers(role: Role) -> bool:
    """Returns whether the chief is there, which hosts the coordination service."""
    try:
        messaging.publish(f"kdc/alive/{uuid.uuid4().hex}", b"", _ANSWER_SECONDS)
    except Exception:  # noqa: BLE001 - whatever a lost service says
        return role.is_chief
    return True


def _say(text: str) -> None:
    """In a step others hear of it as an error, elsewhere by watching the key."""
    publish = functools.partial(coordination.set_once, KEY, text)
    report = functools.partial(coordination.report_error, text)
    with contextlib.suppress(Exception):  # the error itself is what matters, and others may be gone already
        messaging.call_with_timeout(publish, _ANSWER_SECONDS, "reporting to the other workers")
        take_back = exit_process_after(_HANG_SECONDS, RESTART_EXIT_CODE)  # the next call holds the GIL
        try:
            messaging.call_with_timeout(report, _ANSWER_SECONDS, "reporting to the other workers")
        finally:
            if take_back is not None:
                take_back()


def _named(role: Role, worker: int) -> str:
    return f"{'the chief' if worker == 0 else f'worker {worker}'} ({role.addresses[worker]})"


def _worker(role: Role, job: str, index: int) -> int | None:
    before = 0
    for name, hosts in role.jobs.items():
        if name == job:
            return before + index if index < len(hosts) else None
        before += len(hosts)
    return None


def _port_errors(role: Role, workers: Sequence[int]) -> dict[int, OSError | None]:
    """Returns why some workers cannot be connected to, asked at the same time."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return dict(zip(workers, pool.map(_port_error, [role.addresses[worker] for worker in workers]), strict=True))


def _port_error(address: str) -> OSError | None:
    """Returns why a worker's port cannot be connected to; a refusal means that it has ended. None if it listens."""
    try:
        socket.create_connection(split_address(address), _CONNECT_SECONDS).close()
    except OSError as error:
        return error
    return None


def _in_words(error: OSError | None, if_it_listens: str) -> str:
    if error is None:
        return if_it_listens
    is_refused = isinstance(error, ConnectionRefusedError)
    return "has ended: its port is closed" if is_refused else f"cannot be reached: {error.strerror or 'no answer'}"

"""Knows within seconds that another worker is lost, whatever this one's main thread is doing.

TensorFlow ends a step when a worker is lost, but nothing that waits outside of a step: a gather, a save, an upload.
The chief hosts the coordination service and asks it who still sends heartbeats; it tells the others, who take a
service that does not answer for a lost chief. Nobody watches unless something is `watching`: a worker that has ended
after training is not lost.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from keras_dist_callbacks._compat import coordination
from keras_dist_callbacks.cluster import loss, messaging
from keras_dist_callbacks.cluster.roles import Role
from keras_dist_callbacks.process import Shared, shared

_POLL_SECONDS = 1.0
_FAILURES = 2  # in a row, before a service that does not answer is taken for lost


@dataclass
class Watching(Shared):
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

    def in_child(self) -> Watching:
        """Another thread may have held the lock."""
        return Watching(self.count, self.listeners, self.threads)


@contextlib.contextmanager
def watching(role: Role) -> Iterator[None]:
    """Within the block, `messaging` raises when a worker is lost."""
    begin(role)
    try:
        yield
    finally:
        end()


def begin(role: Role, on_loss: Callable[[], None] | None = None) -> None:
    """As `watching`, until `end`.

    Args:
        role: Of this worker.
        on_loss: Called, in any thread, as soon as a worker is lost; who that is may be known a little later.
    """
    ours = shared(Watching)
    with ours.lock:
        ours.count += 1
        if on_loss is not None:
            ours.listeners.append(on_loss)
        if role.num_workers > 1 and not ours.threads and messaging.lost() is None:
            ours.threads.append(threading.Thread(target=_watch, args=(role,), name="kdc-peers", daemon=True))
            ours.threads[0].start()
    if on_loss is not None and messaging.lost() is not None:
        on_loss()


def end(on_loss: Callable[[], None] | None = None) -> None:
    """Takes one `begin` back."""
    ours = shared(Watching)
    with ours.lock:
        ours.count -= 1
        if on_loss is not None:
            ours.listeners.remove(on_loss)


def _watch(role: Role) -> None:
    """Until a worker is lost, or nothing is `watching`."""
    try:
        failures, fails_since = 0, 0.0
        while _goes_on():
            began = time.monotonic()
            try:
                told = _told()
                lost = coordination.lost_tasks(_jobs(role)) if role.is_chief else _ask_for_a_sign(role)
            except Exception:  # noqa: BLE001 - whatever a service says that is slow, or ends
                failures, fails_since = failures + 1, fails_since if failures else began
                if _is_gone(role, failures, fails_since):
                    return _declare(functools.partial(loss.silent, role, 0))
                time.sleep(_POLL_SECONDS)  # its answer may have come at once
                continue
            failures = 0
            if told is not None:
                return None if loss.is_mine(role, told) else _declare(functools.partial(loss.meaning, role, told))
            if lost:
                return _declare(functools.partial(loss.pass_on, role, lost))
    finally:
        with shared(Watching).lock:
            _forget_this_thread()


def _is_gone(role: Role, failures: int, since: float) -> bool:
    """Whether the chief is lost; its own service is never lost to itself, but slow."""
    if role.is_chief or failures < _FAILURES:
        return False
    return time.monotonic() - since >= messaging.silence() or loss.has_ended(role, 0)


def _goes_on() -> bool:
    ours = shared(Watching)
    with ours.lock:
        if not ours.count:
            _forget_this_thread()  # with the lock: who begins now starts another
        return bool(ours.count)


def _forget_this_thread() -> None:
    threads = shared(Watching).threads
    if threading.current_thread() in threads:
        threads.remove(threading.current_thread())


def _declare(who: Callable[[], str | None]) -> None:
    """A worker is lost; who that is may take seconds to find out."""
    ours = shared(Watching)
    with ours.lock:
        if not ours.count:
            return  # it has ended as it should
        listeners = list(ours.listeners)
    for listener in listeners:
        listener()
    text = who()
    if text is not None:
        messaging.declare_lost(text)


def _told() -> str | None:
    """What a worker has said of itself or another, waiting a little for it."""
    get = functools.partial(coordination.get_value, loss.KEY, int(_POLL_SECONDS * 1000))
    return messaging.bounded(get, _POLL_SECONDS + messaging.silence() / _FAILURES, "asking who is lost")


def _ask_for_a_sign(role: Role) -> list[tuple[str, int]]:
    """Returns if the service answers; one that is frozen leaves a request to set a key without an answer."""
    sign = functools.partial(coordination.set_once, f"kdc/sign/{role.worker_index}", "")
    messaging.bounded(sign, messaging.silence() / _FAILURES, "asking for a sign of life")
    return []


def _jobs(role: Role) -> list[tuple[str, int]]:
    return [(name, len(hosts)) for name, hosts in role.jobs.items()]

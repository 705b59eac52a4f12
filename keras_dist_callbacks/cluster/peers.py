"""Knows within seconds that another worker is lost, whatever this one's main thread is doing.

TensorFlow ends a step when a worker is lost, but nothing that waits outside of a step: a gather, a save, an upload.
The chief hosts the coordination service and asks it who still sends heartbeats; it tells the others, who take a
service that does not answer for a lost chief.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable

from keras_dist_callbacks._compat import coordination
from keras_dist_callbacks.cluster import loss, messaging
from keras_dist_callbacks.cluster.roles import Role
from keras_dist_callbacks.errors import ClusterError

HEARTBEAT_SECONDS = 10.0  # TensorFlow's own default too
_POLL_SECONDS = 1.0
_lock = threading.Lock()
_threads: list[threading.Thread] = []
_listeners: list[Callable[[str], None]] = []
_silence = [HEARTBEAT_SECONDS]


def expect_heartbeats(seconds: float) -> None:
    """After how many seconds a silent worker counts as lost, as the coordination service was told."""
    _silence[0] = seconds


def silence() -> float:
    """Seconds after which a silent worker counts as lost."""
    return _silence[0]


def watch(role: Role) -> None:
    """Begins to watch, once per process; from then on `messaging` raises when a worker is lost."""
    if role.num_workers == 1:
        return
    with _lock:
        if not _threads:
            run = _watch_workers if role.is_chief else _watch_chief
            _threads.append(threading.Thread(target=run, args=(role,), name="kdc-peers", daemon=True))
            _threads[0].start()


def listen(listener: Callable[[str], None]) -> None:
    """Calls `listener` with what is known, in any thread, once a worker is lost; at once if it is."""
    with _lock:
        _listeners.append(listener)
    text = messaging.lost()
    if text is not None:
        listener(text)


def unlisten(listener: Callable[[str], None]) -> None:
    """Takes a listener away."""
    with _lock, contextlib.suppress(ValueError):
        _listeners.remove(listener)


def _declare(text: str | None) -> None:
    """A worker is lost, other than this one."""
    if text is None:
        return
    messaging.declare_lost(text)
    with _lock:
        listeners = list(_listeners)
    for listener in listeners:
        listener(text)


def _watch_workers(role: Role) -> None:
    """On the chief: until the service has given a worker up, or one has said that it ends."""
    jobs = [(name, len(hosts)) for name, hosts in role.jobs.items()]
    while True:
        time.sleep(_POLL_SECONDS)
        try:
            told = _told(1)
        except ClusterError:  # this process' own service is only slow
            continue
        if told is not None:
            _declare(loss.meaning(role, told))
            return
        lost = coordination.lost_tasks(jobs)
        if lost:
            _declare(loss.pass_on(role, lost))
            return


def _watch_chief(role: Role) -> None:
    """On the others: until the chief says who is lost, or its service does not answer."""
    fails_since: float | None = None
    while True:
        began = time.monotonic()
        try:
            told = _told(int(_POLL_SECONDS * 1000))
            if told is None:
                _ask_for_a_sign(role)
        except ClusterError:
            fails_since = fails_since or began
            if loss.has_ended(role, 0) or time.monotonic() - fails_since >= silence():
                _declare(loss.silent(role, 0))
                return
            time.sleep(_POLL_SECONDS)
            continue
        fails_since = None
        if told is not None:
            _declare(loss.meaning(role, told))
            return


def _ask_for_a_sign(role: Role) -> None:
    """Returns if the service answers; one that is frozen leaves a request to set a key without an answer."""
    sign = functools.partial(coordination.set_once, f"kdc/sign/{role.worker_index}", "")
    messaging.bounded(sign, silence(), "asking for a sign of life")


def _told(wait_ms: int) -> str | None:
    get = functools.partial(coordination.get_value, loss.KEY, wait_ms)
    return messaging.bounded(get, wait_ms / 1000 + silence(), "asking who is lost")

"""Messages between workers through the key-value store of the coordination service.

Every request runs in a thread of its own that can be left behind: under a network partition one may never
return.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from keras_dist_callbacks._compat import coordination
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ClusterError, ClusterTimeoutError, PeerLostError
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.base.progress_file import unless_restarted

_T = TypeVar("_T")
_CHUNK = 2**20  # characters; gRPC refuses messages of 4 MiB
_SLICE_MS = 1000
_POLL_SECONDS = 0.25
_COUNT = re.compile(r"[0-9]{1,6}")


@dataclass
class Peers(Shared):
    """What is known of the other workers; a process has one cluster, and a lost worker does not come back.

    Attributes:
        heartbeat_timeout: Seconds after which a silent worker counts as lost; TensorFlow's own default.
        lost: Which worker is lost, and why.
    """

    heartbeat_timeout: float = 10.0
    lost: str | None = None


def expect_heartbeats(seconds: float) -> None:
    """After how many seconds a silent worker counts as lost, as the coordination service was configured."""
    shared(Peers).heartbeat_timeout = seconds


def heartbeat_timeout() -> float:
    """Returns seconds after which a silent worker counts as lost."""
    return shared(Peers).heartbeat_timeout


def mark_peer_lost(text: str) -> None:
    """Another worker is lost: every wait in this module raises, from now on."""
    peers = shared(Peers)
    peers.lost = peers.lost or text


def lost() -> str | None:
    """Returns which worker is lost and why, once that is known."""
    return shared(Peers).lost


def raise_if_lost() -> None:
    """Raises if another worker is known to be lost.

    Raises:
        PeerLostError: It names the worker.
    """
    known = lost()
    if known is not None:
        raise PeerLostError(f"{known}{cannot_continue()}")


def cannot_continue() -> str:
    """Returns the end of a message about a lost worker."""
    return f". Training cannot continue without it{unless_restarted(': start all workers again')}"


def publish(key: str, value: bytes, timeout: float) -> int:
    """Sets a key of the coordination service, in chunks; a key can be set once.

    Returns:
        The number of chunks, which `delete_key` needs.

    Raises:
        ClusterTimeoutError: The service did not take it in time.
        PeerLostError: The service is gone.
    """
    text = base64.b64encode(value).decode("ascii")
    chunks = [text[i * _CHUNK : (i + 1) * _CHUNK] for i in range(chunk_count(value))]
    deadline = time.monotonic() + timeout
    for number, chunk in enumerate(chunks):
        prefix = f"{len(chunks)}:" if number == 0 else ""
        call_with_timeout(
            functools.partial(coordination.set_value, f"{key}/{number}", prefix + chunk),
            deadline - time.monotonic(),
            f"setting {key}",
        )
    return len(chunks)


def publish_once(key: str, value: bytes, timeout: float) -> bool:
    """Sets a key if it is not set; whether this call did. The value fits into one chunk.

    Raises:
        ClusterTimeoutError: The service did not take it in time.
        PeerLostError: The service is gone.
    """
    text = f"1:{base64.b64encode(value).decode('ascii')}"
    return call_with_timeout(functools.partial(coordination.set_once, f"{key}/0", text), timeout, f"setting {key}")


def chunk_count(value: bytes) -> int:
    """Returns how many chunks `publish` makes of a value."""
    return max(1, -(-4 * -(-len(value) // 3) // _CHUNK))


def fetch(key: str, timeout: float, give_up: Callable[[], bool] = lambda: False) -> bytes | None:
    """Waits for what `publish` set; None if it did not come in time or `give_up` said so.

    Raises:
        PeerLostError: The coordination service is gone, or a worker.
        ClusterError: The key has what `publish` would not have set.
    """
    deadline = time.monotonic() + timeout
    first = _fetch_chunk(f"{key}/0", deadline, give_up)
    if first is None:
        return None
    count, colon, text = first.partition(":")
    if not colon or not _COUNT.fullmatch(count):
        raise invalid_message(key)
    parts = [text]
    for number in range(1, int(count)):
        chunk = _fetch_chunk(f"{key}/{number}", deadline, give_up)
        if chunk is None:
            return None
        parts.append(chunk)
    try:
        return base64.b64decode("".join(parts), validate=True)
    except ValueError:
        raise invalid_message(key) from None


def decode(message: bytes, kind: Any, source: str) -> Any:
    """Returns what a worker has published as JSON, checked completely.

    Args:
        message: What `fetch` returned.
        kind: The type that it must have, as msgspec understands types.
        source: Who said it and about what, for the message.

    Raises:
        ClusterError: It is something else.
    """
    try:
        value = json.loads(message)  # not msgspec's own parser: figures such as NaN are no JSON to it
    except (ValueError, RecursionError):
        raise invalid_message(source) from None
    return check(value, kind, source)


def check(value: Any, kind: Any, source: str) -> Any:
    """Returns a JSON value as the type that it must be of; the rest is as in `decode`."""
    try:
        return validation.convert(value, kind)
    except (ValueError, RecursionError):
        raise invalid_message(source) from None


def invalid_message(source: str) -> ClusterError:
    """Returns the error for what no worker of this version would say."""
    return ClusterError(
        f"{source}: the message is not one of this version. Install the same version of keras-dist-callbacks on all "
        "workers, and do not let other processes reach their ports"
    )


def delete_key(key: str, chunks: int = 1) -> None:
    """Removes what `publish` set, so that the service's memory does not grow."""
    for number in range(chunks):
        call_with_timeout(functools.partial(coordination.delete_value, f"{key}/{number}"), 10.0, f"deleting {key}")


def _fetch_chunk(key: str, deadline: float, give_up: Callable[[], bool]) -> str | None:
    while True:
        left = int((deadline - time.monotonic()) * 1000)
        if left <= 0 or give_up():
            return None
        wait = min(_SLICE_MS, left)
        get = functools.partial(coordination.get_value, key, wait)
        value = call_with_timeout(get, wait / 1000 + 2 * heartbeat_timeout(), f"getting {key}")
        if value is not None:
            return value


def call_with_timeout(operation: Callable[[], _T], timeout: float, what: str) -> _T:
    """Runs a request that may never return (a partitioned network) in a thread that can be left behind.

    Where no thread can be started, the caller waits for it: most requests do return.

    Raises:
        ClusterTimeoutError: It did not return in time.
        PeerLostError: The coordination service is gone, or a worker is known to be lost meanwhile.
    """
    outcome: list[_T] = []
    failure: list[Exception] = []

    def run() -> None:
        try:
            outcome.append(operation())
        except Exception as error:  # noqa: BLE001 - handed to the caller below
            failure.append(error)

    thread = threading.Thread(target=run, name="kdc-coordination", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # none can be started
        run()
    deadline = time.monotonic() + timeout
    while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
        thread.join(min(left, _POLL_SECONDS))
        if thread.is_alive():
            raise_if_lost()
    if thread.is_alive():
        thread.join(_POLL_SECONDS)  # this process may have stood still for all of that time, and not the service
    if failure:
        if isinstance(failure[0], coordination.service_errors()):
            raise PeerLostError(f"{what}: the coordination service has ended ({failure[0]})") from failure[0]
        raise failure[0]
    if not outcome:
        raise ClusterTimeoutError(f"{what}: the coordination service did not answer within {timeout:.0f} s")
    return outcome[0]

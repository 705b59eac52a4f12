"""Makes sure over plain TCP that every worker is there before TensorFlow builds its cluster.

TensorFlow's own build holds the GIL while it waits, so that no time-out and no signal handler in Python can
act, and a lone worker ignores SIGTERM. Here a lone process ends in bounded time, names who is missing and
obeys SIGTERM. The chief listens on its own TensorFlow port, which TensorFlow binds right afterwards; the
peers close their connections first, so that TIME_WAIT stays on their side.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Sequence

from keras_dist_callbacks.errors import ClusterTimeoutError, ConfigError

_GO = b"GO\n"
_POLL_SECONDS = 0.2
_HELLO_LIMIT = 4096


def wait_for_everyone(addresses: Sequence[str], index: int, timeout: float, token: str) -> None:
    """Returns when all workers of the cluster have said hello to the chief.

    Args:
        addresses: `host:port` of each training worker, the chief first.
        index: This process' place in `addresses`.
        timeout: Seconds to wait.
        token: What tells this cluster from another one on the same ports.

    Raises:
        ClusterTimeoutError: Somebody is missing; the message names them.
        ConfigError: An address is malformed or this process' port is occupied.
    """
    deadline = time.monotonic() + timeout
    _, own_port = split_address(addresses[index])
    if index == 0:
        with _listen(own_port, addresses[0]) as server:
            _collect(server, addresses, deadline, timeout, token)
    else:
        _listen(own_port, addresses[index]).close()
        _report_to_chief(addresses[0], index, deadline, timeout, token)


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair.

    Raises:
        ConfigError: It is not of that form.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"TF_CONFIG: {address!r} is no address of the form host:port")
    return host.strip("[]"), int(port)


def _listen(port: int, address: str) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6 if dual else socket.AF_INET,
            dualstack_ipv6=dual,
            backlog=128,
        )
    except OSError as error:
        raise ConfigError(
            f"this worker cannot listen on its own port {port} ({address}): {error.strerror}; "
            "end the process that occupies it (an earlier run?) or give the worker another port in TF_CONFIG"
        ) from error


def _collect(server: socket.socket, addresses: Sequence[str], deadline: float, timeout: float, token: str) -> None:
    connections: dict[int, socket.socket] = {}
    server.settimeout(_POLL_SECONDS)
    try:
        while len(connections) < len(addresses) - 1:
            if time.monotonic() > deadline:
                missing = [f"worker {i} ({addresses[i]})" for i in range(1, len(addresses)) if i not in connections]
                raise ClusterTimeoutError(
                    f"chief {addresses[0]}: no contact from {', '.join(missing)} within {timeout:g} s; start all "
                    "workers of TF_CONFIG, or raise startup_timeout"
                )
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                _admit(connection, connections, len(addresses), token)
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(_GO)
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.settimeout(2.0)
                connection.recv(1)  # returns when the peer has closed its side
    finally:
        for connection in connections.values():
            connection.close()


def _admit(connection: socket.socket, connections: dict[int, socket.socket], count: int, token: str) -> None:
    connection.settimeout(2.0)
    try:
        with connection.makefile("rb") as file:
            hello = json.loads(file.readline(_HELLO_LIMIT))
        index = hello["index"]
        known = hello["token"] == token and isinstance(index, int) and 0 < index < count
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        connection.close()  # a port scanner, a health check or a worker of another cluster
        return
    if index in connections:
        connections[index].close()  # it was restarted while we waited
    connections[index] = connection


def _report_to_chief(chief: str, index: int, deadline: float, timeout: float, token: str) -> None:
    host, port = split_address(chief)
    hello = json.dumps({"index": index, "token": token}).encode() + b"\n"
    reason = "no connection"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=min(2.0, left)) as connection:
                connection.sendall(hello)
                connection.settimeout(left)
                if connection.recv(len(_GO)) == _GO:
                    return
                reason = "it closed the connection; its TF_CONFIG may differ from this worker's"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
    raise ClusterTimeoutError(
        f"worker {index}: the chief {chief} and the rest of the cluster did not come up within {timeout:g} s "
        f"(last: {reason}); start all workers of TF_CONFIG, or raise startup_timeout"
    )

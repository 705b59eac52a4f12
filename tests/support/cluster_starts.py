"""Starts of clusters within the test's process, and those who disturb them, with real sockets on loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks.cluster.rendezvous import wait_for_everyone


def free_addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@dataclass
class ClusterStarts:
    """The workers of one cluster, each in a thread."""

    addresses: list[str]
    pool: ThreadPoolExecutor
    connections: list[socket.socket] = field(default_factory=list)

    def begin(self, index: int, seconds: float = 60.0, token: Any = None) -> Future[float]:
        """How many seconds the start of a worker takes, or its error, which has them as `seconds`."""
        return self.pool.submit(self._start, index, seconds, token)

    def call(self, index: int = 0, said: bytes = b"") -> socket.socket:
        """A connection to a worker's port, as soon as it listens."""
        deadline = time.monotonic() + 60
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", port_of(self.addresses[index])), 30)
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "it never listened"
                time.sleep(0.02)
            else:
                self.connections.append(connection)
                connection.sendall(said)
                return connection

    def _start(self, index: int, seconds: float, token: Any) -> float:
        began = time.monotonic()
        try:
            wait_for_everyone(self.addresses, index, seconds, token)
        except Exception as error:
            error.seconds = time.monotonic() - began  # type: ignore[attr-defined]
            raise
        return time.monotonic() - began


@contextlib.contextmanager
def starting(workers: int) -> Iterator[ClusterStarts]:
    with ThreadPoolExecutor(workers) as pool:
        made = ClusterStarts(free_addresses(workers), pool)
        try:
            yield made
        finally:
            for connection in made.connections:
                connection.close()


@contextlib.contextmanager
def serving(address: str, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Someone who answers at an address, each caller with `serve`."""
    server = socket.create_server(("127.0.0.1", port_of(address)))

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.settimeout(30)
                with connection, contextlib.suppress(OSError):
                    serve(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(30)


def read_line(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as file:
        return file.readline()


def read_all(connection: socket.socket) -> bytes:
    """What the other side says until it closes the connection."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            said += part
    return said


def is_hung_up(connection: socket.socket) -> bool:
    """Waits until the other side has closed the connection."""
    try:
        read_all(connection)
    except TimeoutError:
        return False
    return True


def drip(connection: socket.socket, content: Sequence[bytes], pause: float) -> None:
    """Says a little now and then, until no one listens any more."""
    with contextlib.suppress(OSError):
        for part in content:
            connection.sendall(part)
            time.sleep(pause)

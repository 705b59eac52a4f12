"""The rendezvous of all workers before the strategy is made: each says hello at the chief's own port.

A message is a short line of JSON; whose turn it is tells its schema, which is checked before anything is used.

    worker  Hello  who it is, and whether it has a token
    chief   Reply  its nonce and proof; or why it refuses
    worker  Reply  its proof
    chief   Reply  its second proof, when all workers are there

The proofs are of the cluster's token, and empty without one. A process that speaks to the chief can ask it for a proof
and then try out tokens at leisure: a token must be random, not a word that can be guessed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import secrets
import selectors
import socket
import time
from collections.abc import Generator, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ClusterTimeoutError, ConfigError
from keras_dist_callbacks.cluster.cluster_token import FILE_VARIABLE, VARIABLE, ClusterToken
from keras_dist_callbacks.cluster.roles import split_address

STRANGER_SECONDS = 10.0
"""How long a caller may take to become a worker."""
_MOST_STRANGERS = 256
_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_POLL_SECONDS = 0.1
_LONGEST = 512  # bytes of a message; the longest real one has about 250
_OUT_OF_TURN = "its message is not one of a chief of this version"

_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Proof = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's first words."""

    cluster: _Digest
    index: Annotated[int, msgspec.Meta(ge=1)]
    nonce: _Digest
    has_token: bool


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All that follows."""

    proof: _Proof
    nonce: _Proof = ""
    refusal: Literal["", "cluster", "token"] = ""


Speaker = Literal["worker", "chief", "go"]
Message = TypeVar("Message", Hello, Reply)


def encode(message: Hello | Reply) -> bytes:
    """Returns a message as its line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes, kind: type[Message]) -> Message:
    """Returns a line as its message.

    Raises:
        ConnectionError: It is none of that kind.
    """
    try:
        message: Message = validation.convert(json.loads(line), kind)
        return message
    except (ValueError, RecursionError):
        raise ConnectionError(_OUT_OF_TURN) from None


def prove(token: ClusterToken | None, speaker: Literal["worker", "chief", "go"], hello: Hello, nonce: str) -> str:
    """Returns what one side says to show that it has the token: good for one connection, in one direction."""
    return "" if token is None else token.sign("keras_dist_callbacks rendezvous 1", speaker, hello, nonce)


def wait_for_everyone(addresses: Sequence[str], index: int, timeout: float, token: ClusterToken | None = None) -> None:
    """Returns when all workers of the cluster have said hello to the chief.

    Args:
        addresses: `host:port` of each training worker, the chief first.
        index: This process' place in `addresses`.
        timeout: Seconds for everything together, whatever others send or do not send.
        token: What the workers of this cluster have and strangers do not. Defaults to none.

    Raises:
        ClusterTimeoutError: A worker is missing; the message names it, and who said to be it.
        ConfigError: An address is malformed, this process' port is occupied, or this worker's token is not the chief's.
    """
    with _listen(split_address(addresses[index])[1], addresses[index]) as own:
        if index > 0:
            _call_chief(addresses, index, timeout, token)
        else:
            _Chief(own, addresses, token).wait(timeout)


def _listen(port: int, address: str) -> socket.socket:
    family = socket.AF_INET6 if (dual := socket.has_dualstack_ipv6()) else socket.AF_INET
    try:  # with SO_REUSEADDR, as TensorFlow's own server: the TIME_WAIT of this or an earlier start keeps out neither
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"this worker cannot listen on its own port {port} ({address}): {error.strerror}; end the process that "
            "uses it (an earlier run?) or give the worker another port in TF_CONFIG"
        ) from error


def _digest(addresses: Sequence[str]) -> str:
    return hashlib.sha256(",".join(addresses).encode()).hexdigest()


def _call_chief(addresses: Sequence[str], index: int, timeout: float, token: ClusterToken | None) -> None:
    """Returns when the chief has said that all workers are there."""
    deadline, reason = time.monotonic() + timeout, "no connection"
    place = split_address(addresses[0])
    while (left := deadline - time.monotonic()) > 0:
        hello = Hello(_digest(addresses), index, secrets.token_hex(32), token is not None)
        try:
            with socket.create_connection(place, min(_CONNECT_SECONDS, left)) as connection:
                return _talk(connection, hello, addresses[index], token, deadline)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        time.sleep(_RETRY_SECONDS)
    raise ClusterTimeoutError(
        f"worker {index}: the chief {addresses[0]} and the other workers did not start within {timeout:g} s "
        f"(last: {reason}); start all workers of TF_CONFIG, or raise startup_timeout"
    )


def _talk(connection: socket.socket, hello: Hello, address: str, token: ClusterToken | None, deadline: float) -> None:
    """One attempt to start with the others."""
    connection.sendall(encode(hello))
    said = _receive(connection, min(deadline, time.monotonic() + STRANGER_SECONDS))
    if said.refusal == "cluster":
        raise ConnectionError("it belongs to another cluster: its TF_CONFIG differs from this worker's")
    fault = ""
    if said.refusal == "token":
        fault = f"has a {VARIABLE}, but the chief has none" if token else f"has no {VARIABLE}, but the chief has one"
    elif token and not hmac.compare_digest(said.proof, prove(token, "chief", hello, said.nonce)):
        fault = f"has another {VARIABLE} than the chief"
    if fault:
        raise ConfigError(
            f"worker {hello.index} ({address}) {fault}; set the same {VARIABLE} (or {FILE_VARIABLE}) for all "
            "workers, or for none"
        )
    connection.sendall(encode(Reply(prove(token, "worker", hello, said.nonce))))
    go = _receive(connection, deadline)
    if not hmac.compare_digest(go.proof, prove(token, "go", hello, said.nonce)):
        raise ConnectionError(_OUT_OF_TURN)


def _receive(connection: socket.socket, deadline: float) -> Reply:
    line = b""
    while not line.endswith(b"\n") and len(line) <= _LONGEST:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        if not (part := connection.recv(_LONGEST)):
            raise ConnectionError("it closed the connection; its TF_CONFIG may differ from this worker's")
        line += part
    return decode(line, Reply)


class _Chief:
    """Waits for all workers of a cluster, whoever else calls; it never waits for a single caller.

    Args:
        server: Listens on the chief's port.
        addresses: Of all workers, the chief first.
        token: What the workers have to prove that they have.
    """

    def __init__(self, server: socket.socket, addresses: Sequence[str], token: ClusterToken | None) -> None:
        self._server = server
        self._addresses = addresses
        self._token = token
        self._selector = selectors.DefaultSelector()  # of the server and all callers; their data hears them
        self._strangers: dict[socket.socket, float] = {}  # until when each may be one, the oldest first
        self._workers: dict[int, tuple[socket.socket, bytes]] = {}  # with what each is told when all are there
        self._claims: dict[int, str] = {}  # who said to be a worker and did not prove it

    def wait(self, timeout: float) -> None:
        """Returns when every worker is there and has been informed."""
        deadline = time.monotonic() + timeout
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        try:
            while missing := sorted({*range(1, len(self._addresses))} - {*self._workers}):
                if time.monotonic() > deadline:
                    raise self._timed_out(missing, timeout)
                self._poll()
            for connection, go in self._workers.values():
                with contextlib.suppress(OSError):  # it has just gone, which TensorFlow's own start finds
                    connection.sendall(go)
        finally:
            self._hang_up(*self._strangers, *(connection for connection, _ in self._workers.values()))
            self._selector.close()

    def _poll(self) -> None:
        """Hears those who have something to say now."""
        for key, _ in self._selector.select(_POLL_SECONDS):
            key.data()
        self._hang_up(*[caller for caller, until in self._strangers.items() if until < time.monotonic()])

    def _accept(self) -> None:
        try:
            connection, (host, *_) = self._server.accept()
        except OSError:  # no more descriptors, or the caller has gone already
            self._hang_up(*list(self._strangers)[:1])
            time.sleep(0.01)
            return
        connection.setblocking(False)
        talk = self._talk(connection, host.removeprefix("::ffff:"))
        next(talk)
        self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._hear, connection, talk))
        self._strangers[connection] = time.monotonic() + STRANGER_SECONDS
        self._hang_up(*list(self._strangers)[:-_MOST_STRANGERS])

    def _hear(self, connection: socket.socket, talk: Generator[None, bytes, None]) -> None:
        try:
            talk.send(connection.recv(_LONGEST))
        except (OSError, StopIteration):  # it has gone, is a port scanner, or of another version
            self._hang_up(connection)

    def _hang_up(self, *connections: socket.socket) -> None:
        for connection in connections:
            if connection.fileno() >= 0:  # it is not closed yet
                self._selector.unregister(connection)
                connection.close()
            self._strangers.pop(connection, None)
        self._workers = {index: worker for index, worker in self._workers.items() if worker[0].fileno() >= 0}

    def _talk(self, connection: socket.socket, host: str) -> Generator[None, bytes, None]:
        """Answers what one caller says, which is sent into it; the connection ends when this does."""
        hello = decode((yield from _line()), Hello)
        if hello.cluster != _digest(self._addresses) or hello.index >= len(self._addresses):
            connection.sendall(encode(Reply("", refusal="cluster")))
            return
        has_token = self._token is not None
        if (has_token or hello.has_token) and hello.index not in self._workers:
            how = f"with a {VARIABLE}, and the chief has none"
            if has_token:
                how = f"did not prove that it has the chief's {VARIABLE}"
            self._claims[hello.index] = f"{host} claims to be worker {hello.index}, but {how}"
        if has_token != hello.has_token:
            connection.sendall(encode(Reply("", refusal="token")))
            return
        nonce = secrets.token_hex(32)
        connection.sendall(encode(Reply(prove(self._token, "chief", hello, nonce), nonce)))
        answer = decode((yield from _line()), Reply)
        if not hmac.compare_digest(answer.proof, prove(self._token, "worker", hello, nonce)):
            return
        if hello.index in self._workers:  # it was restarted while the others were waited for
            self._hang_up(self._workers[hello.index][0])
        del self._strangers[connection]
        self._claims.pop(hello.index, None)
        self._workers[hello.index] = connection, encode(Reply(prove(self._token, "go", hello, nonce)))
        yield  # until all are there; a worker has nothing more to say

    def _timed_out(self, missing: Sequence[int], timeout: float) -> ClusterTimeoutError:
        named = ", ".join(f"worker {index} ({self._addresses[index]})" for index in missing)
        claims = "".join(f"; {self._claims[index]}" for index in missing if index in self._claims)
        return ClusterTimeoutError(
            f"chief {self._addresses[0]}: no contact from {named} within {timeout:g} s{claims}; start all workers of "
            f"TF_CONFIG{', with the same token' if claims else ''}, or raise startup_timeout"
        )


def _line() -> Generator[None, bytes, bytes]:
    """Takes what comes from a socket, part by part, and returns it as a line."""
    line = b""
    while not line.endswith(b"\n") and len(line) <= _LONGEST:
        if not (part := (yield)):
            raise ConnectionError
        line += part
    return line

"""What a worker and the chief may say to each other before TensorFlow starts, and how it is read from a socket.

One message is one short line of JSON. Whatever comes in is checked against the one schema here before it is used.

    worker  Hello      who it is, and whether it has a token
    chief   Challenge  its proof; or a Refusal
    worker  Answer     its proof; or a Refusal
    chief   Go         when everybody is there; or Ended
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import msgspec

from keras_dist_callbacks.cluster.cluster_token import VARIABLE
from keras_dist_callbacks.cluster.roles import split_address

LONGEST = 512
"""Bytes of a message; the longest real one has about 250."""

_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Proof = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
_Index = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Fault = Literal["missing", "unwanted", "different"]
"""What is wrong with a worker's token, seen from the chief."""
FAULTS: dict[Fault, str] = {
    "missing": f"has no {VARIABLE}, but the chief has one",
    "unwanted": f"has a {VARIABLE}, but the chief has none",
    "different": f"has another {VARIABLE} than the chief",
}


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    pass


class Hello(_Message, frozen=True):
    """A worker's first words."""

    cluster: _Digest
    index: _Index
    nonce: _Digest
    has_token: bool


class Challenge(_Message, frozen=True):
    """The chief's answer; the proof is empty in a cluster without a token."""

    nonce: _Digest
    proof: _Proof


class Answer(_Message, frozen=True):
    """A worker's proof."""

    proof: _Proof


class Go(_Message, frozen=True):
    """Everybody is there."""

    proof: _Proof


class Refusal(_Message, frozen=True):
    """One side does not want to go on with the other."""

    why: Literal[Fault, "cluster"]


class Aborted(_Message, frozen=True):
    """The chief ends because of another worker."""

    worker: _Index
    why: Fault


class Statement(_Message, frozen=True):
    """What a refused worker says at its own port, to whoever asks."""

    cluster: _Digest
    index: _Index
    why: Fault


Message = Hello | Challenge | Answer | Go | Refusal | Aborted | Statement
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Message, strict=True)


class NotUnderstoodError(ValueError):
    """The other side said something that is not in the schema, or out of turn."""


def encode(message: Message) -> bytes:
    """A message as its line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """A line as its message.

    Raises:
        NotUnderstoodError: It is too long, or not in the schema.
    """
    if len(line) > LONGEST:
        raise NotUnderstoodError("it said more than a worker of this package would")
    try:
        message: Message = _decoder.decode(line)
    except (ValueError, RecursionError):
        raise NotUnderstoodError("it said something that no worker of this version of the package would") from None
    return message


def new_nonce() -> str:
    """Something that was never said before."""
    return secrets.token_hex(32)


@dataclass(frozen=True)
class Deadline:
    """A point in time that every wait obeys.

    Attributes:
        seconds: How long it was from the beginning, for messages.
        ends: On the monotonic clock.
    """

    seconds: float
    ends: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """That many seconds from now."""
        return cls(seconds, time.monotonic() + seconds)

    def left(self) -> float:
        """Seconds until then; never below 0."""
        return max(0.0, self.ends - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """The same, or `seconds` from now if that is earlier."""
        return Deadline(self.seconds, min(self.ends, time.monotonic() + seconds))


def send(connection: socket.socket, message: Message, deadline: Deadline) -> None:
    """Sends one message.

    Raises:
        OSError: The other side is gone, or takes nothing.
    """
    connection.settimeout(max(0.001, deadline.left()))
    connection.sendall(encode(message))


def receive(connection: socket.socket, deadline: Deadline) -> Message:
    """Waits for one message.

    Raises:
        NotUnderstoodError: Something else came.
        OSError: Nothing came in time, or the other side has closed the connection.
    """
    received = bytearray()
    while not received.endswith(b"\n"):
        if (left := deadline.left()) <= 0:
            raise TimeoutError("it did not answer")
        connection.settimeout(left)
        try:
            part = connection.recv(LONGEST + 1 - len(received))
        except TimeoutError:
            continue
        if not part:
            raise ConnectionError("it closed the connection; its TF_CONFIG may differ from this worker's")
        received += part
        if len(received) > LONGEST:
            break
    return decode(bytes(received))


def connect(address: str, deadline: Deadline, patience: float) -> socket.socket:
    """A connection to a worker.

    Args:
        address: `host:port`.
        deadline: For everything, the resolution of the name included.
        patience: Seconds, once the name is resolved.

    Raises:
        OSError: There is none in time.
    """
    places = _resolve(*split_address(address), deadline)
    until = deadline.within(patience)
    failure: OSError = TimeoutError("timed out")
    for number, (family, kind, protocol, _, place) in enumerate(places):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(max(0.001, until.left() / (len(places) - number)))
            connection.connect(place)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure


def _resolve(host: str, port: int, deadline: Deadline) -> list[Any]:
    """As `socket.getaddrinfo`, which knows no time-out: in a thread that can be left behind."""
    found: list[Any] = []
    failure: list[OSError] = []

    def run() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failure.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=run, name="kdc-resolve", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if failure:
        raise failure[0]
    if not found:
        raise TimeoutError(f"the name {host!r} was not resolved in time")
    return found

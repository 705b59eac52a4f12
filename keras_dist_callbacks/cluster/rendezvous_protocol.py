"""What a worker and the chief may say to each other before TensorFlow starts, and how it is read from a socket.

One message is one short line of JSON. Whatever comes in is checked against the one schema here before it is used.

    worker  Hello      who it is, and whether it has a token
    chief   Challenge  its proof; or a Refusal
    worker  Answer     its proof
    chief   Go         when all workers are there

The proofs are of the cluster's token, if it has one: a secret that only its workers know. A process that
speaks to the chief can ask it for a proof and then try out tokens at leisure: a token must be random, not a word that
can be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import msgspec

from keras_dist_callbacks.errors import ConfigError

VARIABLE = "KDC_CLUSTER_TOKEN"
FILE_VARIABLE = "KDC_CLUSTER_TOKEN_FILE"
_SHORTEST_TOKEN = 16
_LONGEST_TOKEN = 4096
_HOW_TO = 'make one with: python -c "import secrets; print(secrets.token_hex(32))"'
_PURPOSE = "keras_dist_callbacks preflight 1"

Speaker = Literal["worker", "chief", "chief: go"]

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


@dataclass(frozen=True)
class ClusterToken:
    """A secret that is neither sent nor printed."""

    _secret: bytes = field(repr=False)

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> Self | None:
        """Reads `KDC_CLUSTER_TOKEN`, or the file that `KDC_CLUSTER_TOKEN_FILE` names; None if neither is set.

        Args:
            environ: Where to look. Defaults to `os.environ`.

        Raises:
            ConfigError: Both are set, the file cannot be read, or the token is too short to be a secret.
        """
        env = os.environ if environ is None else environ
        if VARIABLE in env and FILE_VARIABLE in env:
            raise ConfigError(f"{VARIABLE} and {FILE_VARIABLE} are both set; unset one of them")
        if FILE_VARIABLE in env:
            path = env[FILE_VARIABLE]
            return cls(_checked(_read(path), f"the file {path!r} of {FILE_VARIABLE}"))
        if VARIABLE in env:
            return cls(_checked(os.fsencode(env[VARIABLE]), VARIABLE))
        return None

    def sign(self, *facts: str | int) -> str:
        """Returns the HMAC-SHA256 of some facts, in hexadecimal digits."""
        return hmac.new(self._secret, msgspec.json.encode([_PURPOSE, *facts]), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class AuthSession:
    """What a proof is bound to, so that it is good for one connection, in one direction.

    Attributes:
        token: Of this process; without one, proofs are empty.
        cluster: What distinguishes this cluster from others.
        index: Of the worker that speaks with the chief.
        worker_nonce: Made up by the worker for this connection.
        chief_nonce: Made up by the chief for this connection.
    """

    token: ClusterToken | None
    cluster: str
    index: int
    worker_nonce: str
    chief_nonce: str

    def proof(self, speaker: Speaker) -> str:
        """Returns what one side says to prove that it has the token."""
        if self.token is None:
            return ""
        return self.token.sign(speaker, self.index, self.cluster, self.worker_nonce, self.chief_nonce)

    def is_proven(self, speaker: Speaker, proof: str) -> bool:
        """Returns whether the other side has the token, or neither has one."""
        return hmac.compare_digest(self.proof(speaker), proof)


def _read(path: str) -> bytes:
    """Returns the content of the token's file."""
    try:
        with open(path, "rb") as file:
            return file.read(_LONGEST_TOKEN + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{FILE_VARIABLE} names {path!r}, which cannot be read: {reason}") from error


def _checked(content: bytes, where: str) -> bytes:
    secret = content.strip()
    if not secret:
        raise ConfigError(f"{where} is empty; {_HOW_TO} (or unset the variable, if the cluster is to have no token)")
    if len(secret) < _SHORTEST_TOKEN:
        raise ConfigError(f"the token in {where} has fewer than {_SHORTEST_TOKEN} characters; {_HOW_TO}")
    if len(content) > _LONGEST_TOKEN:  # of a longer file, the part that was read may end in spaces
        raise ConfigError(f"the token in {where} has more than {_LONGEST_TOKEN} characters; {_HOW_TO}")
    return secret


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
    """All workers are there."""

    proof: _Proof


class Refusal(_Message, frozen=True):
    """The worker is of another cluster, or only one side has a token."""

    why: Literal["missing", "unwanted", "cluster"]


Message = Hello | Challenge | Answer | Go | Refusal
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Message, strict=True)


class NotUnderstoodError(ValueError):
    """The other side said something that is not in the schema, or out of turn."""


def encode(message: Message) -> bytes:
    """Returns a message as its line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """Returns a line as its message.

    Raises:
        NotUnderstoodError: It is too long, or not in the schema.
    """
    if len(line) > LONGEST:
        raise NotUnderstoodError("its message is longer than one of a worker of this package")
    try:
        message: Message = _decoder.decode(line)
    except (ValueError, RecursionError):
        raise NotUnderstoodError("its message is not one of a worker of this version of the package") from None
    return message


def new_nonce() -> str:
    """Something that was never said before."""
    return secrets.token_hex(32)


@dataclass(frozen=True)
class Deadline:
    """A point in time that limits every wait.

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
        """Returns seconds until then; never below 0."""
        return max(0.0, self.ends - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """Returns the same, or `seconds` from now if that is earlier."""
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

"""What the workers of one cluster know and nobody else does.

Whoever speaks to the chief can ask it for a proof and then try out tokens at leisure: a token must be random, not a
word that somebody has thought of.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import msgspec

from keras_dist_callbacks.errors import ConfigError

VARIABLE = "KDC_CLUSTER_TOKEN"
FILE_VARIABLE = "KDC_CLUSTER_TOKEN_FILE"
_SHORTEST = 16
_LONGEST = 4096
_HOW_TO = 'make one with: python -c "import secrets; print(secrets.token_hex(32))"'
_PURPOSE = "keras_dist_callbacks preflight 1"

Speaker = Literal["worker", "chief", "chief: go"]


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
        """The HMAC-SHA256 of some facts, in hexadecimal digits."""
        return hmac.new(self._secret, msgspec.json.encode([_PURPOSE, *facts]), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class AuthSession:
    """What a proof is bound to, so that it is good for one connection, in one direction.

    Attributes:
        token: Of this process; without one, proofs are empty.
        cluster: What tells this cluster from others.
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
        """What one side says to prove that it has the token."""
        if self.token is None:
            return ""
        return self.token.sign(speaker, self.index, self.cluster, self.worker_nonce, self.chief_nonce)

    def is_proven(self, speaker: Speaker, proof: str) -> bool:
        """Whether the other side has the token, or nobody has one."""
        return hmac.compare_digest(self.proof(speaker), proof)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_LONGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{FILE_VARIABLE} names {path!r}, which cannot be read: {reason}") from error


def _checked(content: bytes, where: str) -> bytes:
    secret = content.strip()
    if not secret:
        raise ConfigError(f"{where} is empty; {_HOW_TO} (or unset the variable, if the cluster is to have no token)")
    if len(secret) < _SHORTEST:
        raise ConfigError(f"the token in {where} has fewer than {_SHORTEST} characters; {_HOW_TO}")
    if len(content) > _LONGEST:  # of a file that goes on, the part that was read may end in spaces
        raise ConfigError(f"the token in {where} has more than {_LONGEST} characters; {_HOW_TO}")
    return secret

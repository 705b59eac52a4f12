"""The cluster's token: a secret that only its workers know, which keeps others out of its start."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from keras_dist_callbacks.base.errors import ConfigError

VARIABLE = "KDC_CLUSTER_TOKEN"
FILE_VARIABLE = "KDC_CLUSTER_TOKEN_FILE"
_SHORTEST = 16
_LONGEST = 4096
_HOW_TO = 'make one with: python -c "import secrets; print(secrets.token_hex(32))"'


@dataclass(frozen=True)
class ClusterToken:
    """A secret that is neither sent nor printed."""

    _secret: bytes = field(repr=False)

    @classmethod
    def detect(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """Reads `KDC_CLUSTER_TOKEN`, or the file that `KDC_CLUSTER_TOKEN_FILE` names; None if neither is set.

        Args:
            environ: Where to look. Defaults to `os.environ`.

        Raises:
            ConfigError: Both are set, the file cannot be read, or the token is too short to be a secret.
        """
        if VARIABLE in environ and FILE_VARIABLE in environ:
            raise ConfigError(f"{VARIABLE} and {FILE_VARIABLE} are both set; unset one of them")
        if VARIABLE in environ:
            return cls(_checked(os.fsencode(environ[VARIABLE]), VARIABLE))
        if FILE_VARIABLE not in environ:
            return None
        path = environ[FILE_VARIABLE]
        try:
            with open(path, "rb") as file:
                content = file.read(_LONGEST + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"{FILE_VARIABLE} names {path!r}, which cannot be read: {reason}") from error
        return cls(_checked(content, f"the file {path!r} of {FILE_VARIABLE}"))

    def sign(self, *facts: Any) -> str:
        """Returns the HMAC-SHA256 of some facts, in hexadecimal digits."""
        return hmac.new(self._secret, msgspec.json.encode(facts), hashlib.sha256).hexdigest()


def _checked(content: bytes, where: str) -> bytes:
    secret = content.strip()
    if not secret:
        raise ConfigError(f"{where} is empty; {_HOW_TO} (or unset the variable, if the cluster is to have no token)")
    if len(secret) < _SHORTEST:
        raise ConfigError(f"the token in {where} has fewer than {_SHORTEST} characters; {_HOW_TO}")
    if len(content) > _LONGEST:  # of a longer file, the part that was read may end in spaces
        raise ConfigError(f"the token in {where} has more than {_LONGEST} characters; {_HOW_TO}")
    return secret

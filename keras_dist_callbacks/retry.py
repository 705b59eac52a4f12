"""One retry policy for every store, above the clients' own, which differ from each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from keras_dist_callbacks.errors import KdcError

_T = TypeVar("_T")
_FINAL = (FileExistsError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_CLIENTS = {"aiohttp", "botocore", "aiobotocore", "azure", "gcsfs", "google", "requests", "asyncio"}


@dataclass(frozen=True)
class RetryPolicy:
    """How long a failing request is tried again, above what the store's own client does.

    Attributes:
        total_seconds: Give up when this much time has passed since the first try.
        initial_wait: Seconds of the first pause; doubled each time, with jitter.
        max_wait: Longest pause in seconds.
    """

    total_seconds: float = 120.0
    initial_wait: float = 0.2
    max_wait: float = 20.0

    def call(self, operation: Callable[[], _T]) -> _T:
        """Runs `operation`, trying again on faults that may pass."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_pass),
            stop=tenacity.stop_after_delay(self.total_seconds),
            wait=tenacity.wait_exponential(multiplier=self.initial_wait, max=self.max_wait)
            + tenacity.wait_random(0, self.initial_wait),
            reraise=True,
        )
        return retrying(operation)


def may_pass(error: BaseException) -> bool:
    """Whether trying again may help: not for what is missing, forbidden or in the way."""
    if isinstance(error, (*_FINAL, KdcError)) or not isinstance(error, Exception):
        return False
    if isinstance(error, OSError):
        return not str(error).startswith("Forbidden")  # gcsfs' way to say 403
    return type(error).__module__.split(".")[0] in _CLIENTS

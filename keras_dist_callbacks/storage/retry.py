"""One retry policy for every store, above the clients' own, which differ from each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from keras_dist_callbacks.base.validation import Rate, Seconds, SecondsFromZero, check_fields
from keras_dist_callbacks.storage.store_errors import is_retryable

_T = TypeVar("_T")


@dataclass(frozen=True)
class RetryPolicy:
    """How long a request may take, and how long a failing one is tried again.

    Attributes:
        total_seconds: Give up when this much time has passed since the first try; 0 for one try alone. The time in
            which a large object moves does not count, as far as `min_bytes_per_second` explains it.
        initial_wait: Seconds of the first pause; doubled each time, with jitter. 0 for none.
        max_wait: Longest pause in seconds.
        request_seconds: A single request is cut off and tried again after this time; likewise longer for a
            large object.
        min_bytes_per_second: The slowest link that a large object still gets through.

    Raises:
        ConfigError: A value is negative, infinite or no number; or the last two are 0.
    """

    total_seconds: SecondsFromZero = 120.0
    initial_wait: SecondsFromZero = 0.2
    max_wait: SecondsFromZero = 20.0
    request_seconds: Seconds = 60.0
    min_bytes_per_second: Rate = 2.0**18

    def __post_init__(self) -> None:
        check_fields(self)


def request_time(policy: RetryPolicy, size: int) -> float:
    """Returns how many seconds one request that moves `size` bytes may take."""
    return policy.request_seconds + size / policy.min_bytes_per_second


def call(
    policy: RetryPolicy, operation: Callable[[], _T], size: int, on_failure: Callable[[BaseException, float], None]
) -> _T:
    """Runs `operation`, which moves `size` bytes, trying again on faults that may pass.

    Args:
        policy: How long.
        operation: What to try.
        size: Bytes that it moves.
        on_failure: Called before each further try, with what a try failed with and the seconds since the first one.
    """
    allowance = size / policy.min_bytes_per_second

    def is_finished(state: tenacity.RetryCallState) -> bool:
        elapsed = state.seconds_since_start or 0.0
        moving = min(elapsed - state.idle_for, allowance)  # a slow transfer is not a failing one
        return elapsed - moving >= policy.total_seconds

    def report(state: tenacity.RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        if error is not None:
            on_failure(error, state.seconds_since_start or 0.0)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_retryable),
        stop=is_finished,
        wait=tenacity.wait_exponential(multiplier=policy.initial_wait, max=policy.max_wait)
        + tenacity.wait_random(0, policy.initial_wait),
        before_sleep=report,
        reraise=True,
    )
    return retrying(operation)

"""Threads that cannot be started, as at the limit of a container's processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def refused(which: Callable[[int], bool] = lambda number: True) -> Iterator[list[int]]:
    """Within the block, threads cannot be started.

    Args:
        which: Which ones, by their number from 1.

    Yields:
        The numbers of those that were refused.
    """
    start = threading._start_new_thread  # type: ignore[attr-defined]
    numbers, found = iter(range(1, 10**6)), list[int]()

    def start_or_refuse(*arguments: Any) -> Any:
        number = next(numbers)
        if not which(number):
            return start(*arguments)
        found.append(number)
        raise RuntimeError("can't start new thread")  # what Python raises when pthread_create() returns EAGAIN

    with mock.patch.object(threading, "_start_new_thread", start_or_refuse):
        yield found

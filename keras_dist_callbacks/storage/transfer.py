"""What passes between a storage and its files, local or remote: names and sizes, content in pieces, and their pace."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from keras_dist_callbacks.base import validation

_PIECE = 32 * 2**20
_PIECES_PER_SECOND = 20

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class FileInfo:
    """One object of a listing: its name relative to the listed directory, and its size in bytes."""

    name: str
    size: int


def has_content(size: int | None, read: Callable[[int, int], bytes], pieces: Iterable[memoryview]) -> bool:
    """Whether an object of that size holds exactly these pieces; it is never read as a whole.

    Args:
        size: Bytes of the object; None: it does not exist.
        read: Reads it, from a first up to a second position.
        pieces: What it should be.
    """
    start = 0
    parts = (piece[at : at + _PIECE] for piece in pieces for at in range(0, len(piece), _PIECE))
    for part in parts if size is not None else ():
        if read(start, start + len(part)) != part:
            return False
        start += len(part)
    return start == size


class RateLimiter:
    """Paces uploads and reports their progress.

    Args:
        max_bytes_per_second: The cap; None for none.

    Raises:
        ConfigError: The cap is not a number above 0.
    """

    def __init__(self, max_bytes_per_second: float | None = None) -> None:
        self._rate = validation.check("max_bytes_per_second", max_bytes_per_second, validation.Rate | None)
        self._lock = threading.Lock()
        self._free_at = 0.0  # when the bytes sent so far fit the rate
        self._listeners: list[Callable[[int], None]] = []

    @property
    def piece(self) -> int:
        """How many bytes to write between two calls of `report`."""
        return _PIECE if self._rate is None else max(4096, int(self._rate / _PIECES_PER_SECOND))

    @contextlib.contextmanager
    def reporting(self, listener: Callable[[int], None]) -> Iterator[None]:
        """Calls `listener` with the number of bytes each time that some were sent, within the block."""
        with self._lock:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)

    def report(self, count: int) -> None:
        """Reports to the listeners that `count` more bytes are sent."""
        for listener in list(self._listeners):
            listener(count)

    def pace(self, count: int, since: float) -> None:
        """Sleeps until `count` bytes, sent from the monotonic time `since` on, fit the rate."""
        if self._rate is None:
            return
        with self._lock:
            self._free_at = max(self._free_at, since) + count / self._rate
            pause = self._free_at - time.monotonic()
        if pause > 0:
            time.sleep(pause)

"""Large local files written around the page cache, through one aligned buffer.

A busy processor feels a backup in the page cache: pages are made, filled and written out, and the kernel takes the time
for it from training (measured for 400 MB in new files, flushed: 650 ms of processor time, 45 ms around it). What
training itself has in the page cache, its input above all, stays there too.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.storage.plain_files import open_file
from keras_dist_callbacks.storage.transfer import Buffer, RateLimiter

VARIABLE = "KDC_DIRECT_WRITES"
"""An environment variable: `0` turns this off; `all` makes no difference between large and small, as tests do."""

_LEAST = 2**20  # bytes of the smallest file that is worth it
_ALIGNMENT = 4096  # of addresses, offsets and lengths: what every disk takes
_BUFFER_BYTES = 4 * 2**20
_HUGE_PAGE = 2 * 2**20
_PIECE = 2**18  # bytes that are copied at once
_COPIED_WITH_THE_GIL = 2**14
_REFUSALS = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_FLAG: int | None = getattr(os, "O_DIRECT", None)


@dataclass
class Buffers(Shared):
    """One buffer that is used again; a child makes its own."""

    free: list[memoryview] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def in_child(self) -> Buffers:
        """The parent's buffer may be in use, and its lock held."""
        return Buffers()


class DirectWrites:
    """Whether a directory's file system takes such writes: found out at the first one, once for all.

    Attributes:
        works: Whether it does; None before the first try.
        least: Bytes of the smallest file that is written so.
    """

    def __init__(self) -> None:
        is_off = _FLAG is None or os.environ.get(VARIABLE) == "0"
        self.works: bool | None = False if is_off else None
        self.least = 1 if os.environ.get(VARIABLE) == "all" else _LEAST

    def write(self, root: str, path: str, parts: Iterable[Buffer], traffic: RateLimiter) -> int | None:
        """Writes a new file.

        Args:
            root: The directory that the user gave.
            path: Its path; nothing may be there.
            parts: Its content, in pieces.
            traffic: Paces and counts.

        Returns:
            An open descriptor of the file, to be flushed and closed; None if the file system refuses, and then there
            is not a file of that name.

        Raises:
            OSError: The disk is full or broken.
        """
        if self.works is False or _FLAG is None:
            return None
        file = None
        try:
            file = open_file(root, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAG)
            with _buffer() as buffer:
                _Stream(file, buffer, traffic).write(parts)
        except BaseException as error:
            if file is not None:
                os.close(file)
            if not isinstance(error, OSError) or error.errno not in _REFUSALS:
                raise
            self.works = False
            with suppress(FileNotFoundError):
                Path(path).unlink()
            return None
        self.works = True
        return file


class _Stream:
    """Pieces of any length on their way into a file, a full buffer at a time."""

    def __init__(self, file: int, buffer: memoryview, traffic: RateLimiter) -> None:
        self._file, self._traffic = file, traffic
        self._view, self._array = buffer, np.frombuffer(buffer, np.uint8)
        self._room = min(len(buffer), max(_ALIGNMENT, traffic.piece // _ALIGNMENT * _ALIGNMENT))
        self._filled = self._written = 0

    def write(self, parts: Iterable[Buffer]) -> None:
        for part in parts:
            view, at = memoryview(part).cast("B"), 0
            while at < len(view):
                count = min(len(view) - at, self._room - self._filled, _PIECE)
                self._copy(view[at : at + count])
                at += count
                if self._filled == self._room:
                    self._put(self._room, self._room)
                    self._filled = 0
        size = self._written + self._filled
        if self._filled:
            end = -(-self._filled // _ALIGNMENT) * _ALIGNMENT
            self._array[self._filled : end] = 0
            self._put(end, self._filled)
        if size != self._written:
            os.ftruncate(self._file, size)  # the last block was filled up

    def _copy(self, piece: memoryview) -> None:
        end = self._filled + len(piece)
        if len(piece) < _COPIED_WITH_THE_GIL:
            self._view[self._filled : end] = piece
        else:
            np.copyto(self._array[self._filled : end], np.frombuffer(piece, np.uint8))  # without the GIL
        self._filled = end

    def _put(self, length: int, counted: int) -> None:
        """Writes the buffer's first `length` bytes; the disk may take them in several steps."""
        began, done = time.monotonic(), 0
        while done < length:
            count = os.pwrite(self._file, self._view[done:length], self._written + done)
            whole = count if done + count == length else count // _ALIGNMENT * _ALIGNMENT
            if whole == 0:
                raise OSError(errno.EINVAL, "the disk wrote less than one block")
            done += whole
        self._written += length
        self._traffic.report(counted)
        self._traffic.pace(counted, began)


@contextmanager
def _buffer() -> Iterator[memoryview]:
    """Aligned memory that is used again; a child process does not share it."""
    buffers = shared(Buffers)
    with buffers.lock:
        buffer = buffers.free.pop() if buffers.free else None
    if buffer is None:
        # Of two huge pages where there are such: the kernel looks up each page of a write (4 MiB: a third less time).
        memory = mmap.mmap(-1, _BUFFER_BYTES + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        begin = -np.frombuffer(memory, np.uint8).ctypes.data % _HUGE_PAGE
        buffer = memoryview(memory)[begin : begin + _BUFFER_BYTES]
    try:
        yield buffer
    finally:
        with buffers.lock:
            if not buffers.free:
                buffers.free.append(buffer)

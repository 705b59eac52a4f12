"""Whole files or none on a local file system: temporary name, fsync, then one atomic step to the final name."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

Buffer = bytes | bytearray | memoryview

TEMPORARY_MARK = ".tmp-"
_COPY_CHUNK = 16 * 2**20
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def create(final: Path, parts: Sequence[Buffer], fsync: bool) -> None:
    """Publishes a new file.

    Raises:
        FileExistsError: The name is taken.
    """
    with _temporary(final) as temporary:
        _write(temporary, parts, fsync)
        try:
            os.link(temporary, final)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without hard links: readers are protected by the digest inside the file.
            _write_directly(final, parts, fsync)
    _flush_directory(final.parent, fsync)


def replace(final: Path, source: Path, fsync: bool) -> None:
    """Publishes a copy of `source`; readers see the old file or the new one."""
    with _temporary(final) as temporary:
        with open(source, "rb") as reader, open(temporary, "xb", buffering=0) as file:
            while chunk := reader.read(_COPY_CHUNK):
                _write_all(file.fileno(), memoryview(chunk))
            _flush(file.fileno(), fsync)
        temporary.replace(final)
    _flush_directory(final.parent, fsync)


def read_into(path: Path, start: int, view: memoryview) -> int:
    """Fills `view` from byte `start` of a file on; how many bytes there were."""
    filled = 0
    with open(path, "rb", buffering=0) as file:
        while filled < len(view):
            count = os.preadv(file.fileno(), [view[filled:]], start + filled)
            if count == 0:
                break
            filled += count
    return filled


@contextlib.contextmanager
def _temporary(final: Path) -> Iterator[Path]:
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # to `create`, that would mean that the final name is taken
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(final.parent)) from error
    temporary = final.with_name(f"{final.name}{TEMPORARY_MARK}{uuid.uuid4().hex}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _write_directly(final: Path, parts: Sequence[Buffer], fsync: bool) -> None:
    try:
        _write(final, parts, fsync)
    except FileExistsError:
        raise
    except BaseException:
        final.unlink(missing_ok=True)
        raise


def _write(path: Path, parts: Sequence[Buffer], fsync: bool) -> None:
    with open(path, "xb", buffering=0) as file:
        for part in parts:
            _write_all(file.fileno(), memoryview(part))
        _flush(file.fileno(), fsync)


def _write_all(descriptor: int, view: memoryview) -> None:
    view = view.cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _flush(descriptor: int, fsync: bool) -> None:
    if fsync:
        os.fsync(descriptor)


def _flush_directory(directory: Path, fsync: bool) -> None:
    if not fsync:
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

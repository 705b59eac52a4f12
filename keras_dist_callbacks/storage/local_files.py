"""Whole files or none on a local file system: temporary name, fsync, then one atomic step to the final name."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_dist_callbacks.storage.traffic import Traffic

Buffer = bytes | bytearray | memoryview

TEMPORARY_MARK = ".tmp-"
_COPY_CHUNK = 16 * 2**20
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def create(final: Path, parts: Sequence[Buffer], fsync: bool, traffic: Traffic, spare: Path | None = None) -> None:
    """Publishes a new file.

    Args:
        final: Its path.
        parts: Its content.
        fsync: Whether it reaches the disk before it gets its name.
        traffic: Paces and counts.
        spare: A file that nobody needs any more: its memory in the page cache is written over, which costs a busy
            CPU much less than new pages do.

    Raises:
        FileExistsError: The name is taken.
    """
    with _temporary(final) as temporary:
        if spare is not None and _take_over(spare, temporary):
            _write(temporary, parts, fsync, traffic, mode="r+b")
        else:
            _write(temporary, parts, fsync, traffic)
        try:
            os.link(temporary, final)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without hard links: readers are protected by the digest inside the file.
            _write_directly(final, parts, fsync, traffic)
    _flush_directory(final.parent, fsync)


def replace(final: Path, source: Path, fsync: bool, traffic: Traffic) -> None:
    """Publishes a copy of `source`; readers see the old file or the new one."""
    with _temporary(final) as temporary:
        with open(source, "rb") as reader, open(temporary, "xb", buffering=0) as file:
            while chunk := reader.read(_COPY_CHUNK):
                _write_all(file.fileno(), memoryview(chunk), traffic)
            _flush(file.fileno(), fsync)
        temporary.replace(final)
    _flush_directory(final.parent, fsync)


def listing(directory: str) -> list[tuple[str, int]]:
    """Names and sizes of the files in a directory; empty if there is none."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                    if entry.is_file():
                        found.append((entry.name, entry.stat().st_size))
    except FileNotFoundError:
        return []
    return found


def size(path: str) -> int | None:
    """Bytes of a file; None if there is none."""
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return None


def read(path: str, start: int | None = None, end: int | None = None) -> bytes:
    """The bytes of a file from `start` up to `end`, as far as there are any."""
    with open(path, "rb") as file:
        file.seek(start or 0)
        return file.read() if end is None else file.read(max(0, end - (start or 0)))


def download(path: str, target: Path) -> None:
    """Copies a file."""
    shutil.copyfile(path, target)


def delete(path: str) -> None:
    """Removes a file, if it is there."""
    Path(path).unlink(missing_ok=True)


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


def _write_directly(final: Path, parts: Sequence[Buffer], fsync: bool, traffic: Traffic) -> None:
    try:
        _write(final, parts, fsync, traffic)
    except FileExistsError:
        raise
    except BaseException:
        final.unlink(missing_ok=True)
        raise


def _take_over(spare: Path, temporary: Path) -> bool:
    """Renames a spare file, if it has no other name: what a hard link shows must not change."""
    try:
        spare.rename(temporary)
    except OSError:
        return False
    if temporary.stat().st_nlink == 1:
        return True
    temporary.unlink()
    return False


def _write(path: Path, parts: Sequence[Buffer], fsync: bool, traffic: Traffic, mode: str = "xb") -> None:
    with open(path, mode, buffering=0) as file:
        for part in parts:
            _write_all(file.fileno(), memoryview(part), traffic)
        os.ftruncate(file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_CUR))  # a spare file may have been longer
        _flush(file.fileno(), fsync)


def _write_all(descriptor: int, view: memoryview, traffic: Traffic) -> None:
    view = view.cast("B")
    while view:
        began = time.monotonic()
        count = os.write(descriptor, view[: traffic.piece])
        view = view[count:]
        traffic.report(count)
        traffic.pace(count, began)


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

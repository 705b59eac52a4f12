"""Whole files or none on a local file system: temporary name, fsync, then one atomic step to the final name."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path

from keras_dist_callbacks.storage.direct_io import DirectWrites
from keras_dist_callbacks.storage.open_directory import Directory, opened
from keras_dist_callbacks.storage.transfer import Chunks, RateLimiter

TEMPORARY_MARK = ".tmp-"
_MARKED = re.compile(r"\.(?P<final>.+)\.tmp-[0-9a-f]{32}", re.DOTALL)
_COPY_CHUNK = 16 * 2**20
_CANNOT_SEND = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTSOCK}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def temporary_name(final: str) -> str:
    """A hidden name for a file that is to be called `final` once it is complete."""
    return f".{final}{TEMPORARY_MARK}{uuid.uuid4().hex}"


def final_name(name: str) -> str | None:
    """What a file with a name of `temporary_name` was to be called; None for any other name."""
    match = _MARKED.fullmatch(name)
    return (final_name(match["final"]) or match["final"]) if match else None


@dataclass(frozen=True)
class LocalFiles:
    """The operations of a `Storage` on full paths below a root; no symbolic link there is ever followed.

    Attributes:
        root: The directory that the user gave; it may be a link.
        fsync: Whether files reach the disk before they get their names.
        traffic: Paces and counts.
        direct: Writes large files around the page cache, where the file system lets it.
    """

    root: str
    fsync: bool = True
    traffic: RateLimiter = field(default_factory=RateLimiter)
    direct: DirectWrites = field(default_factory=DirectWrites, compare=False)

    def listing(self, path: str) -> list[tuple[str, int]]:
        """Names and sizes of the files and links in a directory; empty if there is none."""
        try:
            with opened(self.root, self._below(path)) as directory:
                return directory.files()
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int | None:
        """Bytes of a file; None if there is none."""
        try:
            with self._directory_of(path) as (directory, name):
                return directory.size(name)
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> float:
        """When a file was last written, in seconds since 1970."""
        with self._directory_of(path) as (directory, name), _reading(directory, name) as file:
            return os.fstat(file.fileno()).st_mtime

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a file from `start` up to `end`, as far as there are any."""
        with self._directory_of(path) as (directory, name), _reading(directory, name) as file:
            file.seek(start or 0)
            return file.read() if end is None else file.read(max(0, end - (start or 0)))

    def read_into(self, path: str, start: int, view: memoryview) -> int:
        """Fills `view` from byte `start` of a file on; how many bytes there were."""
        filled = 0
        with self._directory_of(path) as (directory, name), _reading(directory, name) as file:
            while filled < len(view):
                count = os.preadv(file.fileno(), [view[filled:]], start + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def drop_cached(self, path: str) -> None:
        """Takes a file out of the page cache, if it is there and the platform can."""
        if hasattr(os, "posix_fadvise"):
            with (
                contextlib.suppress(FileNotFoundError),
                self._directory_of(path) as (directory, name),
                _reading(directory, name) as file,
            ):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def download(self, path: str, target: Path) -> None:
        """Copies a file."""
        with (
            self._directory_of(path) as (directory, name),
            _reading(directory, name) as file,
            open(target, "wb") as copy,
        ):
            _copy(file, copy)

    def create(
        self, path: str, parts: Chunks, spare: str | None = None, named: Callable[[], str] | None = None
    ) -> None:
        """Publishes a new file.

        Args:
            path: Its path; with `named`, one like it.
            parts: Its content.
            spare: A file that nobody needs any more: its memory in the page cache is written over, which costs a busy
                CPU much less than new pages do. It loses its name.
            named: Tells its path in the same directory, once it was written.

        Raises:
            FileExistsError: The name is taken.
        """
        with self._directory_of(path, make=True) as (directory, final):
            with _temporary(directory, final) as temporary:
                self._write_temporary(directory, temporary, parts, spare)
                final = final if named is None else named().rpartition("/")[2]
                try:
                    directory.link(temporary, final)
                except FileExistsError:
                    directory.require_file(final)  # else whoever looks for the next free name would look for ever
                    raise
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    # A file system without hard links: readers are protected by the digest inside the file.
                    self._write_directly(directory, final, parts)
            self._flush_directory(directory)

    def replace(self, path: str, source: Path) -> None:
        """Publishes a copy of `source`; readers see the old file or the new one."""
        with self._directory_of(path, make=True) as (directory, final):
            with _temporary(directory, final) as temporary:
                unnamed = directory.unnamed_file()
                with unnamed or directory.new_file(temporary) as file:
                    self._copy_from(source, file)
                    is_published = unnamed is not None and directory.give_name(file, final)
                    if unnamed is not None and not is_published:
                        directory.give_name(file, temporary)
                if not is_published:
                    directory.rename(temporary, directory, final)
            self._flush_directory(directory)

    def probe_unnamed(self, path: str) -> bool:
        """Makes the directory and writes a file without a name in it; False where there is no such thing."""
        with opened(self.root, self._below(path), make=True) as directory:
            file = directory.unnamed_file()
            if file is None:
                return False
            with file:
                file.write(b"probe")
            return True

    def delete(self, path: str) -> None:
        """Removes a file or a link, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._directory_of(path) as (directory, name):
            directory.unlink(name)

    def remove_empty(self, path: str) -> None:
        """Removes an empty directory, unless it is a link, a mount point or where this process works."""
        below = self._below(path)
        start = self.root if below else str(Path(self.root).parent)
        with opened(start, below[:-1]) as directory:
            directory.remove_empty(below[-1] if below else Path(self.root).name)

    def refuse_links(self, path: str) -> None:
        """Makes sure that neither a directory, if it exists, nor anything directly in it is a link."""
        with contextlib.suppress(FileNotFoundError), opened(self.root, self._below(path)) as directory:
            directory.refuse_links()

    def _below(self, path: str) -> list[str]:
        return [part for part in path[len(self.root) :].split("/") if part]

    @contextlib.contextmanager
    def _directory_of(self, path: str, *, make: bool = False) -> Iterator[tuple[Directory, str]]:
        *below, name = self._below(path)
        with opened(self.root, below, make=make) as directory:
            yield directory, name

    def _copy_from(self, source: Path, file: FileIO) -> None:
        with open(source, "rb") as reader:
            while chunk := reader.read(_COPY_CHUNK):
                self._write_all(file.fileno(), memoryview(chunk))
        self._flush(file.fileno())

    def _take_over(self, spare: str, directory: Directory, temporary: str) -> int | None:
        """Renames a spare file and opens it, if it has no other name: what a hard link shows must not change."""
        try:
            with self._directory_of(spare) as (place, name):
                if not place.is_plain(name):
                    place.unlink(name)
                    return None
                place.rename(name, directory, temporary)
            file = directory.open_file(temporary, os.O_RDWR)
        except OSError:  # it is gone or was exchanged: a new file does as well
            with contextlib.suppress(OSError):
                directory.unlink(temporary)
            return None
        if os.fstat(file).st_nlink == 1:
            return file
        os.close(file)
        directory.unlink(temporary)
        return None

    def _write_temporary(self, directory: Directory, name: str, parts: Chunks, spare: str | None) -> None:
        if parts.size >= self.direct.least:
            descriptor = self.direct.write(directory, name, parts, self.traffic)
            if descriptor is not None:
                try:
                    self._flush(descriptor)
                finally:
                    os.close(descriptor)
                with contextlib.suppress(OSError):  # as where it is taken over: it may be gone, or exchanged for a link
                    if spare is not None:
                        self.delete(spare)
                return
        file = None if spare is None else self._take_over(spare, directory, name)
        self._write(directory.new_file(name) if file is None else FileIO(file, "wb"), parts)

    def _write(self, file: FileIO, parts: Chunks) -> None:
        with file:
            descriptor = file.fileno()
            for part in parts:
                self._write_all(descriptor, memoryview(part))
            os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))  # a spare file may have been longer
            self._flush(descriptor)

    def _write_directly(self, directory: Directory, final: str, parts: Chunks) -> None:
        file = directory.new_file(final)
        try:
            self._write(file, parts)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                directory.unlink(final)
            raise

    def _write_all(self, descriptor: int, view: memoryview) -> None:
        view = view.cast("B")
        while view:
            began = time.monotonic()
            count = os.write(descriptor, view[: self.traffic.piece])
            view = view[count:]
            self.traffic.report(count)
            self.traffic.pace(count, began)

    def _flush(self, descriptor: int) -> None:
        if self.fsync:
            os.fsync(descriptor)

    def _flush_directory(self, directory: Directory) -> None:
        if self.fsync:
            directory.flush()


def _reading(directory: Directory, name: str) -> BufferedReader:
    return open(directory.open_file(name, os.O_RDONLY), "rb")


def _copy(source: BufferedReader, target: BufferedWriter) -> None:
    if sys.platform == "linux":
        try:
            while os.sendfile(target.fileno(), source.fileno(), None, _COPY_CHUNK):
                pass
            return
        except OSError as error:
            if error.errno not in _CANNOT_SEND:  # some file systems: the rest is copied
                raise
    shutil.copyfileobj(source, target)


@contextlib.contextmanager
def _temporary(directory: Directory, final: str) -> Iterator[str]:
    temporary = temporary_name(final)
    try:
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(temporary)

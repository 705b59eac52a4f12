"""Complete files or none on a local file system: temporary name, fsync, then one atomic step to the final name."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import BufferedReader, FileIO
from pathlib import Path

from keras_dist_callbacks.storage import plain_files
from keras_dist_callbacks.storage.direct_io import DirectWrites
from keras_dist_callbacks.storage.transfer import Buffer, RateLimiter

_MARKED = re.compile(r"\.(?P<final>.+)\.tmp-[0-9a-f]{32}", re.DOTALL)
_COPY_CHUNK = 16 * 2**20
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def temporary_name(final: str) -> str:
    """Returns a hidden name for a file that is to be called `final` once it is complete."""
    return f".{final}.tmp-{uuid.uuid4().hex}"


def final_name(name: str) -> str | None:
    """Returns what a file with a name of `temporary_name` was to be called; None for any other name."""
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

    root: str = field(repr=False)  # of a store's URL with a password, it has that too
    fsync: bool
    traffic: RateLimiter
    direct: DirectWrites = field(default_factory=DirectWrites, compare=False)

    def listing(self, path: str) -> list[tuple[str, int]]:
        """Returns names and sizes of the files and links in a directory; empty if not found."""
        plain_files.refuse_links_to(self.root, path)
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
        return found

    def size(self, path: str) -> int | None:
        """Returns bytes of a file; None if not found."""
        plain_files.refuse_links_to(self.root, path)
        try:
            return Path(path).lstat().st_size
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> float:
        """When a file was last written, in seconds since 1970."""
        with self._reading(path) as file:
            return os.fstat(file.fileno()).st_mtime

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Returns the bytes of a file from `start` up to `end`, as far as there are any."""
        with self._reading(path) as file:
            file.seek(start or 0)
            return file.read() if end is None else file.read(max(0, end - (start or 0)))

    def read_into(self, path: str, start: int, view: memoryview) -> int:
        """Fills `view` from byte `start` of a file on; how many bytes there were."""
        filled = 0
        with self._reading(path) as file:
            while filled < len(view):
                count = os.preadv(file.fileno(), [view[filled:]], start + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def drop_cached(self, path: str) -> None:
        """Takes a file out of the page cache, if it is there and the platform can."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(FileNotFoundError), self._reading(path) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def download(self, path: str, target: Path, size: int) -> None:
        """Copies a file."""
        with self._reading(path) as file, open(target, "wb") as copy:
            shutil.copyfileobj(file, copy, _COPY_CHUNK)

    def create(
        self,
        path: str,
        parts: Iterable[Buffer],
        size: int,
        named: Callable[[], str] | None = None,
    ) -> None:
        """Publishes a new file.

        Args:
            path: Its path; with `named`, one in the same directory.
            parts: Its content, which is read a second time where the file system refuses something.
            size: Bytes of it.
            named: Returns its path once the content was written.

        Raises:
            FileExistsError: The name is taken.
        """
        directory = self._made_directory_of(path)
        with _temporary(path) as temporary:
            self._write_temporary(temporary, parts, size)
            path = path if named is None else named()
            try:
                os.link(temporary, path, follow_symlinks=False)
            except FileExistsError:
                if not os.path.islink(path):  # noqa: PTH114
                    # else a search for the next free name would never end
                    plain_files.require_regular(path, Path(path).lstat().st_mode)
                raise
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # A file system without hard links: readers are protected by the digest inside the file.
                self._write_directly(path, parts)
        self._flush_directory(directory)

    def replace(self, path: str, source: Path) -> None:
        """Publishes a copy of `source`; readers see the old file or the new one."""
        directory = self._made_directory_of(path)
        with _temporary(path) as temporary:
            unnamed = plain_files.unnamed_file(directory)
            with unnamed or plain_files.new_file(self.root, temporary) as file:
                with open(source, "rb") as reader:
                    while chunk := reader.read(_COPY_CHUNK):
                        self._write_all(file.fileno(), memoryview(chunk))
                self._flush(file.fileno())
                is_published = unnamed is not None and plain_files.give_name(file, path)
                if unnamed is not None and not is_published:  # only a file with a name can take the place of another
                    plain_files.give_name(file, temporary)
            if not is_published:
                Path(temporary).replace(path)
        self._flush_directory(directory)

    def extend(self, path: str, content: bytes, held: int) -> None:
        """Appends to a file what it does not hold of `content`, of which it is known to hold so much."""
        self._made_directory_of(path)
        with open(plain_files.open_file(self.root, path, os.O_WRONLY | os.O_CREAT), "wb") as file:
            start = min(held, os.fstat(file.fileno()).st_size)  # it may have been deleted
            file.seek(start)
            file.write(content[start:])

    def probe_unnamed(self, path: str) -> bool:
        """Makes the directory and writes a file without a name in it; False where that is not supported."""
        plain_files.make_directory(path)
        file = plain_files.unnamed_file(path)
        if file is None:
            return False
        with file:
            file.write(b"probe")
        return True

    def delete(self, path: str) -> None:
        """Removes a file or a link, if it is there."""
        plain_files.refuse_links_to(self.root, os.path.dirname(path))  # noqa: PTH120
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()

    def remove_empty(self, path: str) -> None:
        """Removes an empty directory, unless it is where this process works; the system keeps links and mounts."""
        plain_files.refuse_links_to(self.root, path)
        if not os.path.samefile(path, os.curdir):  # noqa: PTH121
            Path(path).rmdir()

    def refuse_links(self, path: str) -> None:
        """Makes sure that neither a directory, if it exists, nor anything directly in it is a link."""
        plain_files.refuse_links_to(self.root, path)
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                plain_files.refuse_link(self.root, entry.path)

    def _made_directory_of(self, path: str) -> str:
        directory = os.path.dirname(path)  # noqa: PTH120
        plain_files.refuse_links_to(self.root, directory)
        plain_files.make_directory(directory)
        return directory

    def _reading(self, path: str) -> BufferedReader:
        plain_files.refuse_links_to(self.root, os.path.dirname(path))  # noqa: PTH120
        return open(plain_files.open_file(self.root, path, os.O_RDONLY), "rb")

    def _write_temporary(self, path: str, parts: Iterable[Buffer], size: int) -> None:
        if size >= self.direct.least:
            descriptor = self.direct.write(self.root, path, parts, self.traffic)
            if descriptor is not None:  # else this file system wants it through the page cache
                try:
                    self._flush(descriptor)
                finally:
                    os.close(descriptor)
                return
        self._write(plain_files.new_file(self.root, path), parts)

    def _write(self, file: FileIO, parts: Iterable[Buffer]) -> None:
        with file:
            descriptor = file.fileno()
            for part in parts:
                self._write_all(descriptor, memoryview(part))
            self._flush(descriptor)

    def _write_directly(self, path: str, parts: Iterable[Buffer]) -> None:
        file = plain_files.new_file(self.root, path)
        try:
            self._write(file, parts)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
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

    def _flush_directory(self, path: str) -> None:
        """Waits until the disk has the names in a directory."""
        if self.fsync:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _temporary(path: str) -> Iterator[str]:
    directory, _, final = path.rpartition("/")
    temporary = f"{directory}/{temporary_name(final)}"
    try:
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()

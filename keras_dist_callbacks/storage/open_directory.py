"""Directories below a root that users give, opened one by one, so that no symbolic link leads out of it.

Whoever may write into a shared directory can plant a link there. So each directory is opened relative to the descriptor
of the one above it and never through a link, and what happens in it goes by its descriptor: renaming or exchanging
directories meanwhile changes nothing. The root itself may be a link, or lie behind one. Where the platform has no such
operations, paths are used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from keras_dist_callbacks.errors import StorageError

BY_DESCRIPTOR = (
    {os.open, os.mkdir, os.link, os.unlink, os.rmdir, os.stat, os.rename} <= os.supports_dir_fd
    and os.scandir in os.supports_fd
    and os.link in os.supports_follow_symlinks
    and hasattr(os, "O_NOFOLLOW")
)
"""Whether this platform can do without paths."""

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_ON_THE_WAY = _DIRECTORY | getattr(os, "O_PATH", 0)  # going through a directory takes no right to list it
# Not waiting: a pipe that somebody has planted would hold up whoever opens it until another writes into it.
_ANY_FILE = _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_UNNAMED = getattr(os, "O_TMPFILE", None)
_OPEN_FILE = "/proc/self/fd/{}"
_NO_UNNAMED = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EISDIR, errno.EINVAL, errno.ENOSYS}
_AT_A_LINK = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}


@dataclass(frozen=True)
class Directory:
    """An open directory.

    Attributes:
        root: The directory that the user gave.
        path: Its path; for messages, and for platforms without descriptors of directories.
        descriptor: What operations are relative to; None on such a platform.
    """

    root: str
    path: str
    descriptor: int | None

    def at(self, name: str) -> str:
        """What to call a file in it, to a function that gets the descriptor too."""
        return name if self.descriptor is not None else f"{self.path}/{name}"

    def open_file(self, name: str, flags: int) -> int:
        """The descriptor of a regular file in it; never that of what a link points to.

        Raises:
            StorageError: It is a link, or a pipe, a device or the like.
        """
        try:
            file = os.open(self.at(name), flags | _ANY_FILE, 0o666, dir_fd=self.descriptor)
        except OSError as error:
            self._refuse_link(name, error)
            raise
        try:
            self._require_regular(name, os.fstat(file).st_mode)
        except BaseException:
            os.close(file)
            raise
        return file

    def new_file(self, name: str) -> FileIO:
        """A new file in it, open for writing.

        Raises:
            FileExistsError: The name is taken.
        """
        return open(self.at(name), "xb", buffering=0, opener=lambda _, flags: self.open_file(name, flags))

    def unnamed_file(self) -> FileIO | None:
        """A new file without a name, which vanishes if the process ends; None where there is no such thing."""
        if _UNNAMED is None or self.descriptor is None:
            return None
        try:
            file = os.open(".", _UNNAMED | os.O_RDWR, 0o666, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in _NO_UNNAMED:
                return None
            raise
        if Path(_OPEN_FILE.format(file)).exists():
            return FileIO(file, "wb")
        os.close(file)  # without /proc it cannot get a name
        return None

    def give_name(self, file: FileIO, name: str) -> bool:
        """Gives an `unnamed_file` a name; False if the name is taken."""
        try:
            os.link(_OPEN_FILE.format(file.fileno()), name, dst_dir_fd=self.descriptor, follow_symlinks=True)
        except FileExistsError:
            return False
        return True

    def size(self, name: str) -> int:
        """Bytes of a file in it.

        Raises:
            StorageError: It is a link.
        """
        found = os.stat(self.at(name), dir_fd=self.descriptor, follow_symlinks=self.descriptor is None)
        if stat.S_ISLNK(found.st_mode):
            raise self._is_link_error(name)
        return found.st_size

    def require_file(self, name: str) -> None:
        """Makes sure that what has a name, if anything has, is a regular file or a link.

        Raises:
            IsADirectoryError: It is a directory.
            StorageError: It is a pipe, a device or the like.
        """
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(self.at(name), dir_fd=self.descriptor, follow_symlinks=False).st_mode
            if not stat.S_ISLNK(mode):
                self._require_regular(name, mode)

    def is_plain(self, name: str) -> bool:
        """Whether it is a regular file without another name."""
        found = os.stat(self.at(name), dir_fd=self.descriptor, follow_symlinks=False)
        return stat.S_ISREG(found.st_mode) and found.st_nlink == 1

    def unlink(self, name: str) -> None:
        """Takes a name out of it; of a link, the link."""
        os.unlink(self.at(name), dir_fd=self.descriptor)

    def link(self, name: str, other: str) -> None:
        """Gives a file in it another name, which nothing may have."""
        os.link(
            self.at(name),
            self.at(other),
            src_dir_fd=self.descriptor,
            dst_dir_fd=self.descriptor,
            follow_symlinks=self.descriptor is None,
        )

    def rename(self, name: str, target: Directory, other: str) -> None:
        """Moves a file; what had the other name is replaced, and if that was a link, the link."""
        os.replace(self.at(name), target.at(other), src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)

    def files(self) -> list[tuple[str, int]]:
        """Names and sizes of the files in it, and of the links, whatever they point to."""
        by_path, found = self.descriptor is None, []
        with self._entries() as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                    if entry.is_file(follow_symlinks=by_path) or (entry.is_symlink() and not by_path):
                        found.append((entry.name, entry.stat(follow_symlinks=by_path).st_size))
        return found

    def flush(self) -> None:
        """Waits until the disk has its names."""
        with self._readable() as descriptor:
            os.fsync(descriptor)

    def enter(self, name: str, *, make: bool = False) -> Directory:
        """Opens a directory in it, which is to be closed.

        Raises:
            StorageError: It is a link.
            FileNotFoundError: There is none, and none is made.
        """
        try:
            inner = os.open(name, _ON_THE_WAY | _NO_FOLLOW, dir_fd=self.descriptor)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):  # somebody else was faster
                os.mkdir(name, dir_fd=self.descriptor)
            return self.enter(name)
        except OSError as error:
            self._refuse_link(name, error)
            raise
        return Directory(self.root, f"{self.path.rstrip('/')}/{name}", inner)

    def refuse_links(self) -> None:
        """Makes sure that nothing in it is a link.

        Raises:
            StorageError: Something is.
        """
        with self._entries() as entries:
            for entry in entries:
                if entry.is_symlink() and self.descriptor is not None:
                    raise self._is_link_error(entry.name)

    def remove_empty(self, name: str) -> None:
        """Removes an empty directory in it, unless it is a link, a mount point or where this process works."""
        found = os.stat(self.at(name), dir_fd=self.descriptor, follow_symlinks=False)
        above = Path(self.path).stat() if self.descriptor is None else os.fstat(self.descriptor)
        if stat.S_ISDIR(found.st_mode) and found.st_dev == above.st_dev and not _is_working_directory(found):
            os.rmdir(self.at(name), dir_fd=self.descriptor)

    @contextlib.contextmanager
    def _entries(self) -> Iterator[Iterator[os.DirEntry[str]]]:
        if self.descriptor is None:
            with os.scandir(self.path) as entries:
                yield entries
            return
        with self._readable() as descriptor, os.scandir(descriptor) as entries:
            yield entries

    def _readable(self) -> contextlib.AbstractContextManager[int]:
        if self.descriptor is None:
            return _closing(os.open(self.path, _DIRECTORY))
        return _closing(os.open(".", _DIRECTORY, dir_fd=self.descriptor))

    def _require_regular(self, name: str, mode: int) -> None:
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), f"{self.path}/{name}")
        if not stat.S_ISREG(mode):
            raise StorageError(f"{self.path}/{name} is no regular file, but a pipe, a device or the like; remove it")

    def _refuse_link(self, name: str, error: OSError) -> None:
        if self.descriptor is None or error.errno not in _AT_A_LINK:
            return
        with contextlib.suppress(FileNotFoundError):  # it is gone again: `error` is all there is to say
            if stat.S_ISLNK(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode):
                raise self._is_link_error(name) from error

    def _is_link_error(self, name: str) -> StorageError:
        return StorageError(
            f"{self.path.rstrip('/')}/{name} is a symbolic link; inside of {self.root} nothing is read, written or "
            f"deleted through links: remove it, or put what it points to in its place ({self.root} itself may be one)"
        )


@contextlib.contextmanager
def opened(root: str, below: Sequence[str], *, make: bool = False) -> Iterator[Directory]:
    """A directory, open within the block.

    Args:
        root: What the user gave; it is opened whatever leads to it.
        below: The names of the directories on the way from there; none of them may be a link.
        make: Make those that are missing.

    Raises:
        StorageError: One on the way is a link.
        FileNotFoundError: One is missing.
        NotADirectoryError: One is a file.
    """
    if not BY_DESCRIPTOR:
        path = "/".join([root, *below])
        if make:
            _make(path)
        yield Directory(root, path, None)
        return
    try:
        start = os.open(root, _ON_THE_WAY)
    except FileNotFoundError:
        if not make:
            raise
        _make(root)
        start = os.open(root, _ON_THE_WAY)
    directory = Directory(root, root, start)
    try:
        for name in below:
            inner = directory.enter(name, make=make)
            directory, outer = inner, directory
            _close(outer)
        yield directory
    finally:
        _close(directory)


def _make(path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # to whoever creates a file, that would mean that its name is taken
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error


def _close(directory: Directory) -> None:
    if directory.descriptor is not None:
        os.close(directory.descriptor)


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_working_directory(found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, Path().stat())
    except FileNotFoundError:  # it was removed
        return False

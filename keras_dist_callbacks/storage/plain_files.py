"""Files that are opened by their paths, but never through a symbolic link below the directory that the user gave.

Who may write into a shared directory can plant a link there. Links are looked for on the way to each file, and the
file itself is opened without following one.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

from keras_dist_callbacks.base.errors import StorageError

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
# Not waiting: opening a planted pipe would block until another process writes into it.
_ANY_FILE = _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_UNNAMED = getattr(os, "O_TMPFILE", None)
_OPEN_FILE = "/proc/self/fd/{}"
_NO_UNNAMED = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EISDIR, errno.EINVAL, errno.ENOSYS}


def refuse_link(root: str, path: str) -> None:
    """Makes sure that a path is not a symbolic link; nothing happens if nothing is there.

    Raises:
        StorageError: It is one.
    """
    if os.path.islink(path):  # noqa: PTH114 - called for each file
        raise StorageError(
            f"{path} is a symbolic link, and links inside {root} are not followed: remove it, or replace it by what it "
            f"points to ({root} itself may be a link)"
        )


def refuse_links_to(root: str, directory: str) -> None:
    """The same for a directory and those between it and `root`, which itself may be a link."""
    while len(directory) > len(root):
        refuse_link(root, directory)
        directory = os.path.dirname(directory)  # noqa: PTH120 - called for each file


def open_file(root: str, path: str, flags: int) -> int:
    """Returns the descriptor of a regular file; never that of what a link points to.

    Raises:
        StorageError: It is a link, or a pipe, a device or the like.
    """
    try:
        file = os.open(path, flags | _ANY_FILE, 0o666)
    except OSError:
        if not flags & os.O_EXCL:
            refuse_link(root, path)
        raise
    try:
        require_regular(path, os.fstat(file).st_mode)
    except BaseException:
        os.close(file)
        raise
    return file


def new_file(root: str, path: str) -> FileIO:
    """Returns a new file, open for writing.

    Raises:
        FileExistsError: The name is taken.
    """
    return open(path, "xb", buffering=0, opener=lambda path, flags: open_file(root, path, flags))


def unnamed_file(directory: str) -> FileIO | None:
    """Returns a new file without a name, which vanishes if the process ends; None where that is not supported."""
    if _UNNAMED is None:
        return None
    try:
        file = os.open(directory, _UNNAMED | os.O_RDWR, 0o666)
    except OSError as error:
        if error.errno in _NO_UNNAMED:
            return None
        raise
    if Path(_OPEN_FILE.format(file)).exists():
        return FileIO(file, "wb")
    os.close(file)  # without /proc it cannot get a name
    return None


def give_name(file: FileIO, path: str) -> bool:
    """Gives an `unnamed_file` a name; False if the name is taken."""
    try:
        # Python follows the link of /proc only where it is given a descriptor, which absolute paths make no use of.
        os.link(_OPEN_FILE.format(file.fileno()), path, src_dir_fd=file.fileno(), follow_symlinks=True)
    except FileExistsError:
        return False
    return True


def require_regular(path: str, mode: int) -> None:
    """Makes sure that a mode is that of a regular file.

    Raises:
        IsADirectoryError: It is that of a directory.
        StorageError: It is that of a pipe, a device or the like.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise StorageError(f"{path} is not a regular file, but a pipe, a device or the like; remove it")


def make_directory(path: str) -> None:
    """Makes a directory and those above it.

    Raises:
        NotADirectoryError: Something on the way is a file.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # which a caller that creates a file would take for a taken name
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error

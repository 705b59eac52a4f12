"""Temporary files and directories in `$TMPDIR` that do not stay there for ever when their process is killed.

All those of a process are in one directory of its own, `kdc-<boot>-...`, with a file that the process holds locked. The
kernel releases the lock when the process ends, however it ends, and the next process that needs a temporary file
deletes the directory. Process ids would not do: they are reused, and mean something else in another container.

A lock counts only within one running kernel, so a directory is judged only by those whose boot id is in its name, and
only by the account that owns it: `$TMPDIR` may be shared by accounts, containers and hosts.

Where `$TMPDIR` takes nothing, that is a `StorageError` which says so: see `writing`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from keras_dist_callbacks.base import machine
from keras_dist_callbacks.base.errors import KdcError, StorageError, cause_chain
from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.base.terminal import data_size
from keras_dist_callbacks.storage.transfer import Buffer

_PREFIX = "kdc-"
_LOCK = "lock"
_TRIES = 10
_OURS = "files of keras_dist_callbacks"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_LEAST_TRIED, _MOST_TRIED = 2**16, 2**24
_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Directories(Shared):
    """By $TMPDIR: this process' directory and the descriptor of its lock."""

    own: dict[str, tuple[Path, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def in_child(self) -> Directories:
        """A forked process has a directory of its own; its copy of the lock would outlive the process that made it."""
        for _, descriptor in self.own.values():
            os.close(descriptor)
        return Directories()


def make_directory(purpose: str) -> Path:
    """Makes a temporary directory, which the caller deletes.

    Args:
        purpose: A word for its name.
    """
    with writing(_OURS):
        return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_own_directory()))


@contextlib.contextmanager
def directory(purpose: str) -> Iterator[Path]:
    """A temporary directory for the block.

    Args:
        purpose: A word for its name.
    """
    with writing(_OURS):
        made = tempfile.TemporaryDirectory(prefix=f"{purpose}-", dir=_own_directory())
    with made as path:
        yield Path(path)


@contextlib.contextmanager
def file(purpose: str) -> Iterator[IO[bytes]]:
    """A temporary file with a name, open for the block.

    Args:
        purpose: A word for its name.
    """
    with writing(_OURS):
        made = tempfile.NamedTemporaryFile(prefix=f"{purpose}-", dir=_own_directory())  # noqa: SIM115 - closed below
    try:
        yield made
    except BaseException:
        with contextlib.suppress(OSError):  # it tries once more to write what has not been written
            made.close()
        raise
    made.close()


@contextlib.contextmanager
def file_with(parts: Sequence[Buffer], purpose: str, what: str) -> Iterator[Path]:
    """A temporary file with a content, for the block.

    Args:
        parts: The content, in pieces.
        purpose: A word for its name.
        what: What it holds, for messages.
    """
    with file(purpose) as made:
        with writing(what, sum(map(len, parts))):
            for part in parts:
                made.write(part)
            made.flush()
        yield Path(made.name)


@contextlib.contextmanager
def writing(what: str, size: int = 0, within: Path | None = None) -> Iterator[None]:
    """For a block that does nothing but write temporary files: what fails because they cannot be written says so.

    `full` of the error stays False: it is not the store that has no space.

    Args:
        what: What is written, for the message.
        size: Bytes of it; 0 if not known.
        within: A temporary directory. Defaults to `$TMPDIR`.

    Raises:
        StorageError: `$TMPDIR` is full, read-only or forbidden.
    """
    place = _place(what)
    try:
        yield
    except KdcError:
        raise
    except Exception as error:  # those of h5py and TensorFlow have no number, and are not all of one type
        why = _why_unusable(within or Path(place), error, size)
        if why is None:
            raise
        raise _unusable(place, what, size, why) from error


def _place(what: str) -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:  # it has tried all that there are
        raise StorageError(
            f"there is no temporary directory for {what}: {error.strerror}. Set TMPDIR to a directory that can be "
            "written, with space"
        ) from error


def _why_unusable(directory: Path, error: Exception, size: int) -> OSError | None:
    """Returns what keeps a directory from being written; None if another thing has failed."""
    for link in cause_chain(error):
        if isinstance(link, OSError):
            is_there = str(link.filename).startswith(str(directory))
            if link.errno in _FULL and (link.filename is None or is_there):
                return link
            if link.errno in _REFUSED and is_there:
                return link
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(min(max(size, _LEAST_TRIED), _MOST_TRIED)))
            file.flush()
    except OSError as found:
        return found
    return None


def _unusable(place: str, what: str, size: int, why: OSError) -> StorageError:
    needed, free = f" ({data_size(size)})" if size else "", ""
    with contextlib.suppress(OSError):
        free = f"; {data_size(shutil.disk_usage(place).free)} are free" if why.errno in _FULL else ""
    fix = "Free some space, or set TMPDIR to a directory that has more" if free else "Set TMPDIR to another directory"
    reason = os.strerror(why.errno) if why.errno else str(why)
    return StorageError(
        f"cannot write {what}{needed}: the temporary directory {place} cannot be written ({reason}{free}). {fix}"
    )


def keep(path: Path) -> Path:
    """Moves a directory of `make_directory` to where no later process deletes it.

    Returns:
        Its new place.
    """
    kept = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}kept-", dir=path.parent.parent))
    return path.rename(kept)  # which is empty


def _own_directory() -> Path:
    """This process' directory, with those of dead processes deleted if it is a new one."""
    place = _place(_OURS)
    mine = shared(Directories)
    with mine.lock:
        if place not in mine.own or not mine.own[place][0].is_dir():  # else what cleans up /tmp has deleted it
            boot = machine.boot_id()
            if boot is not None:  # else it is not known which of them could be judged
                boot = boot.replace("-", "")[:16]
                _collect(place, boot)
            mine.own[place] = _new(place, boot)
        return mine.own[place][0]


def _new(place: str, boot: str | None) -> tuple[Path, int]:
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{boot or 'unknown'}-", dir=place))
        with contextlib.suppress(FileNotFoundError):  # taken for that of a dead process just before it was locked
            descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o600)
            with contextlib.suppress(OSError):  # a file system without locks: there, others cannot lock it either
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if (path / _LOCK).exists():
                return path, descriptor
            os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "directories that are created there disappear at once", place)


def _collect(place: str, boot: str) -> None:
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(f"{_PREFIX}{boot}-"):
                with contextlib.suppress(OSError):  # another process deletes it too, or it is not ours to judge
                    _delete_if_dead(entry.path)


def _delete_if_dead(path: str) -> None:
    found = Path(path).lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    descriptor = os.open(f"{path}/{_LOCK}", os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if its process is alive
        shutil.rmtree(path)
    finally:
        os.close(descriptor)


def delete_own() -> None:
    """Deletes all that this process has; a fork that ends by `os._exit` calls it, and others do so at their exit."""
    own = shared(Directories).own
    for path, descriptor in own.values():
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)
    own.clear()


atexit.register(delete_own)

"""Temporary files and directories in `$TMPDIR` that do not stay there for ever when their process is killed.

All those of a process are in one directory of its own, `kdc-<boot>-...`, with a file that the process holds locked. The
kernel releases the lock when the process ends, however it ends, and the next process that needs a temporary file
deletes the directory. Process ids would not do: they are reused, and mean something else in another container.

A lock counts only within one running kernel, so a directory is judged only by those whose boot id is in its name, and
only by the account that owns it: `$TMPDIR` may be shared by accounts, containers and hosts.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from keras_dist_callbacks.process import Shared, shared

_PREFIX = "kdc-"
_LOCK = "lock"
_TRIES = 10
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
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
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_own_directory()))


@contextlib.contextmanager
def directory(purpose: str) -> Iterator[Path]:
    """A temporary directory for the block.

    Args:
        purpose: A word for its name.
    """
    with tempfile.TemporaryDirectory(prefix=f"{purpose}-", dir=_own_directory()) as path:
        yield Path(path)


def file(purpose: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    """A temporary file with a name, open for the block.

    Args:
        purpose: A word for its name.
    """
    return tempfile.NamedTemporaryFile(prefix=f"{purpose}-", dir=_own_directory())


def keep(path: Path) -> Path:
    """Moves a directory of `make_directory` to where no later process deletes it.

    Returns:
        Its new place.
    """
    kept = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}kept-", dir=path.parent.parent))
    return path.rename(kept)  # which is empty


def _own_directory() -> Path:
    """This process' directory, with those of dead processes deleted if it is a new one."""
    place = tempfile.gettempdir()
    mine = shared(Directories)
    with mine.lock:
        if place not in mine.own or not mine.own[place][0].is_dir():  # else what cleans up /tmp has deleted it
            boot = _boot()
            if boot is not None:
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


def _boot() -> str | None:
    """Returns what identifies this run of the kernel; None where that is not known, and nothing is collected."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip().replace("-", "")[:16]
    except (OSError, UnicodeDecodeError):
        return None


def delete_own() -> None:
    """Deletes all that this process has; a fork that ends by `os._exit` calls it, and others do so at their exit."""
    own = shared(Directories).own
    for path, descriptor in own.values():
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)
    own.clear()


atexit.register(delete_own)

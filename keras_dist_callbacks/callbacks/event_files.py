"""The event files of one training on a local disk: how long they are at a backup, and shortened to that at a restart.

A restarted run repeats the steps after its backup, and writes to files of its own. Readers of TensorBoard show both, as
a curve that goes back: so what the files of the interrupted process hold beyond the backup is cut off.

Files of a process that was killed before its first backup stay. Its owner record names the process, but an earlier
fit() of that process, which ended well, may have written to the same directory: a name does not say whose a file is.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

_NAME = re.compile(r"(?:[\w-]+/)?events\.out\.tfevents\.[\w.-]+")


def of_this_process(directory: Path) -> list[str]:
    """Returns the names of the event files that this process has written to a directory and those directly below it."""
    end = re.compile(rf".*\.{re.escape(socket.gethostname())}\.{os.getpid()}\.\d+\.v2")
    found = [*directory.glob("events.out.tfevents.*"), *directory.glob("*/events.out.tfevents.*")]
    return [path.relative_to(directory).as_posix() for path in found if end.fullmatch(path.name)]


def sizes(directory: Path, names: Iterable[str]) -> dict[str, int]:
    """Returns how long those of some files are that are there."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError):
            found[name] = (directory / name).lstat().st_size
    return found


def shorten(directory: Path, known: Mapping[str, int]) -> None:
    """Cuts off what files hold beyond a size; a file that is shorter, or a link, or in a linked directory, stays.

    Args:
        directory: Where they are.
        known: Their names below it, and the sizes.
    """
    for name, size in known.items():
        if _NAME.fullmatch(name) and not (directory / name).parent.is_symlink():
            with contextlib.suppress(OSError):  # deleted, or another account's: then there is nothing to repair
                _shorten(directory / name, size)


def _shorten(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size > size:
            os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)

"""This machine and the processes on it, as Linux describes them in /proc.

Nothing here raises. Where /proc is missing, hidden or another system's, nothing is known, and nothing is concluded.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")
_IMPORTED = time.time()
_STATE, _BEGAN = 0, 19  # fields 3 and 22 of /proc/<pid>/stat, counted from the one after the name
_ENDED = {b"Z", b"X"}  # it has ended, and its parent has not asked for its exit code yet


def boot_id() -> str | None:
    """Returns what identifies this run of the kernel; containers share it."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def process_namespace() -> str | None:
    """Returns what identifies the processes among which ids and starts mean the same as for this one.

    These are the kernel's boot and, as containers may have their own, the namespaces of process ids and of the clock.
    """
    boot = boot_id()
    try:
        own = PROC / "self/ns"
        kinds = {"pid", "time"}.intersection(path.name for path in own.iterdir())  # older kernels have one clock
        spaces = [str((own / kind).readlink()) for kind in sorted(kinds)]
    except OSError:
        return None
    return None if boot is None else " ".join([boot, *spaces])


def process_began(pid: int) -> int | None:
    """Returns when a process of this machine began, in clock ticks since the boot, whatever the clock was set to.

    With its id, this identifies a process: ids are used again. None if it has ended, or if that is not known.

    Args:
        pid: Its id.
    """
    fields = _fields(pid)
    return None if fields is None or fields[_STATE] in _ENDED else int(fields[_BEGAN])


def process_start() -> float:
    """Returns when this process began, in seconds since 1970.

    Where the system does not say that, it is when this module was imported.
    """
    began = process_began(os.getpid())
    if began is None:
        return _IMPORTED
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + began / os.sysconf("SC_CLK_TCK")


def has_ended(pid: int, began: int) -> bool:
    """Returns whether a process of this namespace is known to have ended.

    Args:
        pid: Its id.
        began: What `process_began` returned for it.
    """
    fields = _fields(pid)
    if fields is not None:
        return fields[_STATE] in _ENDED or int(fields[_BEGAN]) != began
    try:  # /proc may hide the processes of other accounts
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _fields(pid: int) -> list[bytes] | None:
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before it is the program's, and may hold anything
    return fields if len(fields) > _BEGAN and fields[_BEGAN].isdigit() else None

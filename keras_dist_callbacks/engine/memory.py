"""How much memory there is for backups that wait."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_HOST = Path("/proc/meminfo")
_LIMITS = (  # of a container, as it sees itself: control groups, version 2 and 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
_SHARE = 0.5


def half_of_what_is_free() -> int:
    """Bytes; 0 where the system does not tell."""
    free = _free_on_the_host()
    for limit, used in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
            free = min(free, max(0, int(limit.read_text()) - int(used.read_text())))
    return int(free * _SHARE)


def _free_on_the_host() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in _HOST.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return int(os.sysconf("SC_AVPHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    return 0

"""How much memory there is for backups that wait."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_HOST = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_FILES = {  # of a control group: its limit, what it uses, and what of that is pages that are given up when asked for
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_SHARE = 0.5


def half_of_what_is_free() -> int:
    """Bytes; 0 where the system does not tell."""
    return int(min([_free_on_the_host(), *_free_in_groups()]) * _SHARE)


def _free_in_groups() -> Iterator[int]:
    """What is left to each control group that this process is in, in versions 2 and 1 of them."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for kind in _FILES.keys() & set(controllers.split(",")):
            own = Path(path.lstrip("/"))
            for group in (own, *own.parents):  # a container sees its own at the top
                yield from _free_in(_GROUPS / kind / group, kind)


def _free_in(group: Path, kind: str) -> Iterator[int]:
    limit, used, inactive = _FILES[kind]
    with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
        most, now = int((group / limit).read_text()), int((group / used).read_text())
        told = (group / "memory.stat").read_text().split()
        given_up = int(told[told.index(inactive) + 1]) if inactive in told else 0
        yield max(0, most - now + given_up)


def _free_on_the_host() -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in _HOST.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return int(os.sysconf("SC_AVPHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    return 0

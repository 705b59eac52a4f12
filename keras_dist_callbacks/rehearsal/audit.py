"""Files that a script opens for writing by itself: a rehearsal can name them, and does not redirect them."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks.process import Shared, shared
from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.plan import Plan

_MOST = 200
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NOT_FILES = ("/dev/", "/proc/", "/sys/")
_CACHES = (f"{os.sep}__pycache__{os.sep}", f"{os.sep}.keras{os.sep}", f"{os.sep}.cache{os.sep}")


@dataclass
class _Seen(Shared):
    """Which files were opened, and whether the hook is there: it cannot be taken away."""

    paths: set[str] = field(default_factory=set)
    is_watching: bool = False
    is_noting: bool = False


def watch_files(plan: Plan) -> None:
    """From now on, each file of the script that is opened for writing is recorded once."""
    seen = shared(_Seen)
    if seen.is_watching:
        return
    seen.is_watching = True
    ignored = (*_ignored_directories(plan), *_NOT_FILES)
    records.note(plan, "watching")  # opens the file of the records

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "sqlite3.connect") or seen.is_noting:
            return
        path = _written_path(event, arguments)
        if path is None or path in seen.paths or len(seen.paths) >= _MOST or _is_ignored(path, ignored):
            return
        seen.paths.add(path)
        seen.is_noting = True
        try:
            with contextlib.suppress(OSError):  # the script's own open must not fail for it
                records.note(plan, "file", path=path)
        finally:
            seen.is_noting = False

    sys.addaudithook(hook)


def _written_path(event: str, arguments: tuple[Any, ...]) -> str | None:
    """The absolute path of a file that is about to be written; None for anything else."""
    path = arguments[0]
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITES)
        if not writes:
            return None
    elif path in (":memory:", b":memory:", ""):
        return None
    if not isinstance(path, str | bytes):
        return None  # a descriptor that is open already
    try:
        return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - called at each open, also at exit
    except (OSError, ValueError):
        return None  # the working directory is gone


def _is_ignored(path: str, ignored: tuple[str, ...]) -> bool:
    return path.startswith(ignored) or any(part in path for part in _CACHES)


def _ignored_directories(plan: Plan) -> list[str]:
    """The rehearsal's own, Python's, and temporary files by the names that `tempfile` and this package give them."""
    temporary = tempfile.gettempdir()
    own = [place for place in (plan.scratch, plan.out) if "://" not in place]
    return [
        *(f"{place.rstrip('/')}/" for place in own),
        *(f"{place}/" for place in {sys.prefix, sys.base_prefix} if place != "/usr"),
        "/usr/lib/",
        *(os.path.join(temporary, prefix) for prefix in ("tmp", "kdc-")),  # noqa: PTH118 - of names, not a path
    ]

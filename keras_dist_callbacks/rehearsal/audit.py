"""Files that a script opens for writing by itself: a rehearsal can name them, and does not redirect them."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.plan import Plan

_MOST = 200
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED = getattr(os, "O_TMPFILE", -1)
_TEMPORARY = ("tempfile.mkstemp", "tempfile.mkdtemp")
_NOT_FILES = ("/dev/", "/proc/", "/sys/")
_CACHES = (f"{os.sep}__pycache__{os.sep}", f"{os.sep}.keras{os.sep}", f"{os.sep}.cache{os.sep}")


@dataclass
class _Seen(Shared):
    """Which files were opened, which are `tempfile`'s, and whether the hook is there: it cannot be taken away."""

    paths: set[str] = field(default_factory=set)
    temporary: set[str] = field(default_factory=set)
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
    is_finalizing = sys.is_finalizing

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_finalizing():  # after all atexit functions: the names of modules, this one's too, become None one by one
            return
        if event in _TEMPORARY:
            seen.temporary.add(_absolute(arguments[0]) or "")
        if event not in ("open", "sqlite3.connect") or seen.is_noting:
            return
        path = _written_path(event, arguments)
        if path is None or path in seen.paths or len(seen.paths) >= _MOST or _is_ignored(path, ignored):
            return
        if not seen.temporary.isdisjoint(_with_parents(path)):
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
        mode, flags = arguments[1], arguments[2] or 0
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
        if not writes or flags & _UNNAMED == _UNNAMED:
            return None
    elif path in (":memory:", b":memory:", ""):
        return None
    return _absolute(path)


def _absolute(path: Any) -> str | None:
    """None for a descriptor, which is open already, and where the working directory is gone."""
    try:
        return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - called at each open, also at exit
    except (OSError, TypeError, ValueError):
        return None


def _with_parents(path: str) -> Iterator[str]:
    while path != os.sep:
        yield path
        path = path.rpartition(os.sep)[0] or os.sep


def _is_ignored(path: str, ignored: tuple[str, ...]) -> bool:
    if path.startswith(ignored) or any(part in path for part in _CACHES):
        return True
    return os.path.isdir(path)  # noqa: PTH112 - as above; a temporary file without a name is one in a directory


def _ignored_directories(plan: Plan) -> list[str]:
    """The rehearsal's own, Python's, and what this package and `tempfile` made before the hook was there."""
    temporary = tempfile.gettempdir()
    own = [place for place in (plan.scratch, plan.out) if "://" not in place]
    return [
        *(f"{place.rstrip('/')}/" for place in own),
        *(f"{place}/" for place in {sys.prefix, sys.base_prefix} if place != "/usr"),
        "/usr/lib/",
        *(os.path.join(temporary, prefix) for prefix in ("tmp", "kdc-")),  # noqa: PTH118 - of names, not a path
    ]

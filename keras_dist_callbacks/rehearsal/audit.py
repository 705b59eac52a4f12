"""What a rehearsed script writes outside of the copy of its working directory: refused, or named.

Python tells an audit hook what it is about to open, move or delete, and the hook refuses what would change a file of
the user's. Libraries that open files by themselves, such as HDF5, tell nobody: `write_lock` is for them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_dist_callbacks.base.process import Shared, shared
from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.plan import Plan

_MOST = 200
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED = getattr(os, "O_TMPFILE", -1)
_TEMPORARY = ("tempfile.mkstemp", "tempfile.mkdtemp")
_CHANGES = {
    **dict.fromkeys(("os.remove", "os.rmdir", "os.truncate", "os.mkdir", "shutil.rmtree"), (0,)),
    **dict.fromkeys(("os.link", "os.symlink"), (1,)),
    "os.rename": (0, 1),
}
"""By event, which of its arguments are paths whose directory changes."""
_OF_DIRECTORIES = ("os.mkdir", "os.rmdir")
_NOT_FILES = ("/dev", "/proc", "/sys")
_DATA = ("tensorflow_datasets", "scikit_learn_data", "nltk_data")
_DATA_VARIABLES = ("KERAS_HOME", "TFDS_DATA_DIR", "HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR")


@dataclass
class _Seen(Shared):
    """Which files were named, which are `tempfile`'s, and whether the hook is there: it cannot be taken away."""

    paths: set[str] = field(default_factory=set)
    temporary: set[str] = field(default_factory=set)
    is_watching: bool = False
    is_noting: bool = False


def watch_files(plan: Plan) -> None:
    """From now on, what the script changes outside of the copy is refused or recorded, each file once.

    In the directory for temporary files only what was there before is refused: scripts write to it by its name, too.
    """
    seen = shared(_Seen)
    if seen.is_watching:
        return
    seen.is_watching = True
    tempdir = f"{os.path.realpath(tempfile.gettempdir())}/"
    own_temporaries = (f"{tempdir}tmp", f"{tempdir}kdc-")  # `tempfile` and this package made them before the hook
    ignored = (*(f"{place}/" for place in writable(plan)), *own_temporaries)
    records.note(plan, "watching")  # opens the file of the records
    is_finalizing = sys.is_finalizing

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_finalizing() or seen.is_noting:  # after all atexit functions: names of modules become None one by one
            return
        if event in _TEMPORARY:
            seen.temporary.add(_absolute(arguments[0]) or "")
        for path in _changed_paths(event, arguments):
            if path.startswith(ignored) or "/__pycache__/" in path or not seen.temporary.isdisjoint(_parents(path)):
                continue
            is_refused = bool(plan.copy) and not (path.startswith(tempdir) and _is_new(path, plan.began))
            if path not in seen.paths and len(seen.paths) < _MOST and (is_refused or event not in _OF_DIRECTORIES):
                seen.paths.add(path)
                seen.is_noting = True
                with contextlib.suppress(OSError):  # the script's own open must not fail for it
                    records.note(plan, "refused" if is_refused else "file", path=path)
                seen.is_noting = False
            if is_refused:
                raise PermissionError(errno.EACCES, _REFUSED, path)

    sys.addaudithook(hook)


_REFUSED = (
    "kdc rehearse: the short runs may change nothing outside of the copy of the working directory; give the script a "
    "path in the working directory, or rehearse it with --in-place"
)


def writable(plan: Plan) -> list[str]:
    """The directories that a rehearsed script may write to: its own, Python's, and caches of libraries."""
    own = [place for place in (plan.scratch, plan.records, plan.copy) if place and "://" not in place]
    home = Path.home()
    hidden = [entry for entry in home.iterdir() if entry.name.startswith(".")] if home.is_dir() else []
    caches = [*map(str, hidden), *(str(home / name) for name in _DATA)]
    caches += [os.environ[name] for name in _DATA_VARIABLES if os.environ.get(name)]
    python = [place for place in {sys.prefix, sys.base_prefix} if place != "/usr"]
    return list(map(os.path.realpath, (*own, *python, "/usr/lib", *caches, *_NOT_FILES)))


def _changed_paths(event: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    """The absolute paths, without links, of files that are about to be written, made or deleted."""
    if event in ("open", "sqlite3.connect"):
        path = _absolute(arguments[0]) if _opens_for_writing(event, arguments) else None
        if path is not None and not os.path.isdir(path):  # noqa: PTH112 - a temporary file without a name is in one
            yield os.path.realpath(path)
    elif event in _CHANGES and not any(type(last) is int and last != -1 for last in arguments[2:]):
        for index in _CHANGES[event]:  # what is given by a descriptor of its directory was opened by a path before
            path = _absolute(arguments[index])
            if path is not None:
                above, name = os.path.split(path)  # a link itself is moved or deleted
                yield os.path.join(os.path.realpath(above), name)  # noqa: PTH118


def _opens_for_writing(event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "sqlite3.connect":
        return arguments[0] not in (":memory:", b":memory:", "")
    mode, flags = arguments[1], arguments[2] or 0
    if isinstance(mode, str):
        return any(c in mode for c in "wax+")
    return bool(flags & _WRITES) and flags & _UNNAMED != _UNNAMED


def _absolute(path: Any) -> str | None:
    """None for a descriptor, which is open already, and where the working directory is gone."""
    try:
        return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - called at each open, also at exit
    except (OSError, TypeError, ValueError):
        return None


def _parents(path: str) -> Iterator[str]:
    while path != os.sep:
        yield path
        path = path.rpartition(os.sep)[0] or os.sep


def _is_new(path: str, began: float) -> bool:
    """Whether a file is not there yet, or was written since the rehearsal began."""
    try:
        return os.lstat(path).st_mtime >= began
    except OSError:
        return True

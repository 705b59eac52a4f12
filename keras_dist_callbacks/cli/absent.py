"""What a place is in which a command found nothing to show, and what to do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from keras_dist_callbacks.backups.names import COMMITS, OWNERS
from keras_dist_callbacks.checkpoints.record import EXTENSIONS
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.storage.storage import Storage

_USUAL = ("backup", "backups", "checkpoints")
"""Directories that are looked for in stores, which list files only."""
_MOST_DIRECTORIES = 1000


def require_no_file(storage: Storage) -> None:
    """Makes sure that a local path is not that of a file.

    Raises:
        ConfigError: It is.
    """
    path = Path(storage.root)
    if storage.is_local and path.is_file():
        advice = f"`kdc show {path}` shows a checkpoint" if path.name.endswith(EXTENSIONS) else "see `kdc --help`"
        raise ConfigError(f"{storage.display()} is a file: give its directory, {path.parent}; {advice}")


def why_nothing(storage: Storage, what: str = "backup and no checkpoint") -> str:
    """One sentence about a directory that holds nothing to show.

    Args:
        storage: The directory.
        what: What was looked for, to be read after "no".
    """
    url = storage.display()
    if storage.is_local and not Path(storage.root).exists():
        return f"{url}: this directory does not exist; check the path"
    if url.endswith(EXTENSIONS) and not storage.is_local:
        return f"{url} has the name of a checkpoint: `kdc show` shows one, and other commands take its directory"
    found = [name for name in _subdirectories(storage) if _holds_something(storage.child(name))]
    if found:
        places = ", ".join(storage.display(name) for name in found[:5])
        return f"{url}: no {what} is in this directory itself, but in a directory below it: use {places}"
    return f"{url}: no {what} is in this directory itself; give the backup_dir or the directory of checkpoints"


def _subdirectories(storage: Storage) -> Iterator[str]:
    if not storage.is_local:
        yield from _USUAL
        return
    entries = itertools.islice(Path(storage.root).iterdir(), _MOST_DIRECTORIES)
    yield from sorted(path.name for path in entries if path.is_dir() and not path.is_symlink())


def _holds_something(storage: Storage) -> bool:
    if storage.files(COMMITS) or storage.files(OWNERS):
        return True
    return any(file.name.endswith(EXTENSIONS) for file in storage.files())

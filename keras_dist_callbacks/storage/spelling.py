"""Names that cannot be meant, or that no file system takes: refused before there is anything to lose."""

from __future__ import annotations

import os
from pathlib import Path

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.storage.local_files import temporary_name

_LONGEST_NAME = 255
_LONGEST_PATH = 4095
_MARK = len(temporary_name(""))
_BELOW = 128  # the longest path of ours in a directory, with its mark


def require_plain(name: str, shown: str) -> None:
    """Refuses a backslash, which separates nothing here, and control characters such as a line break.

    Args:
        name: One part of a path, or several.
        shown: All of the path, without credentials.

    Raises:
        ConfigError: There is one.
    """
    if "\\" in name:
        raise ConfigError(
            f"'{shown}' has a backslash, which would be a character of a name here and not separate directories: "
            f"write '{shown.replace(chr(92), '/')}'"
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise ConfigError(f"'{shown}' has a line break or another control character in a name: remove it")


def require_directory(root: str, shown: str, *, is_local: bool) -> None:
    """Makes sure that a directory may be called so; what is there already has its name from elsewhere.

    Args:
        root: Its path in its file system.
        shown: How the user gave it, without credentials.
        is_local: Whether it is a local one.

    Raises:
        ConfigError: It may not.
    """
    if not is_local:
        require_plain(root.rpartition("@")[2], shown)  # what may be before it is a password
        return
    existing = _existing(root)
    new = Path(root).relative_to(existing).parts
    for name in new:
        require_plain(name, shown)
        _require_length(name, _limit(existing, "PC_NAME_MAX", _LONGEST_NAME), shown)
    if new:
        _require_length(root, _limit(existing, "PC_PATH_MAX", _LONGEST_PATH) - _BELOW, shown)


def require_file(directory: str, name: str, shown: str) -> None:
    """Makes sure that a file in a local directory, and the one that it is before it is complete, may be called so.

    Args:
        directory: The path of the directory, which need not exist.
        name: The file's.
        shown: All of the path, without credentials.

    Raises:
        ConfigError: It may not.
    """
    _require_length(name, _limit(_existing(directory), "PC_NAME_MAX", _LONGEST_NAME) - _MARK, shown)


def has_room_for_mark(name: str) -> bool:
    """Returns whether a local file may be called so, and hidden while it is not complete."""
    return len(os.fsencode(name)) <= _LONGEST_NAME - _MARK


def _existing(directory: str) -> Path:
    """The directory, or the nearest one above it that is there."""
    found = Path(directory)
    while not os.path.lexists(found) and found != found.parent:
        found = found.parent
    return found


def _require_length(name: str, limit: int, shown: str) -> None:
    size = len(os.fsencode(name))
    if size > limit:
        raise ConfigError(f"'{shown}' is too long: {size} bytes, but the file system has room for {limit}")


def _limit(directory: Path, name: str, default: int) -> int:
    try:
        found = os.pathconf(directory, name)
    except (AttributeError, OSError, ValueError):
        return default
    return found if found > 0 else default

"""The copy of the working directory in which a run of a rehearsal works, so that nothing of the user's changes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.storage import temporary

_MOST_BYTES = 2**31
_MOST_FILES = 100_000
_LINKED_PARENTS = 3


@contextlib.contextmanager
def copied(source: Path, below: Path, without: Collection[str]) -> Iterator[Path]:
    """A copy of a directory, deleted after the block.

    It has the same path below another directory, with links to what the three directories above it hold: `../data` is
    there, too. The largest files are links where all together have more than 2 GiB.

    Args:
        source: The directory, an absolute path.
        below: Where to make it; does not exist yet.
        without: Absolute paths of what is not copied.

    Raises:
        ConfigError: It holds too many files.
        StorageError: There is no space for it.
    """
    place = below / source.relative_to(source.anchor)
    try:
        with temporary.writing("a copy of the working directory", within=below.parent):
            place.mkdir(parents=True)
            _link_surroundings(source, below)
            _copy(source, place, without)
        yield place
    finally:
        shutil.rmtree(below, ignore_errors=True)


def _link_surroundings(source: Path, below: Path) -> None:
    for parent in source.parents[:_LINKED_PARENTS]:
        mirrored = below / parent.relative_to(source.anchor)
        with contextlib.suppress(PermissionError):
            for entry in parent.iterdir():
                if not (mirrored / entry.name).exists():
                    (mirrored / entry.name).symlink_to(entry)


def _copy(source: Path, place: Path, without: Collection[str]) -> None:
    left = _MOST_BYTES
    for size, file, copy in sorted(_made_directories(source, place, without)):
        left -= size
        try:
            if left < 0:
                copy.symlink_to(file)
            else:
                shutil.copy2(file, copy)
        except PermissionError:  # the script cannot read it either
            copy.symlink_to(file)


def _made_directories(source: Path, place: Path, without: Collection[str]) -> list[tuple[int, str, Path]]:
    """Makes all directories and links; returns size, path and place of the files."""
    files: list[tuple[int, str, Path]] = []
    left = [(str(source), place)]
    while left:
        directory, copy = left.pop()
        copy.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError), os.scandir(directory) as entries:
            for entry in entries:
                at = copy / entry.name
                if entry.is_symlink():
                    at.symlink_to(os.readlink(entry.path))  # noqa: PTH115
                elif entry.is_dir() and _is_environment(entry):
                    at.symlink_to(entry.path)
                elif entry.is_dir() and entry.path not in without:
                    left.append((entry.path, at))
                elif entry.is_file():
                    files.append((entry.stat().st_size, entry.path, at))
        if len(files) > _MOST_FILES:
            raise ConfigError(
                f"{source} holds more than {_MOST_FILES:,} files, too many for a copy: start kdc rehearse in the "
                "directory of the project alone, or add --in-place, with which the short runs work in the real one"
            )
    return files


def _is_environment(entry: os.DirEntry[str]) -> bool:
    """Whether it is a virtual environment, or git's own directory: nothing that a training changes."""
    return entry.name == ".git" or Path(entry.path, "pyvenv.cfg").exists()

"""A directory of checkpoints, and the place beside it for whatever is no checkpoint.

Sidecars, the note of a training's end and files that are not whole yet lie in `.<name>.kdc` next to the directory, so
that whoever lists the directory finds checkpoints. Some directories have no such place: a bucket, a mount point, the
working directory, or one in a directory that must not be written. There, and in what older versions of this package
wrote, they lie among the checkpoints. Readers look in both places.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from keras_dist_callbacks.backups import records
from keras_dist_callbacks.backups.names import is_unfinished
from keras_dist_callbacks.errors import StorageError, is_temporary
from keras_dist_callbacks.storage.local_files import temporary_name
from keras_dist_callbacks.storage.storage import Storage

_LONGEST_WRITE_SECONDS = 3600.0


@dataclass(frozen=True)
class CheckpointDirectory:
    """Where checkpoints and the notes on them are.

    Attributes:
        files: The directory itself.
        aside: What is next to it; None where there is no such place.
        writes_aside: Whether notes are written there.
    """

    files: Storage
    aside: Storage | None
    writes_aside: bool

    @classmethod
    def at(cls, files: Storage) -> CheckpointDirectory:
        """A directory to be read; one beside it that others may write into is passed over."""
        aside = files.beside(".{}.kdc")
        return cls(files, aside, aside is not None and not aside.is_strange_beside(files))

    @classmethod
    def to_write(cls, files: Storage) -> CheckpointDirectory:
        """A directory to be written: tries it out, and whether the place beside it can be used.

        What writes that were killed have left there an hour ago or longer is deleted.

        Raises:
            ConfigError: The store's client does not take the options.
            StorageError: The directory cannot be used, or what is beside it must not be seen; the message says why.
        """
        found = cls.at(files)
        if found.aside is None or not (found.aside.make_like(files) and _is_usable(found.aside)):
            files.probe()
            return cls(files, found.aside, writes_aside=False)
        files.probe_without_a_name()
        for name in _left_behind(found.aside, found.unfinished_aside()):
            discard(found.aside, name)
        return found

    @property
    def places(self) -> tuple[Storage, ...]:
        """Where notes may be."""
        if self.aside is None or self.aside.is_strange_beside(self.files):  # which somebody may make at any time
            return (self.files,)
        return (self.aside, self.files)

    @property
    def written(self) -> Storage:
        """Where notes are written."""
        return self.aside if self.aside is not None and self.writes_aside else self.files

    @property
    def way(self) -> Storage | None:
        """Where a file of this directory lies until it is whole; None for here."""
        return self.aside if self.writes_aside else None

    def display(self, name: str = "") -> str:
        """A checkpoint as a full path or URL for messages."""
        return self.files.display(name)

    def names(self) -> set[str]:
        """Of all files in the directory itself."""
        return {info.name for info in self.files.files()}

    def names_aside(self) -> set[str]:
        """Of all files beside it; none in a store whose names this account must not see."""
        if self.aside is None or self.aside not in self.places:
            return set()
        try:
            return {info.name for info in self.aside.files()}
        except StorageError as error:
            if error.forbidden and not self.files.is_local:
                return set()
            raise

    def unfinished_aside(self) -> dict[str, int]:
        """Names and sizes of the files beside it that are not whole, or never will be."""
        names = {name for name in self.names_aside() if is_unfinished(name, "")}
        if self.aside is None or not names:
            return {}
        return {info.name: info.size for info in self.aside.files() if info.name in names}

    def read_note(self, place: Storage, name: str) -> bytes:
        """The content of a note.

        Raises:
            FileNotFoundError: There is none, or beside the directory none that this account may see.
            DamagedBackupError: It is longer than notes are.
        """
        try:
            return records.read(place, name)
        except StorageError as error:
            if error.forbidden and place is self.aside:
                raise FileNotFoundError(place.display(name)) from error
            raise

    def has_note(self, place: Storage, name: str) -> bool:
        """Whether there is a note, as far as this account may see."""
        try:
            return place.exists(name)
        except StorageError as error:
            if error.forbidden and place is self.aside:
                return False
            raise

    def write_note(self, name: str, content: bytes) -> None:
        """Puts a note in the place of the one that is there, if any."""
        records.write(self.written, name, content)


def _is_usable(aside: Storage) -> bool:
    try:
        aside.files()
    except StorageError as error:
        if error.forbidden and not aside.is_local:
            return False
        raise  # on a local disk it is there: what newer runs have noted in it must be known
    try:
        aside.probe()
    except StorageError as error:
        if is_temporary(error):
            raise
        aside.remove_empty_directories([""])
        return False
    return True


def _left_behind(aside: Storage, unfinished: Iterable[str]) -> Iterator[str]:
    """Files that a write has begun, and was killed: one that is at work goes on writing."""
    now = _now(aside) if unfinished else 0.0
    for name in unfinished:
        with contextlib.suppress(FileNotFoundError, StorageError):  # another run has just finished with it
            if now - aside.modified(name) > _LONGEST_WRITE_SECONDS:
                yield name


def _now(aside: Storage) -> float:
    """The time by the store's clock."""
    name = temporary_name("probe")
    aside.create(name, [b""])
    try:
        return aside.modified(name)
    finally:
        discard(aside, name)


def discard(place: Storage, name: str) -> None:
    """Deletes a note that newer ones make needless; where that is forbidden it stays, and does no harm."""
    try:
        place.delete(name)
    except StorageError as error:
        if not error.forbidden:
            raise

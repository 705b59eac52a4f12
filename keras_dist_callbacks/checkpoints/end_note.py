"""The note that a training has ended: one for each template of file names, for those who wait for checkpoints.

It is next to the directory, or hidden in it where the parent cannot be written: a bucket, a mounted volume. A run that
starts replaces the note of the run before it by one that says that training has not ended. Writing is a best effort.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from keras_dist_callbacks.backups import record_io
from keras_dist_callbacks.backups.record_io import Format, Generation, Token, read_verified
from keras_dist_callbacks.base.errors import DamagedBackupError, StorageError
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.checkpoints.files import Listing, Problem, damaged
from keras_dist_callbacks.storage.spelling import has_room_for_mark
from keras_dist_callbacks.storage.storage import Storage

_KIND = "training-end"


@dataclass(frozen=True)
class EndNote:
    """Whether a training has ended.

    Attributes:
        template: That of its file names.
        generation: The run that wrote the note.
        is_ended: Whether that run has ended; False is written at its start.
        last: The name of its newest file, None if not found.
        token: Distinguishes this note from every other.
    """

    template: str
    generation: Generation
    is_ended: bool
    last: str | None
    token: Token


END_NOTE = Format("keras_dist_callbacks training end", 1, EndNote)


def write(storage: Storage, template: str, generation: int, *, is_ended: bool, last: str | None = None) -> None:
    """Notes that a training has ended, or that a new run has started.

    A store that does not take the note gets a warning: an evaluator then ends by its other limits. The note of a newer
    run stays.

    Args:
        storage: The directory of the checkpoints.
        template: That of the file names.
        generation: Of the run.
        is_ended: Whether the run has ended; all its files must be in place.
        last: The name of its newest file.
    """
    known, _ = read_all(storage, [template])
    if any(note.generation > generation for note in known) or not (is_ended or known):
        return
    note = EndNote(template, generation, is_ended, last, uuid.uuid4().hex[:12])
    places = list(hidden_places(storage, _KIND, template))
    for place, name in places:
        try:
            record_io.write(place, name, END_NOTE.encode(note))
        except StorageError as error:
            if (place, name) == places[-1]:
                warn(f"cannot write the note that training has ended, so a SidecarEvaluator continues to wait: {error}")
        else:
            return


def read_all(storage: Storage, templates: Iterable[str]) -> tuple[list[EndNote], list[Problem]]:
    """Returns the newest note for each template, and the notes that are damaged.

    Args:
        storage: The directory of the checkpoints.
        templates: Those whose notes are read.

    Raises:
        BackupMismatchError: A newer version of this package wrote one.
    """
    found: dict[str, EndNote] = {}
    problems: list[Problem] = []
    for template in sorted(set(templates)):
        for place, name in hidden_places(storage, _KIND, template):
            try:
                note = _read(place, name)
            except DamagedBackupError as error:
                problems.append(damaged(place, name, error))
                continue
            if note is not None and note.template == template:
                found[template] = max(found.get(template, note), note, key=lambda one: (one.generation, one.is_ended))
    return list(found.values()), problems


def end_of(notes: Iterable[EndNote], listing: Listing) -> EndNote | None:
    """Returns the note by which the newest run has ended; None if that run continues, or nothing is known.

    Args:
        notes: Those of the directory, read before the files were listed.
        listing: The files.
    """
    known = list(notes) if listing.checkpoints else [note for note in notes if note.last is None]
    checkpoints = [one.record for one in listing.checkpoints]
    newest = max([0, *(note.generation for note in known), *(record.generation for record in checkpoints)])
    current = {note.template: note for note in known if note.generation == newest}
    needed = {record.template for record in checkpoints if record.generation == newest}
    if not current or not needed <= current.keys() or not all(note.is_ended for note in current.values()):
        return None
    return next(iter(current.values()))


def hidden_places(storage: Storage, kind: str, template: str) -> Iterator[tuple[Storage, str]]:
    """Returns where a hidden file about the checkpoints of a template may be, first choice first.

    Args:
        storage: The directory of the checkpoints.
        kind: What the file is.
        template: That of the file names.
    """
    name = f".{kind}-{xxhash.xxh3_64_hexdigest(template.encode())}.json"
    parent, beside = _parent(storage), f".{storage.root.rpartition('/')[2]}{name}"
    if parent is not None and has_room_for_mark(beside):
        yield parent, beside
    yield storage, name


def _parent(storage: Storage) -> Storage | None:
    """Returns the directory that contains this one, if other processes see it under the same name."""
    if storage.is_local and (Path(storage.root).is_symlink() or _is_mount_point(storage.root)):
        return None
    return storage.parent()


def _is_mount_point(path: str) -> bool:
    """As `os.path.ismount`, and also for a directory that is mounted from the same file system."""
    if os.path.ismount(path):
        return True
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(line.split(" ", 5)[4] == path for line in mounts.splitlines())


def _read(place: Storage, name: str) -> EndNote | None:
    try:
        return read_verified(place, name, lambda: END_NOTE.decode(record_io.read(place, name), place.display(name)))
    except FileNotFoundError:
        return None
    except StorageError as error:
        if error.forbidden:  # another account may see the directory, but not what is next to it
            return None
        raise

"""Checkpoints of a training that was rolled back: moved aside, so that they are neither the newest nor the best."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from keras_dist_callbacks.backups.names import ROLLED_BACK
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.checkpoints.record import EXTENSIONS, Checkpoint
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage

Place = tuple[int, int]
"""Finished epochs, and steps."""


def place_of(position: Position | None) -> Place:
    """Returns where training goes back to; None: to its start."""
    return (-1, -1) if position is None else (position.epoch, position.step)


def later_than(checkpoints: Iterable[Checkpoint], place: Place) -> list[str]:
    """Returns the names of those checkpoints that were saved after a place in training."""
    return [one.name for one in checkpoints if (one.record.epoch, one.record.step) > place]


def move_aside(storage: Storage, names: list[str]) -> None:
    """Moves checkpoints to `rolled-back/`, where nothing looks for them."""
    storage.refuse_links((ROLLED_BACK,))
    for name in names:
        _move(storage, name, storage.child(ROLLED_BACK))


def set_aside(storage: Storage) -> list[str]:
    """Returns the names of those that were moved aside."""
    return [file.name for file in storage.files(ROLLED_BACK) if file.name.endswith(EXTENSIONS)]


def move_back(storage: Storage, names: list[str]) -> None:
    """Moves checkpoints to where they were, unless a newer file has taken the name."""
    storage.refuse_links((ROLLED_BACK,))
    aside = storage.child(ROLLED_BACK)
    for name in names:
        if not storage.exists(name):
            _move(aside, name, storage)


def _move(source: Storage, name: str, target: Storage) -> None:
    """First the copy: whatever ends this, the file is in one of the two directories."""
    with temporary.directory("rollback") as place:
        copy = Path(place, name)
        source.download(name, copy)
        target.replace(name, copy)
    source.delete(name)

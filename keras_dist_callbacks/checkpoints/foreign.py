"""Checkpoints that other tools left in a directory: Keras' own files, and those of `tf.train.Checkpoint`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from keras_dist_callbacks.backups import record_io
from keras_dist_callbacks.backups.record_io import Count
from keras_dist_callbacks.base.errors import DamagedBackupError
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.record import EXTENSIONS
from keras_dist_callbacks.storage.storage import Storage

_MODELS = (".keras", ".h5", ".hdf5")
_WEIGHTS = ".weights.h5"
_INDEX = ".index"
_SHARD = re.compile(r"\.data-\d{5}-of-\d{5}", re.ASCII)
_KERAS_BACKUP = ("latest.weights.h5", "training_metadata.json")  # keras.callbacks.BackupAndRestore's


class _KerasMetadata(msgspec.Struct):
    epoch: Count


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint that another tool wrote.

    Attributes:
        name: Its file, or for one of `tf.train.Checkpoint` what its files' names begin with.
        kind: `"model"`, `"weights"` or `"tf"`.
        files: The names of all its files.
        epoch: Number of finished epochs, 0 if it does not say.
    """

    name: str
    kind: str
    files: tuple[str, ...]
    epoch: int = 0


def find(storage: Storage, template: str | None = None) -> list[ForeignCheckpoint]:
    """Returns what other tools left directly in a directory, the one that was written last first.

    Args:
        storage: The directory; it need not exist.
        template: Only what is named as files made from this `filepath` of `ModelCheckpoint` are.
    """
    names = sorted(info.name for info in storage.files())
    with_record = _names_with_record(storage)
    found = [foreign for name in names if (foreign := _foreign(name, names, with_record)) is not None]
    fits = re.compile(".+", re.DOTALL) if template is None else files.pattern_of(template)
    mine = [_with_epoch(storage, foreign, names) for foreign in found if fits.fullmatch(foreign.name)]
    return sorted(mine, key=lambda foreign: max(map(storage.modified, foreign.files)), reverse=True)


def find_backup(storage: Storage) -> tuple[ForeignCheckpoint, str] | None:
    """The newest state of a training that another tool would resume from here, and its writer; None if not found.

    Files of Keras' `ModelCheckpoint` do not count: nothing resumes from them unless it is asked to.
    """
    for found in find(storage):
        if found.name == _KERAS_BACKUP[0] and storage.exists(_KERAS_BACKUP[1]):
            return found, "keras.callbacks.BackupAndRestore"
        if found.kind == "tf":
            return found, "tf.train.Checkpoint"
    return None


def names(storage: Storage) -> list[str]:
    """Returns names of what other tools, or an interrupted save, left without a record; sorted."""
    present = sorted(info.name for info in storage.files())
    with_record = _names_with_record(storage)
    return sorted(foreign.name for name in present if (foreign := _foreign(name, present, with_record)) is not None)


def _names_with_record(storage: Storage) -> set[str]:
    """Of the model files that this package wrote, damaged or not."""
    listing = files.find(storage)
    present = {info.name for info in storage.files() if info.name.endswith(EXTENSIONS)}
    return present - set(listing.without_record)


def _foreign(name: str, names: Sequence[str], with_record: Collection[str]) -> ForeignCheckpoint | None:
    if name in with_record:
        return None
    if name.endswith(_WEIGHTS):
        return ForeignCheckpoint(name, "weights", (name,))
    if name.endswith(_MODELS):
        return ForeignCheckpoint(name, "model", (name,))
    if name.endswith(_INDEX):
        prefix = name.removesuffix(_INDEX)
        shards = [n for n in names if n.startswith(prefix) and _SHARD.fullmatch(n.removeprefix(prefix))]
        return ForeignCheckpoint(prefix, "tf", (name, *shards)) if shards else None
    return None


def _with_epoch(storage: Storage, found: ForeignCheckpoint, names: Sequence[str]) -> ForeignCheckpoint:
    """What Keras' own backup says: the epoch that was running, which at an epoch's end is the next one already."""
    if found.name != _KERAS_BACKUP[0] or _KERAS_BACKUP[1] not in names:
        return found
    try:
        metadata = record_io.parse(record_io.read(storage, _KERAS_BACKUP[1]), storage.display(_KERAS_BACKUP[1]))
        return dataclasses.replace(found, epoch=record_io.checked(metadata, _KerasMetadata, _KERAS_BACKUP[1]).epoch)
    except (FileNotFoundError, DamagedBackupError):
        return found

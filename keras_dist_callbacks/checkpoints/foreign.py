"""Checkpoints that other tools left in a directory: Keras' own files, and those of `tf.train.Checkpoint`.

`files.find` lists them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from keras_dist_callbacks.backups import record_io
from keras_dist_callbacks.backups.record_io import Count
from keras_dist_callbacks.base.errors import DamagedBackupError
from keras_dist_callbacks.checkpoints.record import kind_of
from keras_dist_callbacks.storage.storage import Storage

_MODELS = (".keras", ".h5", ".hdf5")
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

    def written(self, storage: Storage) -> float:
        """Returns when the last of its files was."""
        return max(map(storage.modified, self.files))


def recognized(names: Sequence[str]) -> list[ForeignCheckpoint]:
    """Returns what of the files in a directory has a name as checkpoints have it, ours included.

    Args:
        names: Those of all files.
    """
    found = []
    for name in sorted(names):
        if name.endswith(_MODELS):
            found.append(ForeignCheckpoint(name, kind_of(name), (name,)))
        elif name.endswith(_INDEX):
            prefix = name.removesuffix(_INDEX)
            shards = [n for n in names if n.startswith(prefix) and _SHARD.fullmatch(n.removeprefix(prefix))]
            found += [ForeignCheckpoint(prefix, "tf", (name, *shards))] if shards else []
    return found


def newest_first(storage: Storage, present: Iterable[ForeignCheckpoint]) -> list[ForeignCheckpoint]:
    """Returns what other tools left, with the epochs that it says, the one that was written last first."""
    known = [_with_epoch(storage, found) for found in present]
    return sorted(known, key=lambda found: found.written(storage), reverse=True)


def backup_among(storage: Storage, present: Iterable[ForeignCheckpoint]) -> tuple[ForeignCheckpoint, str] | None:
    """The newest state of a training that another tool would resume from here, and its writer; None if not found.

    Files of Keras' `ModelCheckpoint` do not count: nothing resumes from them unless it is asked to.
    """
    for found in newest_first(storage, present):
        if found.name == _KERAS_BACKUP[0] and storage.exists(_KERAS_BACKUP[1]):
            return found, "keras.callbacks.BackupAndRestore"
        if found.kind == "tf":
            return found, "tf.train.Checkpoint"
    return None


def _with_epoch(storage: Storage, found: ForeignCheckpoint) -> ForeignCheckpoint:
    """What Keras' own backup says: the epoch that was running, which at an epoch's end is the next one already."""
    if found.name != _KERAS_BACKUP[0]:
        return found
    try:
        metadata = record_io.parse(record_io.read(storage, _KERAS_BACKUP[1]), storage.display(_KERAS_BACKUP[1]))
        return dataclasses.replace(found, epoch=record_io.checked(metadata, _KerasMetadata, _KERAS_BACKUP[1]).epoch)
    except (FileNotFoundError, DamagedBackupError):
        return found

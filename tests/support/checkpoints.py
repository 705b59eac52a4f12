"""What lies in a directory of checkpoints, and beside it."""

from __future__ import annotations

import os
from pathlib import Path

from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.storage.storage import Storage


def checkpoints(place: str | os.PathLike[str]) -> CheckpointDirectory:
    """A directory, as its readers see it."""
    return CheckpointDirectory.at(Storage.open(place))


def beside(directory: Path) -> Path:
    """Where the notes on a local directory's checkpoints are."""
    return directory.with_name(f".{directory.name}.kdc")

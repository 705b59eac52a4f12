"""What lies in a directory of checkpoints, and beside it."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.backups.sidecar import Artifact

from keras_dist_callbacks.backups import artifacts
from keras_dist_callbacks.storage.storage import Storage

SERIES = "{epoch}.keras"


def checkpoints(place: str | os.PathLike[str]) -> CheckpointDirectory:
    """A directory, as its readers see it."""
    return CheckpointDirectory.at(Storage.open(place))


def beside(directory: Path) -> Path:
    """Where the notes on a local directory's checkpoints are."""
    return directory.with_name(f".{directory.name}.kdc")


def save(directory: CheckpointDirectory, epoch: int, tmp_path: Path, generation: int = 1) -> Artifact:
    source = tmp_path / "source"
    source.write_bytes(b"model %d of run %d" % (epoch, generation))
    what = Artifact(f"{epoch}.keras", "model", SERIES, generation, epoch, epoch=epoch, step=10 * epoch)
    return artifacts.publish(directory, source, what)


def old(directory: CheckpointDirectory) -> CheckpointDirectory:
    """The same, written as older versions of this package did."""
    return dataclasses.replace(directory, writes_aside=False)


def newest(directory: CheckpointDirectory) -> str | None:
    found = artifacts.newest_verified(directory)
    return None if found is None else found.name


def notes(place: Storage) -> list[str]:
    return [info.name for info in place.files() if info.name.endswith(".json")]


@functools.cache
def may_change_accounts() -> bool:
    """Whether this process may become another account and give files away: not every container lets its root."""
    change = "import os; os.chown('x', 1001, 1234); os.chown('x', 2002, 2002); os.setgid(65534); os.setuid(65534)"
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "x").touch()
        done = subprocess.run([sys.executable, "-c", change], cwd=directory, capture_output=True, check=False)
    return done.returncode == 0

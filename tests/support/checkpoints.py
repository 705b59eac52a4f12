"""Checkpoints without Keras: small files with the records that `ModelCheckpoint` writes."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.base.process import PARTS
from keras_dist_callbacks.checkpoints import end_note, files, ownership
from keras_dist_callbacks.checkpoints.files import Listing
from keras_dist_callbacks.checkpoints.record import Checkpoint, CheckpointRecord
from keras_dist_callbacks.storage.storage import Storage

TEMPLATE = "{epoch}.keras"
TOKEN = "0123456789ab"  # noqa: S105 - not a secret


def record(name: str = "1.keras", epoch: int = 1, **fields: Any) -> CheckpointRecord:
    defaults = {
        "template": TEMPLATE,
        "published_name": name,
        "run_token": TOKEN,
        "generation": 1,
        "sequence": epoch,
        "epoch": epoch,
        "step": 10 * epoch,
    }
    return CheckpointRecord(**{**defaults, **fields})


def write_model(path: Path, content: bytes = b"content") -> Path:
    """A zip archive as Keras writes it, or for other extensions the bytes alone."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("content", content)
    else:
        path.write_bytes(content)
    return path


def read_model(path: Path) -> bytes:
    """The content that `write_model` wrote, whatever record the file has since."""
    with zipfile.ZipFile(path) as archive:
        return archive.read("content")


def save(
    storage: Storage, epoch: int, generation: int = 1, name: str = "", content: bytes = b"", **fields: Any
) -> Checkpoint:
    """Publishes a checkpoint as `ModelCheckpoint` does."""
    name = name or TEMPLATE.format(epoch=epoch)
    with tempfile.TemporaryDirectory() as directory:
        source = write_model(Path(directory) / name, content or b"model %d of run %d" % (epoch, generation))
        return files.publish(storage, source, record(name, epoch, generation=generation, **fields))


def opened(place: str | os.PathLike[str]) -> Storage:
    return Storage.open(place, fsync=False)


def listed(place: str | os.PathLike[str]) -> Listing:
    return files.find(opened(place))


def newest(storage: Storage) -> str | None:
    found = files.latest_verified(storage)
    return None if found is None else found.name


def note_path(directory: Path, template: str = TEMPLATE) -> Path:
    """Where the end note of a local directory is."""
    place, name = next(end_note.hidden_places(opened(directory), "training-end", template))
    return Path(place.root) / name


@contextlib.contextmanager
def another_process() -> Iterator[None]:
    """What is claimed in the block is claimed by another process, as far as this one knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PARTS, ownership._KnownOwners, ownership._KnownOwners())
        yield


@functools.cache
def may_change_accounts() -> bool:
    """Whether this process may become another account and give files away: not every container lets its root."""
    change = "import os; os.chown('x', 1001, 1234); os.chown('x', 2002, 2002); os.setgid(65534); os.setuid(65534)"
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "x").touch()
        done = subprocess.run([sys.executable, "-c", change], cwd=directory, capture_output=True, check=False)
    return done.returncode == 0

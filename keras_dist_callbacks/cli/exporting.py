"""A backup as a file that other tools read."""

from __future__ import annotations

from dataclasses import dataclass

from safetensors.numpy import save

from keras_dist_callbacks.backups.snapshot import Manifest
from keras_dist_callbacks.backups.variables import by_path
from keras_dist_callbacks.cli.output import Target
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.storage.storage import Storage

EXTENSION = ".safetensors"


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        url: The directory that was read.
        path: Where.
        commit: Which backup.
        position: Where in training that was taken.
        tensors: How many variables.
        bytes: The size of the file.
    """

    url: str
    path: str
    commit: str
    position: str
    tensors: int
    bytes: int


def export(target: Target, manifest: Manifest, out: str) -> Export:
    """Writes the variables of a backup, each compared with its hash, by their paths.

    Raises:
        ConfigError: The name has another ending, or there is such a file.
        DamagedBackupError: The backup is not whole.
    """
    directory, _, name = out.rpartition("/")
    if not name.endswith(EXTENSION) or name == EXTENSION:
        raise ConfigError(f"the name of the file to write must end with {EXTENSION}")
    arrays = by_path(target.store.load(manifest, 0).tensors)
    about = {"format": "np", "position": str(manifest.position), "commit": manifest.id.label}
    content = save({name: array.copy() for name, array in arrays.items()}, about)
    storage = Storage.open(directory or ("/" if out.startswith("/") else "."))
    try:
        storage.create(name, [content])
    except FileExistsError as error:
        raise ConfigError(f"{storage.display(name)} exists: give another name, or delete it") from error
    return Export(
        target.url, storage.display(name), manifest.id.label, str(manifest.position), len(arrays), len(content)
    )

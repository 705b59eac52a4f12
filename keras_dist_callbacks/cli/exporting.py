"""A backup as a file that other tools read."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from safetensors.numpy import save

from keras_dist_callbacks import errors
from keras_dist_callbacks.backups.snapshot import Manifest, by_path, names_in
from keras_dist_callbacks.cli.output import Target
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage

TENSORS = ".safetensors"
KERAS = (".keras", ".weights.h5")
_EXPORTER = "keras_dist_callbacks.training.model_export"


@dataclass(frozen=True)
class ExportRequest:
    """What is to be written, and what a model is made of.

    Attributes:
        out: The file: a path or an URL.
        options: What the file system of the backup was given.
        model: A `.keras` or JSON file with the architecture; None for the one that the backup holds.
        modules: Names of modules to import for classes of the user's.
    """

    out: str
    options: Any = None
    model: str | None = None
    modules: Sequence[str] = ()


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


def export(target: Target, url: str, manifest: Manifest, wish: ExportRequest) -> Export:
    """Writes the variables of a backup, each compared with its hash, by their paths, or as a model of Keras'.

    Raises:
        ConfigError: The name has another ending, there is such a file, or Keras makes no model of the architecture.
        BackupMismatchError: The backup is not one of the given model.
        DamagedBackupError: The backup is not whole.
    """
    directory, _, name = wish.out.rpartition("/")
    if not name.endswith((TENSORS, *KERAS)) or name in {TENSORS, *KERAS}:
        raise ConfigError(f"the name of the file to write must end with {TENSORS}, {' or '.join(KERAS)}")
    storage = Storage.open(directory or ("/" if wish.out.startswith("/") else "."))
    if storage.exists(name):
        raise _taken(storage, name)
    with _content(target, url, manifest, wish, name) as (content, variables):
        size = len(content)
        try:
            storage.create(name, [content])
        except FileExistsError as error:
            raise _taken(storage, name) from error
    return Export(target.url, storage.display(name), manifest.id.label, str(manifest.position), variables, size)


def _taken(storage: Storage, name: str) -> ConfigError:
    return ConfigError(f"{storage.display(name)} exists: give another name, or delete it")


@contextlib.contextmanager
def _content(
    target: Target, url: str, manifest: Manifest, wish: ExportRequest, name: str
) -> Iterator[tuple[memoryview, int]]:
    """The file's bytes, and how many variables are in it."""
    if name.endswith(KERAS):
        with _made(url, manifest, wish, name) as made:
            yield made, len(names_in(manifest.workers[0].tensors))
        return
    arrays = by_path(target.store.load(manifest, 0).tensors)
    about = {"format": "np", "position": str(manifest.position), "commit": manifest.id.label}
    yield memoryview(save({path: array.copy() for path, array in arrays.items()}, about)), len(arrays)


@contextlib.contextmanager
def _made(url: str, manifest: Manifest, wish: ExportRequest, name: str) -> Iterator[memoryview]:
    """A file that a process with Keras makes; what it needs goes there by a pipe, for there may be secrets in it."""
    with temporary.directory("export") as directory:
        out, report = directory / name, directory / "report.json"
        request = {
            "directory": url, "storage_options": wish.options, "commit": manifest.id.label, "out": str(out),
            "model": wish.model, "import": list(wish.modules), "report": str(report),
        }  # fmt: skip
        env = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        with Console(stderr=True).status("Keras makes the file"):
            done = subprocess.run(  # noqa: S603 - this interpreter and a module of this package
                [sys.executable, "-m", _EXPORTER],
                input=json.dumps(request), capture_output=True, text=True, env=env, check=False,
            )  # fmt: skip
        if report.exists():
            told = json.loads(report.read_text(encoding="utf-8"))
            raise vars(errors)[told["kind"]](told["message"])
        if done.returncode:
            raise RuntimeError(done.stderr)
        with (
            out.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            yield view

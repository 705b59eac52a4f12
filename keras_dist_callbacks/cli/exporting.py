"""A backup as a file that other tools read."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from safetensors.numpy import save

from keras_dist_callbacks.backups import select_backup
from keras_dist_callbacks.backups.snapshot import VARIABLES, by_path
from keras_dist_callbacks.base import errors
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.checkpoints.files import split_filepath
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.cli.output import Target
from keras_dist_callbacks.storage import google_cloud, temporary
from keras_dist_callbacks.storage.storage import Storage

TENSORS = ".safetensors"
KERAS = (".keras", ".weights.h5")
_EXPORTER = "keras_dist_callbacks.run.model_export"


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


def export(
    target: Target, url: str, commit: str | None, out: str, model: str | None = None, modules: Sequence[str] = ()
) -> Export:
    """Writes the variables of a backup, each compared with its hash, by their paths, or as a model of Keras'.

    Args:
        target: The directory.
        url: The directory as it was given, with the credentials that may be in it.
        commit: The name of the backup. None is the newest that is intact when it is read: a run may delete meanwhile
            what was the newest before.
        out: The file to write: a path or an URL.
        model: A `.keras` or JSON file with the architecture. Defaults to the one that the backup holds.
        modules: Names of modules to import for classes of the user's.

    Raises:
        ConfigError: The name has another ending, there is such a file, or Keras makes no model of the architecture.
        BackupMismatchError: The backup is not one of the given model.
        DamagedBackupError: The backup is not intact.
    """
    directory, name = split_filepath(out)
    if not name.endswith((TENSORS, *KERAS)) or name in {TENSORS, *KERAS}:
        raise ConfigError(f"the name of the file to write must end with {TENSORS}, {' or '.join(KERAS)}")
    google_cloud.require_credentials(out, {})
    storage = Storage.open(directory)
    storage.require_name(name)
    taken = ConfigError(f"{storage.display(name)} exists: give another name, or delete it")
    if storage.exists(name):
        raise taken
    request = {
        "directory": url, "storage_options": target.options, "commit": commit, "model": model, "import": list(modules),
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        if name.endswith(KERAS):
            content, about = stack.enter_context(_made_by_keras(request, name))
        else:
            found, saved = select_backup.find_backup(target.store, commit, 1)
            arrays = {path: array.copy() for path, array in by_path(saved.of(VARIABLES).mine.tensors).items()}
            about = {"position": str(saved.position), "commit": found.label}
            content = memoryview(save(arrays, {"format": "np", **about}))
            about["tensors"] = len(arrays)  # more than variables, where replicas have values of their own
        size = len(content)
        try:
            storage.create(name, [content])
        except FileExistsError as error:
            raise taken from error
    return Export(target.url, storage.display(name), bytes=size, **about)


@contextlib.contextmanager
def _made_by_keras(request: Mapping[str, Any], name: str) -> Iterator[tuple[memoryview, dict[str, Any]]]:
    """A file that a process with Keras makes, and what it is; the request goes there by a pipe: it may hold secrets."""
    with temporary.directory("export") as directory:
        out, report = directory / name, directory / "report.json"
        env = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        with Console(stderr=True).status("Keras makes the file"), temporary.writing("the model", within=directory):
            done = subprocess.run(  # noqa: S603 - this interpreter and a module of this package
                [sys.executable, "-m", _EXPORTER],
                input=json.dumps({**request, "out": str(out), "report": str(report)}),
                capture_output=True, text=True, env=env, check=False,
            )  # fmt: skip
            reported = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
            if "kind" in reported:
                raise vars(errors)[reported["kind"]](reported["message"])
            if done.returncode:
                raise RuntimeError(done.stderr)
        with (
            out.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            yield view, reported


def show_export(page: Page, written: Export) -> None:
    """Prints what was written."""
    what = f"{written.tensors} variables of {written.commit} ({written.position})"
    page.line(f"{what}: {written.path}, {formatting.size(written.bytes)}", "green")

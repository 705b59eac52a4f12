"""A backup as a file of Keras', made in a process of its own: `kdc` itself does not import Keras.

    python -m keras_dist_callbacks.training.exporting < request.json

The request comes by the standard input, since it may hold credentials.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_dist_callbacks import errors
from keras_dist_callbacks.backups.snapshot import WorkerState
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.engine import picking
from keras_dist_callbacks.errors import ConfigError, KdcError
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.training import architecture, loading

_OWN_LAYERS = "Name the modules of your own layers with --import, or give a model file with --model"
_MODEL_FILE = "Give a model file with --model"


def export(request: Mapping[str, Any]) -> None:
    """Writes a `.keras` or `.weights.h5` file.

    Args:
        request: `directory` and `storage_options` of the backup, the `commit`, the local file `out`, the path of a
            `.keras` or JSON file with the `model` or None, and names of modules to `import` for classes of the user's.

    Raises:
        ConfigError: A module cannot be imported, there is no architecture, or Keras makes no model of it.
        BackupMismatchError: The backup is of another model.
        DamagedBackupError: The backup is damaged.
        StorageError: The store cannot be read.
    """
    for name in request["import"]:
        _import(name)
    store = BackupStore(Storage.open(request["directory"], request["storage_options"]))
    _, saved = picking.look_up(store, request["commit"], Cluster().num_workers)
    model = _model_of(request["model"], saved)
    loading.require_built(model)
    loading.apply(model, saved, Cluster())
    if request["out"].endswith(".weights.h5"):
        model.save_weights(request["out"])
    else:
        model.save(request["out"])


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"--import {name}: {type(error).__name__}: {error}") from error


def _model_of(path: str | None, saved: WorkerState) -> Any:
    if path is None:
        text = architecture.text_in(saved.tensors, "the backup", _MODEL_FILE)
        return architecture.model_of(text, "the architecture in the backup", _OWN_LAYERS)
    if not path.endswith(".keras"):
        return architecture.model_of(_text_of(path), path, _OWN_LAYERS)
    import keras

    try:
        return keras.models.load_model(path, safe_mode=True)
    except Exception as error:
        raise architecture.not_made(path, error, _OWN_LAYERS) from error


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--model {path} cannot be read: {error}") from error


def main() -> int:
    """Does what the standard input asks for; errors of ours go into the file that it names for a `report`."""
    request = json.load(sys.stdin)
    try:
        export(request)
    except KdcError as error:
        kind = next(known.__name__ for known in type(error).__mro__ if known.__module__ == errors.__name__)
        Path(request["report"]).write_text(json.dumps({"kind": kind, "message": str(error)}), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

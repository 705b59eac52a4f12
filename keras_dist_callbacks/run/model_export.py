"""The architecture in a backup, and models made from it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_dist_callbacks.backups import select_backup
from keras_dist_callbacks.backups.snapshot import ARCHITECTURE, VARIABLES, WorkerState
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base import errors
from keras_dist_callbacks.base.errors import ConfigError, KdcError
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run import load_backup
from keras_dist_callbacks.state.variables import saved_names
from keras_dist_callbacks.storage.storage import Storage


def architecture_json(tensors: Mapping[str, np.ndarray[Any, Any]], shown: str, advice: str) -> str:
    """Returns the JSON that a backup holds.

    Args:
        tensors: The chief's.
        shown: What the backup is called.
        advice: Where else a model may come from.

    Raises:
        ConfigError: It holds none.
    """
    if ARCHITECTURE not in tensors:
        raise ConfigError(
            f"{shown} holds no architecture: its model has none (get_config), has code in it (a Lambda layer), or it "
            f"was made by a Checkpointer. {advice}"
        )
    return bytes(tensors[ARCHITECTURE]).decode()


def model_of(text: str, shown: str, advice: str) -> Any:
    """Returns the model that a JSON text describes, compiled as it says.

    Raises:
        ConfigError: Keras makes none of it, such as where it needs classes of the user's.
    """
    import keras

    try:
        return keras.models.model_from_json(text)
    except Exception as error:
        raise model_creation_error(shown, error, advice) from error


def model_creation_error(shown: str, error: Exception, advice: str) -> ConfigError:
    """That Keras makes no model, and why."""
    return ConfigError(f"Keras cannot build a model from {shown}: {' '.join(str(error).split())[:500]}. {advice}")


_OWN_LAYERS = "Name the modules of your own layers with --import, or give a model file with --model"


def export(request: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a `.keras` or `.weights.h5` file; returns which backup that was, and where in training.

    Args:
        request: `directory` and `storage_options` of the backup, the `commit` (None is the newest), the local file
            `out`, the path of a `.keras` or JSON file with the `model` or None, and names of modules to `import` for
            classes of the user's.

    Raises:
        ConfigError: A module cannot be imported, no architecture was found, or Keras cannot build a model from it.
        BackupMismatchError: The backup is of another model.
        DamagedBackupError: The backup is damaged.
        StorageError: The store cannot be read.
    """
    for name in request["import"]:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ConfigError(f"--import {name}: {type(error).__name__}: {error}") from error
    store = BackupStore(Storage.open(request["directory"], request["storage_options"]))
    commit, saved = select_backup.find_backup(store, request["commit"], Cluster().num_workers)
    model = _model_of(request["model"], saved)
    load_backup.require_built(model)
    load_backup.apply(model, saved, Cluster())
    if request["out"].endswith(".weights.h5"):
        model.save_weights(request["out"])
    else:
        model.save(request["out"])
    return {"commit": commit.label, "position": str(saved.position), "tensors": len(saved_names(saved.of(VARIABLES)))}


def _model_of(path: str | None, saved: WorkerState) -> Any:
    if path is None:
        text = architecture_json(saved.tensors, "the backup", "Give a model file with --model")
        return model_of(text, "the architecture in the backup", _OWN_LAYERS)
    if not path.endswith(".keras"):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--model {path} cannot be read: {error}") from error
        return model_of(text, path, _OWN_LAYERS)
    import keras

    try:
        return keras.models.load_model(path, safe_mode=True)
    except Exception as error:
        raise model_creation_error(path, error, _OWN_LAYERS) from error


def main() -> int:
    """Does what the standard input asks for; what it did, or an error of ours, goes into the file for a `report`."""
    request = json.load(sys.stdin)
    try:
        report, code = export(request), 0
    except KdcError as error:
        kind = next(known.__name__ for known in type(error).__mro__ if known.__module__ == errors.__name__)
        report, code = {"kind": kind, "message": str(error)}, 1
    Path(request["report"]).write_text(json.dumps(report), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())

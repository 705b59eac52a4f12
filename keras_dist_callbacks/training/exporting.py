"""A backup as a file of Keras', made in a process of its own: `kdc` itself does not import Keras.

    python -m keras_dist_callbacks.training.exporting < request.json

The request comes by the standard input, since it may hold credentials.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from keras_dist_callbacks.backups.variables import ARCHITECTURE
from keras_dist_callbacks.errors import BackupMismatchError, ConfigError


def export(request: Mapping[str, Any]) -> None:
    """Writes a `.keras` or `.weights.h5` file.

    Args:
        request: `directory` and `storage_options` of the backup, the `commit`, the local file `out`, the path of a
            `.keras` or JSON file with the `model` or None, and names of modules to `import` for classes of the user's.

    Raises:
        ConfigError: There is no architecture, or Keras cannot make a model of it.
        BackupMismatchError: The backup is of another model.
    """
    from keras_dist_callbacks.training.loading import load_backup

    for name in request["import"]:
        importlib.import_module(name)
    where, options = request["directory"], request["storage_options"]
    model = _model_of(request)
    load_backup(where, model, request["commit"], storage_options=options)
    if request["out"].endswith(".weights.h5"):
        model.save_weights(request["out"])
    else:
        model.save(request["out"])


def _model_of(request: Mapping[str, Any]) -> Any:
    import keras

    path = request["model"]
    try:
        if path is not None and path.endswith(".keras"):
            return keras.models.load_model(path, safe_mode=True)
        return keras.models.model_from_json(_architecture(request))
    except (TypeError, ValueError, OSError) as error:
        if isinstance(error, ConfigError):
            raise
        what, why = path or "the architecture in the backup", " ".join(str(error).split())[:500]
        raise ConfigError(
            f"Keras makes no model of {what}: {why}. Name the modules of your own layers with --import, or give a "
            "model file with --model"
        ) from error


def _architecture(request: Mapping[str, Any]) -> str:
    if request["model"] is not None:
        with open(request["model"], encoding="utf-8") as file:
            return file.read()
    from keras_dist_callbacks.backups.store import BackupStore
    from keras_dist_callbacks.engine import picking
    from keras_dist_callbacks.storage.storage import Storage

    store = BackupStore(Storage.open(request["directory"], request["storage_options"]))
    tensors = picking.look_up(store, request["commit"], workers=0)[1].tensors
    if ARCHITECTURE not in tensors:
        raise ConfigError(
            "the backup holds no architecture: its model has none (get_config), has code in it (a Lambda layer), or it "
            "was made by a Checkpointer or by an older version. Give a model file with --model"
        )
    return bytes(tensors[ARCHITECTURE]).decode()


def main() -> int:
    """Does what the standard input asks for; errors of ours go to the standard error as a line."""
    try:
        export(json.load(sys.stdin))
    except (ConfigError, BackupMismatchError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The model that a `SidecarEvaluator` evaluates: a user's, or that of a checkpoint."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import xxhash

from keras_dist_callbacks._compat import keras_in_use, variables
from keras_dist_callbacks.backups.snapshot import WorkerState
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.checkpoints.restore import missing_in_words
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.strategy import make_strategy
from keras_dist_callbacks.run import load_backup, model_export
from keras_dist_callbacks.storage import temporary

_GIVE = "Give SidecarEvaluator a compiled model"


class EvaluatedModel:
    """Takes one checkpoint after the other.

    Args:
        model: A compiled one that is built, or None to take complete models as they are in files or backups.
    """

    def __init__(self, model: Any) -> None:
        self._given = model is not None
        self._model = model
        self._config = ""
        self._said: set[str] = set()

    def take_file(self, path: Path, shown: str, step: int) -> None:
        """Sets the weights that a file of `ModelCheckpoint` holds.

        Args:
            path: A local copy.
            shown: What it is, for messages.
            step: Optimizer steps taken, which callbacks look for in the optimizer.

        Raises:
            ConfigError: It holds weights alone or an uncompiled model, and no model was given.
            BackupMismatchError: It is of another model.
        """
        if self._given:
            self._load_weights(path, shown)
        else:
            self._take_whole(path, shown)
        optimizer = getattr(self._model, "optimizer", None)
        if optimizer is not None and step:
            optimizer.iterations.assign(step)
        missing = variables.missing_in_files(self._model)
        self._say_once(missing_in_words(missing) if missing else "")

    def _say_once(self, text: str) -> None:
        if text and text not in self._said:
            self._said.add(text)
            warn(text)

    def take_backup(self, saved: WorkerState, shown: str) -> None:
        """Sets what a backup holds of the model.

        Raises:
            ConfigError: No model was given, and Keras makes none of the backup.
            BackupMismatchError: It is of another model.
        """
        if not self._given:
            self._make(model_export.architecture_json(saved.tensors, shown, _GIVE), shown)
        with self._model.distribute_strategy.scope():
            left = load_backup.apply(self._model, saved, Cluster())
        self._say_once(load_backup.missing_in_words(left) if left else "")

    def weights_digest(self) -> str:
        """Returns a digest of the weights, by which the same model under another name is known."""
        hasher = xxhash.xxh3_128()
        for weight in self._model.weights:
            hasher.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)).tobytes())
        return hasher.hexdigest()

    def evaluate(self, data: Any, steps: int | None, callbacks: Sequence[Any], verbose: int | str) -> dict[str, float]:
        """Returns what `model.evaluate` finds, as far as it is single numbers."""
        names = ("x", "y", "sample_weight")
        given = dict(zip(names, data, strict=False)) if isinstance(data, tuple) else {"x": data}
        found: Mapping[str, Any] = self._model.evaluate(
            **given, steps=steps, callbacks=list(callbacks), verbose=verbose, return_dict=True
        )
        return {name: float(value) for name, value in found.items() if np.ndim(value) == 0}

    def save(self, path: Path) -> None:
        """Writes the complete model or its weights, by the end of the name."""
        if path.name.endswith(".weights.h5"):
            self._model.save_weights(path)
        else:
            self._model.save(path)

    def _take_whole(self, path: Path, shown: str) -> None:
        if not path.name.endswith(".keras"):
            raise ConfigError(f"{shown} holds only weights: give SidecarEvaluator a compiled model to load them into")
        config = _config_of(path)
        if self._model is not None and config == self._config:
            self._load_weights(path, shown)  # evaluate() need not be traced again
            return
        with _strategy().scope(), temporary.writing(f"what Keras unpacks of {shown}", within=path.parent):
            model = keras.models.load_model(path, safe_mode=True)
        self._keep(model, config, shown)

    def _make(self, config: str, shown: str) -> None:
        if self._model is None or config != self._config:
            with _strategy().scope():
                model = model_export.model_of(config, shown, _GIVE)
            load_backup.require_built(model)
            self._keep(model, config, shown)

    def _keep(self, model: Any, config: str, shown: str) -> None:
        if not getattr(model, "compiled", False):
            raise ConfigError(f"the model in {shown} is not compiled: give SidecarEvaluator a compiled model")
        self._model, self._config = model, config

    def _load_weights(self, path: Path, shown: str) -> None:
        with warnings.catch_warnings():
            # Only its step counter matters here, so an optimizer need not be that of the training, nor be built.
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer", UserWarning)
            try:
                with temporary.writing(f"what Keras unpacks of {shown}", within=path.parent):
                    self._model.load_weights(path)
            except ValueError as error:
                raise BackupMismatchError(
                    f"the weights of {shown} do not fit the model of SidecarEvaluator: {error}"
                ) from error


def _strategy() -> Any:
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else make_strategy()


def check_model(model: Any) -> None:
    """Makes sure that weights can be loaded into a model, and that it can be evaluated.

    Raises:
        ConfigError: They cannot.
    """
    keras_in_use.require_model(model)
    if model is None:
        return
    if not isinstance(model, keras.Model):
        raise ConfigError(f"model must be a keras.Model, or None, got a value of the type {type(model).__name__}")
    load_backup.require_built(model)
    if not model.compiled:
        raise ConfigError("the model is not compiled, so it has no loss and no metrics: call model.compile(...) first")


def _config_of(path: Path) -> str:
    """Returns the architecture in a file, without what training says of itself."""
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    return json.dumps({name: value for name, value in config.items() if name != "compile_config"}, sort_keys=True)

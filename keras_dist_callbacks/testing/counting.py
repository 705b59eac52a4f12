"""Counts training steps outside of the model's state, so that restoring a backup does not reset the count."""

from __future__ import annotations

import functools
import os
from typing import Any

import keras
import tensorflow as tf

from keras_dist_callbacks import arguments
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.testing.steps import append


@keras.saving.register_keras_serializable("keras_dist_callbacks")
class CountCalls(keras.layers.Layer):
    """An identity layer that counts its executed training calls in a file; `count_calls` reads it.

    It counts what really ran, in graph mode and under a strategy too, and survives SIGKILL: one byte is
    appended per call and replica. Calls with `training=False` and symbolic calls do not count.

    Args:
        path: The file. `{worker}` in it stands for the index of the worker that runs the layer.
        **kwargs: Keras' arguments of a layer.

    Raises:
        ConfigError: `path` is no path.
    """

    def __init__(self, path: str | os.PathLike[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = arguments.path("path", path)
        self.supports_jit = False  # XLA cannot call back into Python

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns the inputs."""
        if training and not isinstance(inputs, keras.KerasTensor):
            path = worker_path(self.file)
            tf.py_function(functools.partial(_count, path), [_replica()], [])
        return inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Keras' description of the layer."""
        return {**super().get_config(), "path": self.file}


class StepLog(keras.callbacks.Callback):
    """Appends `pid epoch batch` to a file after every completed training step; `read_steps` reads it.

    Args:
        path: The file. `{worker}` in it stands for the index of this worker.

    Raises:
        ConfigError: `path` is no path, or its directory does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = worker_path(arguments.path("path", path))
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes a line."""
        append(self.path, f"{os.getpid()} {self._epoch} {batch}\n".encode("ascii"))


def worker_path(template: str) -> str:
    """`template` with this worker's index in the place of `{worker}`."""
    path = template.replace("{worker}", str(max(0, Cluster.detect().worker_index)))
    if not os.path.isdir(os.path.dirname(path) or "."):  # noqa: PTH112, PTH120
        raise ConfigError(f"{path!r}: its directory does not exist; make it first")
    return path


def _replica() -> Any:
    context = tf.distribute.get_replica_context()
    return tf.constant(0) if context is None else tf.cast(context.replica_id_in_sync_group, tf.int32)


def _count(path: str, replica: Any) -> None:
    append(path, bytes([int(replica) % 256]))

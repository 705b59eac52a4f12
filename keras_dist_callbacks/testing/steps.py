"""Steps of a training run as tests see them."""

from __future__ import annotations

import collections
import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cluster.cluster import Cluster


class Step(NamedTuple):
    """One training step that a process has completed.

    Attributes:
        pid: The process that ran it; another one after each restart.
        epoch: Epoch, from 0.
        batch: Batch in the epoch, from 0.
    """

    pid: int
    epoch: int
    batch: int


def append(path: str | os.PathLike[str], data: bytes) -> None:
    """Appends in one unbuffered write: complete and in the kernel when it returns, whatever kills us next."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def count_calls(path: str | os.PathLike[str]) -> int:
    """Number of training steps that went through a `CountCalls` layer, over all restarts.

    The replicas of one process count a step once. Zero if the file does not exist.

    Raises:
        ConfigError: `path` is not a path.
    """
    file = Path(validation.path("path", path))
    if not file.exists():
        return 0
    return max(collections.Counter(file.read_bytes()).values(), default=0)


def read_steps(path: str | os.PathLike[str]) -> list[Step]:
    """Returns the steps that a `StepLog` has written, in the order in which they were run.

    Empty if the file does not exist. A line cut off by a full disk or a crash of the machine is an error.

    Raises:
        ConfigError: `path` is not a path, or the file is not a step log.
    """
    file = Path(validation.path("path", path))
    if not file.exists():
        return []
    steps = []
    for number, line in enumerate(file.read_text(encoding="ascii", errors="replace").splitlines(), start=1):
        fields = line.split()
        if len(fields) != 3 or not all(field.isdigit() for field in fields):
            raise ConfigError(f"{file}, line {number}: {line!r} is not 'pid epoch batch'; is this a StepLog's file?")
        steps.append(Step(*map(int, fields)))
    return steps


@keras.saving.register_keras_serializable("keras_dist_callbacks")
class CountCalls(keras.layers.Layer):
    """An identity layer that counts its executed training calls in a file; `count_calls` reads it.

    It counts what really ran, in graph mode and under a strategy too, and survives SIGKILL: one byte is
    appended per call and replica. Calls with `training=False` and symbolic calls do not count.

    Args:
        path: The file. `{worker}` in it stands for the index of the worker that runs the layer.
        **kwargs: Keras' arguments of a layer.

    Raises:
        ConfigError: `path` is not a path.
    """

    def __init__(self, path: str | os.PathLike[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = validation.path("path", path)
        self.supports_jit = False  # XLA cannot call back into Python

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns the inputs."""
        if training and not isinstance(inputs, keras.KerasTensor):
            path = worker_path(self.file)
            tf.py_function(functools.partial(_count, path), [_replica()], [])
        return inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Keras' description of the layer."""
        return {**super().get_config(), "path": self.file}


class StepLog(keras.callbacks.Callback):
    """Appends `pid epoch batch` to a file after every completed training step; `read_steps` reads it.

    Args:
        path: The file. `{worker}` in it stands for the index of this worker.

    Raises:
        ConfigError: `path` is not a path, or its directory does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = worker_path(validation.path("path", path))
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

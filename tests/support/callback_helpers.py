"""What the tests of the single callbacks share: a tiny model, its data, and a worker that is not the chief."""

from __future__ import annotations

import collections
import uuid
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks.cluster.roles import Role

ROWS = 12
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def tiny_model(optimizer: Any = None) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.01), loss="mse")
    return model


def fit(model: keras.Model, *callbacks: keras.callbacks.Callback, epochs: int = 1, **kwargs: Any) -> Any:
    """Three batches an epoch."""
    return model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks), **kwargs)


def be_worker_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process think that it is the second worker, without a cluster."""
    monkeypatch.setattr(Role, "detect", classmethod(lambda cls, environ=None: cls("worker", 1, 1)))


def memory_url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """All scalars in the event files of a directory, by tag."""
    from tensorflow.core.util import event_pb2

    found: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)
    for path in sorted(directory.glob("events.out.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found[value.tag].append((event.step, float(tf.make_ndarray(value.tensor))))
    return found


# Keras hands its variables to h5py and numpy 2 in a way that numpy has deprecated.
ignore_keras_warnings = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")


class SetLoss(keras.callbacks.Callback):
    """Replaces the logged loss by given values, before callbacks that come later."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        logs["loss"] = self.values[epoch]

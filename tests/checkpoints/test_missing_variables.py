"""Variables that Keras writes into no file are named, and those of a backup are set."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import KERAS

ROWS = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")


class Scale(keras.layers.Layer):
    """Has a layer or a variable where Keras does not look for it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "private":
            self._layers = [keras.layers.Dense(8)]
            self.table = None
        else:
            self.table = tf.Variable(np.ones(8, "float32"))

    def build(self, shape: Any) -> None:
        if self.table is None:
            self._layers[0].build(shape)

    def call(self, x: Any, training: bool = False) -> Any:
        if self.table is None:
            return self._layers[0](x)
        if training:
            self.table.assign_add(0.01 * tf.reduce_mean(x, axis=0))
        return x * self.table

    def hidden(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = (self._layers[0].kernel if self.table is None else self.table).numpy()
        return found


def scaled(kind: str) -> keras.Model:
    model = keras.Sequential([keras.Input((8,)), Scale(kind), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize(("kind", "name"), [("private", "kernel"), ("table", "Variable:0")])
def test_what_keras_writes_into_no_file_is_named_and_a_backup_sets_it(tmp_path: Path, kind: str, name: str) -> None:
    keras.utils.set_random_seed(1)
    model = scaled(kind)
    checkpoint = kdc.ModelCheckpoint(tmp_path / "files" / "m{epoch}.keras")
    backup = kdc.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
    with pytest.warns(RuntimeWarning, match=rf"ModelCheckpoint lack variables .*{name}") as caught:
        model.fit(ROWS, ROWS[:, :1], epochs=2, verbose=0, callbacks=[checkpoint, backup])
    assert sum("lack variables" in str(one.message) for one in caught) == 1
    with pytest.warns(RuntimeWarning, match=rf"hold no values of .*{name}"):
        kdc.make_or_restore_model(lambda: scaled(kind), tmp_path / "files")
    loaded = kdc.load_backup(tmp_path / "backup", scaled(kind))
    assert np.array_equal(loaded.layers[0].hidden(), model.layers[0].hidden())


def nested() -> keras.Model:
    class Nested(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.parts = {"a": [keras.layers.Dense(8)], "b": [[keras.layers.BatchNormalization()]]}

        def build(self, shape: Any) -> None:
            self.parts["a"][0].build(shape)
            self.parts["b"][0][0].build(shape)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.parts["b"][0][0](self.parts["a"][0](x), training=training)

    return keras.Sequential([keras.Input((8,)), Nested(), keras.layers.Dense(1)])


def usual() -> keras.Model:
    x = keras.Input((8,))
    y = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(keras.layers.Dense(8)(x)))
    z = keras.layers.Reshape((2, 4))(keras.layers.Normalization(mean=0.0, variance=1.0)(y))
    attended = keras.layers.MultiHeadAttention(2, 2, dropout=0.1)(z, z)
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.LSTM(4, dropout=0.2)(attended)))


OPTIMIZERS: list[Callable[[], Any]] = [
    lambda: keras.optimizers.Adam(use_ema=True),
    lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)),
]


@pytest.mark.in_gate(4)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "build",
    [usual, pytest.param(nested, marks=pytest.mark.skipif(KERAS < (3, 15), reason="Keras leaves out what is nested"))],
)
@pytest.mark.parametrize("eager", [False, True])
def test_nothing_is_named_of_what_keras_writes(
    tmp_path: Path, build: Callable[[], keras.Model], optimizer: Callable[[], Any], eager: bool
) -> None:
    def compiled() -> keras.Model:
        model = build()
        model.compile(optimizer(), "mse", metrics=["mae"], run_eagerly=eager)
        return model

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        callback = kdc.ModelCheckpoint(tmp_path / "m.keras")
        compiled().fit(ROWS, ROWS[:, :1], batch_size=32, verbose=0, callbacks=[callback])
        kdc.make_or_restore_model(compiled, tmp_path)
    assert [str(one.message) for one in caught if "variables" in str(one.message) or "values" in str(one.message)] == []

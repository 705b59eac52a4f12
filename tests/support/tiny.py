"""A tiny model with everything that makes resuming hard, and a fit() that can be interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support.grouped import grouped

ROWS, BATCH = 40, 8
STEPS = ROWS // BATCH


class Stop(Exception):  # noqa: N818 - stands for any exception of a user
    pass


class StopAt(keras.callbacks.Callback):
    """Ends training with an exception before a batch is trained, as a crash would."""

    def __init__(self, epoch: int, batch: int, error: BaseException | None = None) -> None:
        super().__init__()
        self.where, self.error = (epoch, batch), error or Stop("stopped here")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.where:
            raise self.error


class CountSteps(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.trained: list[tuple[int, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.trained.append((self.epoch, batch))


for stateless in (StopAt, CountSteps):  # what they note is about one run
    kdc.advanced.register_callback_state(stateless, None)


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data()).shuffle(ROWS, seed=3, reshuffle_each_iteration=True).batch(BATCH)


def model(units: int = 7, optimizer: Any = None, *, clear: bool = True) -> keras.Model:
    """Quick to trace, for tests of what is around a model: its weights depend on every batch, their order and masks."""
    first = _first_layers(units, clear=clear)
    built = keras.Sequential([*first, keras.layers.Dense(1, activation="sigmoid")])
    momentum = keras.optimizers.SGD(0.1, momentum=0.9, name="momentum")  # not one that a test gives its own
    built.compile(optimizer or momentum, "binary_crossentropy", metrics=["accuracy"])
    return built


def rich_model(units: int = 7) -> keras.Model:
    """With every kind of variable: slots of Adam, moving statistics, seeds, metrics that are not means."""
    first = _first_layers(units, clear=True)
    last = [keras.layers.BatchNormalization(), keras.layers.Dense(1, activation="sigmoid")]
    built = keras.Sequential([*first, *last])
    built.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy", "AUC"])
    return built


def _first_layers(units: int, *, clear: bool) -> list[Any]:
    if clear:
        keras.utils.clear_session(free_memory=False)  # a collection takes as long as a short fit
    keras.utils.set_random_seed(7)
    return [keras.Input((6,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(0.3)]


def fit(
    built: keras.Model,
    backup: Path | str | None,
    callbacks: Sequence[Any] = (),
    *,
    epochs: int = 3,
    save_freq: str | int = 1,
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> keras.callbacks.History:
    """fit() on the shuffled dataset; without a shuffle warning of Keras, backed up if a directory is given."""
    every = list(callbacks)
    if backup is not None:
        # an exception of these tests stands for a crash, which saves nothing
        crashes = {"save_on_exception": False, "when_busy": "wait", **(options or {})}
        every.append(kdc.BackupAndRestore(backup, save_freq=save_freq, **grouped(**crashes)))
    x = arguments.pop("x", None)
    return built.fit(
        shuffled() if x is None else x,
        epochs=epochs,
        verbose=0,
        callbacks=every,
        shuffle=arguments.pop("shuffle", False),
        **arguments,
    )


def state(built: keras.Model) -> dict[str, np.ndarray]:
    """Every variable of training."""
    from keras_dist_callbacks._compat.variables import named_variables

    return {name: variable.numpy() for name, variable in named_variables(built).items()}


def assert_same(first: keras.Model, second: keras.Model) -> None:
    ours, theirs = state(first), state(second)
    assert len(ours) == len(theirs)
    for (name, value), (other, expected) in zip(ours.items(), theirs.items(), strict=True):
        # Keras names a wrapped optimizer's slots after where they were built
        assert name.endswith(other) or other.endswith(name), f"{name} against {other}"
        np.testing.assert_array_equal(value, expected, err_msg=name)


def interrupt(
    backup: Path | str,
    epoch: int,
    batch: int,
    save_freq: str | int = 1,
    *,
    built: Any = None,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> None:
    """A run that ends with an exception before a batch is trained."""
    try:
        fit(built or model(), backup, [*callbacks, StopAt(epoch, batch)], save_freq=save_freq, **options)
    except Stop:
        return  # not `pytest.raises`: jobs import this module, and not pytest, which takes as long as their training
    raise AssertionError(f"training did not come to epoch {epoch}, batch {batch}")


def resumed(
    directory: Path, epoch: int, batch: int, run: Callable[..., keras.Model]
) -> tuple[keras.Model, kdc.Restored]:
    """What a run ends with that crashes before a batch is trained, and is started again.

    Args:
        directory: Of the backups.
        epoch: Where it crashes.
        batch: Likewise.
        run: Makes and fits the model, with the callbacks that it gets.
    """
    crash = grouped(save_on_exception=False, when_busy="wait")
    try:
        run(kdc.BackupAndRestore(directory, save_freq=1, **crash), StopAt(epoch, batch))
    except Stop:
        backup = kdc.BackupAndRestore(directory)
        ended = run(backup)
        assert backup.restored is not None
        return ended, backup.restored
    raise AssertionError(f"training did not come to epoch {epoch}, batch {batch}")

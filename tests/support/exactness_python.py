"""Inputs that run Python code: what state it has cannot be inspected."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support import tiny
from tests.support.exactness_case import PYTHON_CODE, Arguments, Case, of_rows
from tests.support.exactness_inputs import of_epochs
from tests.support.inputs import STEPS, Batches, SelfShuffling

Draw = Callable[[tuple[int, ...]], np.ndarray]
SIGNATURE = (tf.TensorSpec((6,), "float32"), tf.TensorSpec((1,), "float32"))


def shared_draw() -> Draw:
    """Of the random numbers that are numpy's own."""
    return lambda shape: np.random.normal(size=shape).astype("float32")


def own_draw() -> Draw:
    rng = np.random.default_rng(5)
    return lambda shape: rng.normal(size=shape).astype("float32")


class Noisy(Batches):
    def __init__(self, draw: Draw, **options: Any) -> None:
        super().__init__(**options)
        self.draw = draw

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = super().__getitem__(index)
        return x + self.draw(x.shape), y


class OwnGenerator(Batches):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(5)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = super().__getitem__(index)
        return x + self.rng.normal(size=x.shape).astype("float32"), y


class ShuffledByItsGenerator(Batches):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(5)

    def on_epoch_end(self) -> None:
        self.rng.shuffle(self.order)


class DrawsRate(keras.callbacks.Callback):
    """Draws from the random numbers that the input draws from too."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * (0.5 + np.random.random())


def generated(draw: Draw) -> tf.data.Dataset:
    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for x, y in zip(*tiny.data(), strict=True):
            yield x + draw(x.shape), y

    return tf.data.Dataset.from_generator(rows, output_signature=SIGNATURE).batch(tiny.BATCH)


def endless(draw: Draw) -> Arguments:
    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        x, y = tiny.data()
        while True:
            for start in range(0, tiny.ROWS, tiny.BATCH):
                rows = slice(start, start + tiny.BATCH)
                yield x[rows] + draw((tiny.BATCH, 6)), y[rows]

    return {"x": batches(), "steps_per_epoch": STEPS}


def in_numpy_function(draw: Draw) -> tf.data.Dataset:
    def through(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(tf.numpy_function(lambda a: a + draw(a.shape), [x], tf.float32), (None, 6)), y

    return tiny.shuffled().map(through)


def in_py_function() -> tf.data.Dataset:
    def through(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(tf.py_function(lambda a: a * 2.0, [x], tf.float32), (None, 6)), y

    return tiny.shuffled().map(through)


def epochs_in_an_order_of_numpy() -> Arguments:
    def epoch_data(epoch: int) -> tf.data.Dataset:
        order = np.random.permutation(tiny.ROWS)
        x, y = tiny.data()
        return tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(tiny.BATCH)

    return of_epochs(epoch_data)


def loader(seed: int | None) -> Arguments:
    import torch

    torch.manual_seed(5)  # keras.utils.set_random_seed seeds torch only where it is the backend
    rows = torch.utils.data.TensorDataset(*map(torch.from_numpy, tiny.data()))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return {"x": torch.utils.data.DataLoader(rows, tiny.BATCH, shuffle=True, generator=generator)}


INPUTS: dict[str, Callable[[], Arguments]] = {
    "numpy.random in a PyDataset": lambda: {"x": Noisy(shared_draw())},
    "a generator within a PyDataset": lambda: {"x": OwnGenerator()},
    "a generator in a closure of a PyDataset": lambda: {"x": Noisy(own_draw())},
    "PyDataset that shuffles itself by a generator": lambda: {"x": ShuffledByItsGenerator()},
    "PyDataset that shuffles itself, and is shuffled": lambda: {"x": SelfShuffling(), "shuffle": True},
    "PyDataset that shuffles itself, and a callback that draws": lambda: {
        "x": SelfShuffling(),
        "callbacks": [DrawsRate()],
    },
    "numpy.random in from_generator": lambda: {"x": generated(shared_draw())},
    "a generator in from_generator": lambda: {"x": generated(own_draw())},
    "numpy.random in from_generator, prefetched": lambda: {"x": generated(shared_draw()).prefetch(2)},
    "numpy.random in a numpy_function": lambda: {"x": in_numpy_function(shared_draw())},
    "a generator in a numpy_function": lambda: {"x": in_numpy_function(own_draw())},
    "py_function without any state": lambda: {"x": in_py_function()},
    "numpy.random in a Python generator": lambda: endless(shared_draw()),
    "a generator in a Python generator": lambda: endless(own_draw()),
    "numpy.random in EpochDataset": epochs_in_an_order_of_numpy,
}
if importlib.util.find_spec("torch"):
    INPUTS["DataLoader"] = partial(loader, None)
    INPUTS["DataLoader with a generator"] = partial(loader, 5)

SAYS = PYTHON_CODE + "|PyDataset|EpochDataset|DataLoader"
EXACT = ("that shuffles itself", "without any state")
PYTHON_CASES: dict[str, Case] = {
    name: of_rows("exact", make) if any(w in name for w in EXACT) else of_rows("exact if", make, SAYS)
    for name, make in INPUTS.items()
}

"""Every kind of input that fit() takes, each made again by a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support import tiny

Input = dict[str, Any]
STEPS = 4  # of an endless input; no divisor of the 5 batches of a pass


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tiny.data())


def shuffle(dataset: tf.data.Dataset, seed: int | None = 3) -> tf.data.Dataset:
    return dataset.shuffle(tiny.ROWS, seed=seed, reshuffle_each_iteration=True)


def interleaved() -> tf.data.Dataset:
    def part(index: tf.Tensor) -> tf.data.Dataset:
        return rows().shard(4, index).shuffle(10, seed=5)

    return shuffle(tf.data.Dataset.range(4).shuffle(4, seed=1).interleave(part, cycle_length=2))


def noisy(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x + tf.random.normal(tf.shape(x), seed=5), y


def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    x, y = tiny.data()
    yield from zip(x, y, strict=True)


def endless_generator() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    x, y = tiny.data()
    while True:
        for start in range(0, tiny.ROWS, tiny.BATCH):
            yield x[start : start + tiny.BATCH], y[start : start + tiny.BATCH]


class Batches(keras.utils.PyDataset):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.order = np.arange(tiny.STEPS)

    def __len__(self) -> int:
        return tiny.STEPS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = tiny.data()
        start = int(self.order[index]) * tiny.BATCH
        return x[start : start + tiny.BATCH], y[start : start + tiny.BATCH]


class SelfShuffling(Batches):
    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


def from_generator() -> tf.data.Dataset:
    signature = (tf.TensorSpec((6,), "float32"), tf.TensorSpec((1,), "float32"))
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def sampled() -> tf.data.Dataset:
    parts = [shuffle(rows().shard(2, i), seed=i + 1).repeat() for i in range(2)]
    return tf.data.Dataset.sample_from_datasets(parts, [0.5, 0.5], seed=4)


INPUTS: dict[str, Callable[[], Input]] = {
    "finite": lambda: {"x": rows().batch(tiny.BATCH)},
    "shuffled without a seed of its own": lambda: {"x": shuffle(rows(), None).batch(tiny.BATCH)},
    "shuffled once": lambda: {"x": rows().shuffle(tiny.ROWS, seed=3, reshuffle_each_iteration=False).batch(tiny.BATCH)},
    "shuffled and prefetched": lambda: {"x": shuffle(rows()).batch(tiny.BATCH).prefetch(2)},
    "two shuffles": lambda: {"x": shuffle(shuffle(rows(), 1).batch(2), 2).unbatch().batch(tiny.BATCH)},
    "shuffle, interleave, shuffle": lambda: {"x": interleaved().batch(tiny.BATCH)},
    "cache, shuffle": lambda: {"x": shuffle(rows().cache()).batch(tiny.BATCH)},
    "shuffle, cache": lambda: {"x": shuffle(rows()).cache().batch(tiny.BATCH)},
    "shuffle, filter": lambda: {"x": shuffle(rows()).filter(lambda x, y: x[0] > -0.5).batch(tiny.BATCH)},
    "random noise in a serial map": lambda: {"x": rows().map(noisy).batch(tiny.BATCH)},
    "from_generator": lambda: {"x": from_generator().batch(tiny.BATCH)},
    "from_generator, shuffled": lambda: {"x": shuffle(from_generator()).batch(tiny.BATCH)},
    "shuffle, repeat": lambda: {"x": shuffle(rows()).repeat().batch(tiny.BATCH), "steps_per_epoch": STEPS},
    "repeat, shuffle": lambda: {"x": shuffle(rows().repeat()).batch(tiny.BATCH), "steps_per_epoch": STEPS},
    "sampled from two repeated shuffles": lambda: {"x": sampled().batch(tiny.BATCH), "steps_per_epoch": STEPS},
    "finite with fewer steps_per_epoch": lambda: {"x": shuffle(rows()).batch(tiny.BATCH), "steps_per_epoch": 3},
    "numpy": lambda: dict(zip("xy", tiny.data(), strict=True)) | {"batch_size": tiny.BATCH, "shuffle": True},
    "numpy in order": lambda: dict(zip("xy", tiny.data(), strict=True)) | {"batch_size": tiny.BATCH},
    "tensors": lambda: (
        {k: tf.constant(v) for k, v in zip("xy", tiny.data(), strict=True)}
        | {"batch_size": tiny.BATCH, "shuffle": True}
    ),
    "sample weights": lambda: (
        dict(zip("xy", tiny.data(), strict=True))
        | {"batch_size": tiny.BATCH, "sample_weight": np.linspace(0, 1, tiny.ROWS), "shuffle": True}
    ),
    "class weights": lambda: {"x": shuffle(rows()).batch(tiny.BATCH), "class_weight": {0: 1.0, 1: 2.0}},
    "validation split": lambda: (
        dict(zip("xy", tiny.data(), strict=True))
        | {"batch_size": tiny.BATCH, "validation_split": 0.25, "shuffle": True}
    ),
    "PyDataset": lambda: {"x": Batches(), "shuffle": True},
    "PyDataset with two workers": lambda: {"x": Batches(workers=2), "shuffle": True},
    "PyDataset that shuffles itself": lambda: {"x": SelfShuffling()},
    "Python generator": lambda: {"x": endless_generator(), "steps_per_epoch": STEPS},
    "shuffled validation": lambda: {
        "x": shuffle(rows()).batch(tiny.BATCH),
        "validation_data": shuffle(rows(), 8).take(20).batch(4),
    },
    "shuffled validation every other epoch": lambda: {
        "x": rows().batch(tiny.BATCH),
        "validation_data": shuffle(rows(), 8).take(20).batch(4),
        "validation_freq": 2,
    },
    "validation with steps": lambda: {
        "x": rows().batch(tiny.BATCH),
        "validation_data": shuffle(rows(), 8).repeat().batch(4),
        "validation_steps": 3,
    },
    "training and validation that share a shuffle": lambda: shared_shuffle(),
}


def shared_shuffle() -> Input:
    both = shuffle(rows())
    return {"x": both.take(32).batch(8), "validation_data": both.skip(32).batch(4)}

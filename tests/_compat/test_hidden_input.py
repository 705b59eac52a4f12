"""What is found within an input pipeline, and what is not held against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks._compat.hidden_input import HiddenInput, look_into

ROWS = np.zeros((8, 4), "float32")


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(ROWS)


def generate() -> Iterator[np.ndarray]:
    yield from ROWS


def noisy(dataset: tf.data.Dataset, layer: Any = None, **options: Any) -> tf.data.Dataset:
    layer = layer or keras.layers.GaussianNoise(0.1, seed=1)

    def add(row: tf.Tensor) -> tf.Tensor:
        return layer(row[None], training=True)[0]

    return dataset.map(add, **options)


def counting(dataset: tf.data.Dataset, counter: tf.Variable) -> tf.data.Dataset:
    def count(row: tf.Tensor) -> tf.Tensor:
        counter.assign_add(1.0)
        return row + counter

    return dataset.map(count)


def scaled(dataset: tf.data.Dataset, scale: tf.Variable) -> tf.data.Dataset:
    return dataset.map(lambda row: row * scale)


def nested(dataset: tf.data.Dataset) -> tf.data.Dataset:
    layer = keras.layers.GaussianNoise(0.1, seed=1)

    def part(row: tf.Tensor) -> tf.data.Dataset:
        return noisy(tf.data.Dataset.from_tensors(row), layer)

    return dataset.interleave(part, cycle_length=2)


def two_branches(*, ahead: bool) -> tf.data.Dataset:
    layer = keras.layers.GaussianNoise(0.1, seed=1)
    branches = [noisy(rows(), layer) for _ in range(2)]
    return tf.data.Dataset.zip(*[branch.prefetch(1) if ahead else branch for branch in branches]).prefetch(1)


def loose(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def numpy_function(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda row: tf.numpy_function(lambda x: x, [row], tf.float32))


def summary(found: HiddenInput) -> tuple[int, int, int, int]:
    return len(found.variables), len(found.reads), len(found.python), len(found.unordered)


CASES: dict[str, tuple[Callable[[], tf.data.Dataset], tuple[int, int, int, int]]] = {
    "nothing hidden": (lambda: rows().shuffle(8).batch(2).prefetch(2), (0, 0, 0, 0)),
    "parallel map of a pure function": (lambda: rows().map(lambda row: row * 2, num_parallel_calls=2), (0, 0, 0, 0)),
    "stateless random numbers, parallel": (
        lambda: rows().map(lambda row: row + tf.random.stateless_normal((), (1, 2)), num_parallel_calls=2),
        (0, 0, 0, 0),
    ),
    "random operation in a serial map": (lambda: rows().map(lambda row: row + tf.random.normal(())), (0, 0, 0, 0)),
    "random operation in a parallel map": (
        lambda: rows().map(lambda row: row + tf.random.normal(()), num_parallel_calls=2),
        (0, 0, 0, 1),
    ),
    "random layer": (lambda: noisy(rows()).batch(2), (1, 0, 0, 0)),
    "random layer within an interleave": (lambda: nested(rows()), (1, 0, 0, 0)),
    "random layer in a parallel map": (lambda: noisy(rows(), num_parallel_calls=2), (1, 0, 0, 1)),
    "random layer in a parallel map of one": (lambda: noisy(rows(), num_parallel_calls=1), (1, 0, 0, 0)),
    "variable that is changed": (lambda: counting(rows(), tf.Variable(0.0)), (1, 0, 0, 0)),
    "variable that is read": (lambda: scaled(rows(), tf.Variable(2.0)), (0, 1, 0, 0)),
    "two branches in one thread": (lambda: two_branches(ahead=False), (1, 0, 0, 0)),
    "two branches that run ahead": (lambda: two_branches(ahead=True), (1, 0, 0, 1)),
    "one dataset in two branches": (lambda: tf.data.Dataset.zip(*[noisy(rows()).prefetch(1)] * 2), (1, 0, 0, 1)),
    "order left open by options": (lambda: loose(rows().map(lambda row: row, num_parallel_calls=2)), (0, 0, 0, 1)),
    "open order without a parallel stage": (lambda: loose(rows().map(lambda row: row)), (0, 0, 0, 0)),
    "order left open by a map": (
        lambda: rows().map(lambda row: row, num_parallel_calls=2, deterministic=False),
        (0, 0, 0, 1),
    ),
    "numpy_function": (lambda: numpy_function(rows()), (0, 0, 1, 0)),
    "from_generator": (
        lambda: tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((4,))),
        (0, 0, 1, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:AutoGraph could not transform")
def test_a_pipeline_is_looked_into(name: str) -> None:
    make, expected = CASES[name]
    assert summary(look_into(make())) == expected


def test_python_code_is_named_as_the_user_knows_it() -> None:
    made = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((4,)))
    assert look_into(made).python == ("Dataset.from_generator",)
    assert look_into(numpy_function(rows())).python == ("a function in Dataset.map",)

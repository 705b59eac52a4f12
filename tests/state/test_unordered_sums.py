"""Operations that TensorFlow adds up in no fixed order: the verdict depends on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks._compat import environment, graphs, rng


def _labels(function: Callable[[], Any]) -> tuple[str, ...]:
    return graphs.operations(tf.function(function).get_concrete_function().graph).unordered


def _trained(optimizer: Any, **compiled: Any) -> Any:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Embedding(9, 2), keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    model.compile(optimizer, "mse", **compiled)
    model.fit(np.zeros((4, 5), "int32"), np.zeros((4, 1)), verbose=0)
    return model


def _of_step(optimizer: Any) -> set[str]:
    return {label for trace in graphs.traces(_trained(optimizer)) for label in graphs.operations(trace.graph).unordered}


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "adagrad", "adafactor"])
def test_sparse_updates_of_an_embedding_are_unordered(optimizer: str) -> None:
    assert _of_step(optimizer) == {"sparse updates, as of an Embedding"}


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "nadam", "adamax", "ftrl", "lion"])
def test_optimizers_that_sum_up_equal_indices_first_are_ordered(optimizer: str) -> None:
    assert _of_step(optimizer) == set()


def test_weighted_counts_and_gradients_of_crops_are_unordered() -> None:
    def crop() -> Any:
        images = tf.ones((1, 4, 4, 1))
        with tf.GradientTape() as tape:
            tape.watch(images)
            cropped = tf.image.crop_and_resize(images, [[0.0, 0.0, 1.0, 1.0]], [0], [2, 2])
        return tape.gradient(cropped, images)

    assert _labels(crop) == ("the gradient of crop_and_resize",)
    assert _labels(lambda: tf.math.bincount([1, 2], weights=[0.5, 0.5])) == ("a weighted bincount",)


def test_the_order_of_integers_and_of_replacements_does_not_matter() -> None:
    counts, weights = tf.Variable([0, 0]), tf.Variable([0.0, 0.0])
    assert _labels(lambda: tf.math.bincount([1, 2])) == ()
    assert _labels(lambda: tf.math.bincount([1, 2], binary_output=True, dtype=tf.float32)) == ()
    assert _labels(lambda: counts.scatter_add(tf.IndexedSlices(tf.constant([1]), tf.constant([0])))) == ()
    assert _labels(lambda: weights.scatter_update(tf.IndexedSlices(tf.constant([1.0]), tf.constant([0])))) == ()
    assert _labels(lambda: weights.scatter_nd_add([[0]], [1.0])) == ()


def test_what_is_unordered_depends_on_replicas_devices_threads_and_determinism(monkeypatch: Any) -> None:
    monkeypatch.setattr(environment, "_threads", lambda: (2, 2))
    assert environment.unordered_sums(1, []) == []
    assert environment.unordered_sums(2, ["a weighted bincount"]) == ["2 replicas", "a weighted bincount"]
    monkeypatch.setattr(environment, "_threads", lambda: (1, 2))
    assert environment.unordered_sums(1, ["a weighted bincount"]) == []
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    assert environment.unordered_sums(1, []) == ["operations on a GPU"]
    monkeypatch.setattr(rng, "is_deterministic", lambda: True)
    assert environment.unordered_sums(2, ["a weighted bincount"]) == []

"""What a case of the table of resumes is, and the small model and data that most of them take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tests.support import tiny

Verdict = Literal["exact", "exact if", "not exact"]
Arguments = dict[str, Any]
EVERYWHERE = ("default", "mirrored", "multi_worker")
PYTHON_CODE = r"keeps no state( of its own)?,"


def dense(
    optimizer: Any = None,
    *,
    activation: str = "relu",
    rate: float = 0.3,
    loss: Any = "binary_crossentropy",
    inside: tuple[Any, ...] = (),
    dtype: str = "float32",
    **compiled: Any,
) -> keras.Model:
    """Its weights depend on every batch, on their order and on masks."""
    built = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(7, activation=activation, dtype=dtype),
            *inside,
            keras.layers.Dropout(rate, dtype=dtype),
            keras.layers.Dense(1, activation="sigmoid", dtype=dtype),
        ]
    )
    built.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"], **compiled)
    return built


def for_images(*first: Any) -> keras.Model:
    built = keras.Sequential([keras.Input((6, 6, 1)), *first, keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")])
    built.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
    return built


def image_rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random((tiny.ROWS, 6, 6, 1), "float32"), rng.integers(2, size=(tiny.ROWS, 1)).astype("float32")


def images() -> tf.data.Dataset:
    """Shuffled and batched: what comes after it gets a batch of images, as in the guides of Keras."""
    return tf.data.Dataset.from_tensor_slices(image_rows()).shuffle(tiny.ROWS, seed=3).batch(tiny.BATCH)


def shuffled(model: keras.Model) -> Arguments:
    return {"x": tiny.shuffled()}


def without_callbacks() -> list[Any]:
    return []


@dataclass(frozen=True)
class Case:
    """A training that is killed and resumed, and what must be said of its continuation.

    Attributes:
        expected: The verdict.
        fit: The arguments of fit(), made after the model, which it gets; "callbacks" among them belong to the input.
        model: Builds and compiles the model, in the strategy's scope.
        callbacks: The user's callbacks.
        says: A regular expression that must be found in the notes, the conditions or the warnings.
        strategies: Under which it is tried.
        epoch: In which it is killed.
        batch: The batch of that epoch before which it is killed.
        resumed: Fields that are others in the resumed run.
    """

    expected: Verdict
    fit: Callable[[keras.Model], Arguments] = shuffled
    model: Callable[[], keras.Model] = dense
    callbacks: Callable[[], list[Any]] = without_callbacks
    says: str = ""
    strategies: tuple[str, ...] = ("default",)
    epoch: int = 1
    batch: int = 2
    resumed: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def as_resumed(self) -> Case:
        return replace(self, **self.resumed)


def of_images(expected: Verdict, make: Callable[[], Arguments], says: str = "", **options: Any) -> Case:
    """A case of which only the input matters, made of images."""
    return Case(expected, lambda model: make(), for_images, says=says, **options)


def of_rows(expected: Verdict, make: Callable[[], Arguments], says: str = "", **options: Any) -> Case:
    """A case of which only the input matters, made of rows."""
    return Case(expected, lambda model: make(), says=says, **options)

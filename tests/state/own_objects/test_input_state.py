"""The state of a PyDataset: saved as of when its epoch began, and exact if reading does not change it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from random import choice
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import sklearn.utils
import tensorflow as tf

from keras_dist_callbacks.state.own_objects.input_objects import _doubt_about_code, _uncompared_path
from tests.support import tiny
from tests.support.carried_over import looked_at


class Batches(keras.utils.PyDataset):
    """Eight rows at a time, in another order and of another scale in each epoch."""

    def __init__(self, noise: Callable[[Any], float] = lambda data: 0.0) -> None:
        super().__init__()
        self.x, self.y = tiny.data()
        self.indices, self.scale = np.arange(len(self.x)), 1.0
        self.own = np.random.default_rng(3)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.x) // 8

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = self.indices[8 * index : 8 * index + 8]
        return self.scale * self.x[rows] + self.noise(self), self.y[rows]

    def on_epoch_begin(self) -> None:
        self.scale *= 0.9
        np.random.shuffle(self.indices)

    def on_epoch_end(self) -> None:
        self.indices = self.own.permutation(len(self.x))


class Rolls(Batches):
    """Validation data that say themselves what they keep, and leave out the order of rows, which reading changes."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.indices = np.roll(self.indices, 1)
        return super().__getitem__(index)

    def get_state(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def set_state(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


FACTOR, CALLS = 2.0, [0]


class Changes(keras.callbacks.Callback):
    """A curriculum: changes the data, and a number that functions may read."""

    def __init__(self, data: Batches) -> None:
        super().__init__()
        self.data = data

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        global FACTOR
        FACTOR *= 0.5
        self.data.scale *= 0.5


class ChangesWithinEpochs(Changes):
    """Later than where it is interrupted: no snapshot has seen it."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 4 and self.params["epochs"] == 0:
            self.data.scale *= 2.0


def mapped(function: Callable[[Any], Any]) -> tf.data.Dataset:
    """Rows through a function of Python's, of which TensorFlow makes several calls at a time."""

    def call(x: Any, y: Any) -> Any:
        return tf.ensure_shape(tf.py_function(function, [x], tf.float32), (6,)), y

    rows = tf.data.Dataset.from_tensor_slices(tiny.data()).shuffle(tiny.ROWS, seed=3)
    return rows.map(call, num_parallel_calls=tf.data.AUTOTUNE).batch(8)


PARALLEL = "parallel"


@pytest.mark.in_gate(5)
@pytest.mark.slow  # complete fits
@pytest.mark.parametrize(
    ("data", "callback", "stop", "condition"),
    [
        (lambda model: Batches(), Changes, (1, 2), ""),
        (lambda model: Batches(), Changes, (3, 0), ""),
        pytest.param(
            *(lambda model: Batches(), ChangesWithinEpochs, (1, 2), "the callback ChangesWithinEpochs does not change"),
            marks=pytest.mark.finds("writer-of-input"),
        ),
        (lambda model: Batches(lambda data: random.gauss()), Changes, (2, 3), "may draw random numbers"),
        (lambda model: Batches(lambda data: data.own.normal()), Changes, (2, 3), "reading a batch changes its state"),
        (lambda model: Batches(lambda data: len(model.weights)), Changes, (2, 3), "cannot be inspected"),
        (lambda model: mapped(lambda rows: np.asarray(rows) * FACTOR), None, (1, 2), ""),
        (lambda model: mapped(lambda rows: CALLS.append(1) or np.asarray(rows) * len(CALLS)), None, (1, 2), PARALLEL),
        (lambda model: mapped(lambda rows: np.asarray(rows) * FACTOR), Changes, (1, 2), PARALLEL),
        (lambda model: mapped(lambda rows: np.asarray(rows) + np.random.normal()), None, (1, 2), PARALLEL),
    ],
)
def test_what_is_read_is_as_of_its_epoch_and_exact_if_reading_neither_changes_nor_draws_anything(
    tmp_path: Path, data: Any, callback: Any, stop: tuple[int, int], condition: str
) -> None:
    def run(*callbacks: Any) -> keras.Model:
        global FACTOR
        FACTOR, CALLS[:] = 2.0, [0]
        model = tiny.model()
        read = data(model)
        own = [keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1)]
        own += [] if callback is None else [callback(read if isinstance(read, Batches) else Batches())]
        tiny.fit(model, None, [*own, *callbacks], epochs=4, x=read, validation_data=Rolls())
        return model

    ended = tiny.resumes(tmp_path, run=run, at=stop, expects=None, alike=condition != PARALLEL)
    assert bool(ended.restored.conditions) == bool(condition), ended.restored
    assert all(condition in found for found in ended.restored.conditions)


def seeded_after_an_import(index: int) -> Any:
    from numpy.random import RandomState

    return RandomState(seed=index).rand()


DOUBTS: dict[str | None, list[Any]] = {
    None: [
        *(lambda index: index + 1, functools.partial(max, 2), lambda index: np.random.default_rng(7 + index).normal()),
        lambda index: np.sin(index) + tf.image.stateless_random_contrast(np.ones((1, 1, 3)), 0, 1, (1, 2)),
        lambda index: [rng := np.random.default_rng((1, index)), rng.random() + rng.permutation(3)],
    ],
    "reading a batch may draw random numbers that others draw too": [
        *(seeded_after_an_import, np.random.permutation, functools.partial(random.uniform, 2)),
        *(lambda index: random.gauss(), lambda index: choice([0, index])),  # noqa: S311 - what a user writes
        *(lambda index: [drawing := np.random, drawing.random()], lambda index: [of := np, of.random.normal()]),
        *(lambda index: np.random.default_rng().normal(), lambda index: tf.nn.dropout(np.ones(2, np.float32), 0.5)),
        *(lambda index: tf.random.normal(()), lambda index: sklearn.utils.resample([index])),
        lambda index: getattr(np, ["sin", "cos"][index % 2])(index),
        lambda index: np.load("rows.npy") * np.random.rand(),
    ],
    "reading a batch may read files, whose content is not compared": [
        *(lambda index: np.load(f"{index}.npy"), lambda index: keras.utils.load_img("image.png")),
    ],
}
HOLDS: list[Callable[[Any], dict[str, Any]]] = [
    *(lambda f: {"step": f}, lambda f: {"steps": [("name", f)]}),
    *(lambda f: {"step": functools.partial(f)}, lambda f: {"step": lambda index: f(index)}),
]


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize(("function", "doubt"), [(f, doubt) for doubt, functions in DOUBTS.items() for f in functions])
def test_whether_reading_may_draw_from_shared_random_states_or_read_files_is_seen(
    function: Callable[[int], Any], doubt: str | None, hold: Callable[[Any], dict[str, Any]]
) -> None:
    data = Rolls()
    vars(data).update(hold(function))
    found = looked_at(data)
    assert _doubt_about_code(found) == doubt
    assert doubt is not None or _uncompared_path(found) is None


@pytest.mark.slow  # complete fits
def test_an_image_generator_of_keras_own_is_a_condition_for_the_same_model_too(tmp_path: Path) -> None:
    generator = tf.keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True)
    images = np.random.default_rng(1).random((32, 4, 4, 1), np.float32)
    model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def run(*callbacks: Any) -> keras.Model:
        tiny.fit(model, None, callbacks, epochs=2, x=generator.flow(images, np.zeros(32), 8, seed=1))
        return model

    (condition,) = tiny.resumes(tmp_path, run=run, at=(1, 1), expects="exact if").restored.conditions
    assert "reading a batch changes its state" in condition


class Policy(NamedTuple):
    """Only the data have one when training begins."""

    scale: float = 1.0


class Scaled(Batches):
    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy()

    def on_epoch_end(self) -> None:
        self.scale = self.policy.scale


class Grows(keras.callbacks.Callback):
    """Keeps the policies that it has left behind."""

    def __init__(self, data: Scaled) -> None:
        super().__init__()
        self.data, self.policies = data, list[Any]()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.policies.append(self.data.policy)
        self.data.policy = self.data.policy._replace(scale=0.5 * self.data.policy.scale)


@pytest.mark.slow  # complete fits
def test_objects_of_a_class_that_only_the_input_has_come_back_in_a_callback(tmp_path: Path) -> None:
    def run(*callbacks: Any) -> keras.Model:
        model, data = tiny.model(), Scaled()
        tiny.fit(model, None, [Grows(data), *callbacks], x=data)
        return model

    assert not tiny.resumes(tmp_path, run=run, at=(2, 2), expects=None).restored.notes

"""Models that only their first step builds: training starts, and resumes, as with models that are built."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import KERAS, tiny

Make = Callable[[], keras.Model]


class Subclassed(keras.Model):
    """As in the guide on making layers and models by subclassing."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop = keras.layers.Dense(7, "relu"), keras.layers.Dropout(0.3)
        self.end = keras.layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.end(self.drop(self.hidden(x), training=training))


class TrainsItself(keras.Model):
    """Has no `call`; counts in Python, and makes a variable, where it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.end, self.traces = keras.layers.Dense(7, "relu"), keras.layers.Dense(1), 0
        self.average: Any = None

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.traces += 1
        if self.average is None:
            self.average = self.add_weight(name="average", shape=(), trainable=False, initializer="ones")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.end(self.hidden(x)) - y) ** 2) * self.traces * self.average
        self.average.assign(0.9 * self.average + 0.1 * loss)
        weights = self.hidden.trainable_variables + self.end.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Reads(Subclassed):
    """Its step can only be run: it reads values."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        scale = 1.0 + float(np.mean(x.numpy()))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2) * scale
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True)
        )
        return {"loss": loss}


class ReadsInCall(Subclassed):
    """Can only be run."""

    def call(self, x: Any, training: bool = False) -> Any:
        return super().call(x * (1.0 + float(np.mean(x.numpy()))), training=training)


class BuiltInName(Subclassed):
    """Has a variable of its own, so that Keras takes it for built when `build()` is called, which builds no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.add_weight(shape=(), initializer="ones")
        build(self)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.scale * super().call(x, training=training)


class StepsOnly(keras.Model):
    """Its `call()` is never used, so that its own `build()` builds no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = keras.Sequential([keras.layers.Dense(5, activation="relu"), keras.layers.Dense(3)])
        self.head = keras.layers.Dense(1)
        build(self)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self.head(self.body(x)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def build(model: keras.Model) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras' own about what that does not build
        model.build((None, 6))


class Projection(keras.layers.Layer):
    """Makes its parts when it is built."""

    def build(self, shape: Any) -> None:
        self.width = int(shape[-1])
        self.kernel = self.add_weight(shape=(self.width, 5))
        self.inner = keras.layers.Dense(3)
        self.inner.build((None, 5))

    def call(self, x: Any) -> Any:
        return self.inner(x @ self.kernel)


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01)


def sequential(*first: Any) -> keras.Model:
    last = [keras.layers.Dropout(0.3), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential([*first, keras.layers.Dense(7, "relu"), *last])


MODELS: dict[str, Make] = {
    "Sequential without Input": lambda: tiny.compiled(sequential, adam, metrics=["mae"]),
    "subclassed": lambda: tiny.compiled(Subclassed, adam),
    "without call": lambda: tiny.compiled(TrainsItself, adam, None),
    "layers made in build": lambda: tiny.compiled(lambda: sequential(Projection(), Projection()), adam),
    "with XLA": lambda: tiny.compiled(Subclassed, adam, jit_compile=True),
    "several steps per execution": lambda: tiny.compiled(sequential, adam, steps_per_execution=2),
    "eager": lambda: tiny.compiled(Subclassed, adam, run_eagerly=True),
    "built in name only": lambda: tiny.compiled(BuiltInName, adam),
    "eager, built in name only": lambda: tiny.compiled(BuiltInName, adam, run_eagerly=True),
    "eager, and reads values": lambda: tiny.compiled(Reads, adam, run_eagerly=True),
    "without call, built in name only": lambda: tiny.compiled(StepsOnly, adam),
}
NOT_RESUMED: dict[str, Make] = {
    "call reads values": lambda: tiny.compiled(ReadsInCall, adam, run_eagerly=True),
    "without call": lambda: tiny.compiled(TrainsItself, adam, None, run_eagerly=True),
    "without call, built in name only": lambda: tiny.compiled(StepsOnly, adam, run_eagerly=True),
}


def counting() -> list[Any]:
    return [tiny.CountSteps()]


@pytest.mark.parametrize("where", [(0, 4), (1, 2), (2, 0)], ids=["first epoch", "within", "between"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.in_gate(2)
def test_a_model_that_its_first_step_builds_resumes_exactly(name: str, where: tuple[int, int], tmp_path: Path) -> None:
    ended = tiny.resumes(tmp_path, MODELS[name], at=where, callbacks=counting, expects=None)
    # before Keras 3.11, callbacks are given the first step of an execution
    last_of_execution = where[1] + (name == "several steps per execution" and KERAS >= (3, 11))
    assert ended.callbacks[0].trained[0] == (where[0], last_of_execution)


@pytest.mark.finds("not-resumed")
@pytest.mark.parametrize("where", [(0, 4), (1, 2)], ids=["first epoch", "within"])
@pytest.mark.parametrize("name", NOT_RESUMED)
@pytest.mark.in_gate(3)
def test_an_eager_model_that_only_a_step_can_build_starts_over_and_says_why(
    name: str, where: tuple[int, int], tmp_path: Path
) -> None:
    make = NOT_RESUMED[name]
    tiny.interrupt(tmp_path / "backup", *where, built=make())
    steps = tiny.CountSteps()
    reason = r"cannot build it without running a step \(\w+: (?!None\b)\S.*\). To resume, give the model"
    restarted = rf"not exact: training starts from the beginning.*{reason}"
    with pytest.warns(RuntimeWarning, match=restarted):
        tiny.fit(make(), tmp_path / "backup", [steps])
    assert steps.trained[0] == (0, 0)


def test_nothing_is_saved_before_the_first_step(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path / "backup", 0, 0, built=MODELS["subclassed"](), options={"save_on_exception": True})
    assert list((tmp_path / "backup").glob("commits/*.json")) == []


def test_the_batch_that_built_an_eager_model_is_not_part_of_it(tmp_path: Path) -> None:
    """It is built from the shapes of batches of any size."""

    def make() -> keras.Model:
        return tiny.compiled(lambda: keras.Sequential([sequential(), keras.layers.Dense(1)]), adam, run_eagerly=True)

    assert tiny.resumes(tmp_path, make, expects=None).restored.notes == ()

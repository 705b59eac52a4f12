"""Models with a step of their own: several optimizers, one for a part of the weights, one that no one uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks.base.errors import BackupMismatchError
from tests.support import tiny

pytestmark = pytest.mark.slow  # complete fits


def network(name: str, outputs: int) -> keras.Sequential:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(outputs, name="dense")], name=name)


def adam(name: str) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.02, name=name)


class Two(keras.Model):
    """Two networks and no call(): no one but their own optimizers trains them, and Keras has one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = network("one", 1), network("two", 6)

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.one_optimizer, self.two_optimizer = adam("one_adam"), adam("two_adam")
        self.gap = keras.metrics.Mean(name="gap")

    @property
    def metrics(self) -> list[Any]:
        return [self.gap]

    def trained(self) -> list[Any]:
        return [(self.one_optimizer, self.one), (self.two_optimizer, self.two)]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            found = self.one(self.two(x))
            loss = tf.reduce_mean(tf.square(found - y))
        for optimizer, part in self.trained():
            optimizer.apply(tape.gradient(loss, part.trainable_variables), part.trainable_variables)
        self.gap.update_state(loss)
        return {"gap": self.gap.result()}


class Late(Two):
    """One of the optimizers makes its variables in the third step, and is used in each third one, as a WGAN's is."""

    calls = 0

    def trained(self) -> list[Any]:
        self.calls += 1
        return super().trained()[: 1 + (self.calls % 3 == 0)]


class ScalesLosses(Two):
    def compile(self, **options: Any) -> None:
        super().compile(**options)
        scaled = [keras.optimizers.LossScaleOptimizer(adam(name), 4.0) for name in ("one_adam", "two_adam")]
        self.one_optimizer, self.two_optimizer = scaled


class Part(Two):
    """Keras' optimizer trains one of the two."""

    def compile(self, **options: Any) -> None:
        keras.Model.compile(self, optimizer=adam("adam"), **options)
        self.gap = keras.metrics.Mean(name="gap")

    def call(self, x: Any) -> Any:
        return self.one(self.two(x))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.one(self.two(x)) - y))
        self.optimizer.apply(tape.gradient(loss, self.two.trainable_variables), self.two.trainable_variables)
        self.gap.update_state(loss)
        return {"gap": self.gap.result()}


class Scaled(Part):
    """What its input is normalized by is known in the first run alone, and is a constant of the trace."""

    def __init__(self, *, adapt: bool) -> None:
        super().__init__()
        self.scale = keras.layers.Normalization()
        self.scale.adapt(tiny.data()[0] * 3.0 + 2.0) if adapt else self.scale.build((None, 6))

    def train_step(self, data: Any) -> dict[str, Any]:
        return super().train_step((self.scale(data[0]), data[1]))


def fresh(kind: Callable[[], keras.Model], **options: Any) -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    model = kind()
    model.compile(**options)
    return model


def optimizers(model: keras.Model) -> list[Any]:
    return [getattr(model, name) for name in ("optimizer", "one_optimizer", "two_optimizer") if hasattr(model, name)]


def slots(model: keras.Model) -> dict[str, np.ndarray]:
    return {v.path: v.numpy() for optimizer in optimizers(model) for v in optimizer.variables}


def assert_same(ended: tiny.Ended) -> None:
    """Also of optimizers that Keras does not know."""
    tiny.assert_same(slots(ended.model), slots(ended.expected.model))


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("kind", [Two, Part, ScalesLosses])
def test_a_model_without_a_call_continues_with_its_own_optimizers(tmp_path: Path, kind: Any) -> None:
    assert_same(tiny.resumes(tmp_path, lambda: fresh(kind, jit_compile=False)))


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("kind", [Two, Part, Late, ScalesLosses])
def test_it_does_so_run_eagerly(tmp_path: Path, kind: Any) -> None:
    ended = tiny.resumes(tmp_path, lambda: fresh(kind, run_eagerly=True), expects=None)
    assert ended.restored.notes == ()
    assert_same(ended)


def test_the_optimizer_that_no_one_uses_stays_as_it_was(tmp_path: Path) -> None:
    assert not tiny.resumes(tmp_path, lambda: fresh(Two, jit_compile=False)).model.optimizer.built


@pytest.mark.finds("object-state")
def test_what_the_step_derives_from_restored_variables_is_not_that_of_its_first_trace(tmp_path: Path) -> None:
    first, again = (lambda a=adapts: fresh(lambda: Scaled(adapt=a), jit_compile=False) for adapts in (True, False))
    assert_same(tiny.resumes(tmp_path, first, again=again, expects=None))


@pytest.mark.finds("slots-new")
def test_an_optimizer_that_was_built_for_more_is_not_another_model(tmp_path: Path) -> None:
    def part() -> keras.Model:
        return fresh(Part, jit_compile=False)

    def built_for_more() -> keras.Model:
        model = part()
        model.optimizer.build(model.trainable_variables)
        return model

    said = "the optimizer has variables now that the backup does not have"
    ended = tiny.resumes(tmp_path, part, again=built_for_more, expects="not exact", saying=said)
    reference = part()
    tiny.fit(reference, None)
    tiny.assert_same(ended.model.get_weights(), reference.get_weights())


def test_an_optimizer_that_has_trained_more_is_another_model(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 1, 2, built=fresh(Part, jit_compile=False))
    model = fresh(Part, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    model.optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables])
    with pytest.raises(BackupMismatchError, match="one_dense_kernel"):
        tiny.fit(model, tmp_path)


class LearnsItsScale(keras.Model):
    """Gives the optimizer a variable of TensorFlow's own, next to the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.end = keras.layers.Dense(1)
        self.scale = tf.Variable(1.0)

    def call(self, x: Any) -> Any:
        return self.end(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) * self.scale - y) ** 2)
        weights = [*self.trainable_variables, self.scale]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def test_an_eager_step_may_train_a_variable_of_tensorflow(tmp_path: Path) -> None:
    model = LearnsItsScale()
    model(tf.zeros((1, 6)))
    model.compile(keras.optimizers.Adam(0.01), run_eagerly=True)
    tiny.fit(model, tmp_path)
    assert float(model.scale) != 1.0

"""TensorFlow's own random operations in a loop of the user's: their state is in kernels, and no backup has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import tiny
from tests.support.callback_helpers import memory_url


class Parts:
    """A model, and what trains it."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(7)
        self.model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        self.optimizer = keras.optimizers.SGD(0.1)
        self.model.compile(self.optimizer, "mse")
        self.optimizer.build(self.model.trainable_variables)
        self.dataset = tf.data.Dataset.range(4).map(lambda x: tf.fill([3, 2], tf.cast(x, tf.float32)))

    def descend(self, x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x) - 1.0) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables), self.model.trainable_variables)

    def run(self, directory: Path | None, step: Callable[[Any], None], stop: tuple[int, int] | None) -> Any:
        with kdc.Checkpointer(
            directory or memory_url(),
            model=self.model,
            optimizer=self.optimizer,
            save_freq=1,
            write_options=kdc.WriteOptions(when_busy="wait"),
        ) as checkpointer:
            checkpointer.restore()
            for epoch in checkpointer.epochs(2):
                for x in checkpointer.batches(self.dataset):
                    if (epoch, checkpointer.batch) == stop:
                        raise tiny.Stop
                    step(x)
                    checkpointer.step()
        return self.model.get_weights()[0]


def _noise(x: Any) -> Any:
    return x + tf.random.normal(tf.shape(x))


def in_function(parts: Parts) -> Callable[[Any], None]:
    return tf.function(lambda x: parts.descend(_noise(x)))


def in_an_inner_function(parts: Parts) -> Callable[[Any], None]:
    noise = tf.function(_noise)
    return tf.function(lambda x: parts.descend(noise(x)))


def in_a_replica(parts: Parts) -> Callable[[Any], None]:
    strategy = parts.model.distribute_strategy
    return tf.function(lambda x: strategy.run(parts.descend, (tf.nn.dropout(x, 0.5),)))


def in_train_on_batch(parts: Parts) -> Callable[[Any], None]:
    class Noise(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return _noise(x)

    parts.model = keras.Sequential([keras.Input((2,)), Noise(), *parts.model.layers])
    parts.model.compile(parts.optimizer, "mse")
    return lambda x: parts.model.train_on_batch(x, np.ones((3, 1), "float32"))


def beside_the_step(parts: Parts) -> Callable[[Any], None]:
    noise = tf.function(_noise)
    return lambda x: parts.descend(noise(x))


def eagerly(parts: Parts) -> Callable[[Any], None]:
    return lambda x: parts.descend(_noise(x))


def by_keras(parts: Parts) -> Callable[[Any], None]:
    return tf.function(lambda x: parts.descend(x + keras.random.normal((3, 2))))


def stateless(parts: Parts) -> Callable[[Any], None]:
    def step(x: Any) -> None:
        parts.descend(x + tf.random.stateless_normal([3, 2], (1, parts.optimizer.iterations.value)))

    return tf.function(step)


def in_the_input(parts: Parts) -> Callable[[Any], None]:
    inner = tf.function(_noise)
    parts.dataset = parts.dataset.map(_noise).map(lambda x: inner(x))
    return tf.function(parts.descend)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [in_function, in_an_inner_function, in_a_replica, in_train_on_batch], ids=lambda make: make.__name__
)
@pytest.mark.in_gate(2)
@pytest.mark.finds("step-random")
def test_a_step_that_draws_by_tensorflow_is_not_exact(
    tmp_path: Path, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _script(make)
    with pytest.warns(RuntimeWarning, match="draws random numbers by TensorFlow's Random"):
        found = tiny.script_resumes(tmp_path, run, (1, 1), alike=False)
    assert not np.array_equal(found, run(None, None))
    assert "not exact" in capsys.readouterr().out


@pytest.mark.finds("function-random")
def test_a_function_beside_the_step_that_draws_is_a_condition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.script_resumes(tmp_path, _script(beside_the_step), (1, 1), alike=False)
    said = capsys.readouterr().out
    assert "training does not depend on the random numbers that the tf.function _noise draws by TensorFlow's" in said
    assert "not exact" not in said


@pytest.mark.slow
@pytest.mark.parametrize("make", [eagerly, by_keras, stateless, in_the_input], ids=lambda make: make.__name__)
@pytest.mark.in_gate(2)
def test_other_random_numbers_are_as_in_a_run_without_a_restart(
    tmp_path: Path, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.script_resumes(tmp_path, _script(make), (1, 1))
    assert "exact if" in (said := capsys.readouterr().out)
    assert "not exact" not in said


def _script(make: Any) -> Callable[..., Any]:
    def run(directory: Path | None, stop: tuple[int, int] | None) -> Any:
        parts = Parts()
        return parts.run(directory, make(parts), stop)

    return run

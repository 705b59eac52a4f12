"""What `make_or_restore_model` does with the state of optimizers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupMismatchError
from tests.support import tiny

ROWS = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")
ENDINGS = (".keras", ".weights.h5")


def checkpoint(directory: Path, ending: str) -> kdc.ModelCheckpoint:
    return kdc.ModelCheckpoint(directory / f"m{ending}", save_weights_only=ending == ".weights.h5")


class Adversaries(keras.Model):
    """Two networks, each with an optimizer; that of `compile()` is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.g = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        self.d = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        self.built = True

    def compile(self, g_optimizer: Any, d_optimizer: Any) -> None:
        super().compile()
        self.g_optimizer, self.d_optimizer = g_optimizer, d_optimizer

    def call(self, x: Any) -> Any:
        return self.d(x)

    def train_step(self, real: Any) -> dict[str, Any]:
        noise = tf.random.stateless_normal((32, 4), (1, 2))
        for optimizer, part, sign in ((self.d_optimizer, self.d, 1.0), (self.g_optimizer, self.g, -1.0)):
            with tf.GradientTape() as tape:
                loss = sign * (tf.reduce_mean(self.d(self.g(noise))) - tf.reduce_mean(self.d(real) ** 2))
            optimizer.apply(tape.gradient(loss, part.trainable_weights), part.trainable_weights)
        return {"loss": loss}


def adversaries() -> Adversaries:
    keras.utils.set_random_seed(1)
    model = Adversaries()
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.RMSprop(1e-3))
    return model


def train(model: keras.Model, epochs: int, *callbacks: Any) -> keras.Model:
    model.fit(ROWS, epochs=epochs, batch_size=32, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_model_with_two_optimizers_continues_as_if_it_had_not_ended(tmp_path: Path, ending: str) -> None:
    whole = train(adversaries(), 3)
    train(adversaries(), 1, checkpoint(tmp_path, ending))
    model = kdc.make_or_restore_model(adversaries, tmp_path)
    origin = kdc.restored_from(model)
    assert origin is not None
    assert (origin.step, int(model.g_optimizer.iterations), model.optimizer.built) == (2, 2, False)
    train(model, 2)
    parts = ("g", "d", "g_optimizer", "d_optimizer")
    tiny.assert_same(*([v.numpy() for part in parts for v in getattr(m, part).variables] for m in (model, whole)))


def dense(*, trainable: bool) -> keras.Model:
    base = keras.layers.Dense(8, name="base", trainable=trainable)
    model = keras.Sequential([keras.Input((8,)), base, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_optimizer_for_other_weights_is_an_error_that_names_it_and_the_way_on(tmp_path: Path, ending: str) -> None:
    callback = checkpoint(tmp_path, ending)
    dense(trainable=False).fit(ROWS, ROWS[:, :1], verbose=0, callbacks=[callback])
    with pytest.raises(BackupMismatchError, match=r"Adam .* saved with 6 variables and has 10 now.*weights_only=True"):
        kdc.make_or_restore_model(lambda: dense(trainable=True), tmp_path)


def compiled(optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "optimizer", [lambda: keras.optimizers.Adam(0.02), lambda: keras.optimizers.SGD(0.3, momentum=0.9)]
)
def test_with_weights_only_the_optimizer_is_the_new_one_in_its_initial_state(
    tmp_path: Path, ending: str, optimizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = compiled(keras.optimizers.Adam(0.01))
    trained.fit(ROWS, ROWS[:, :1], epochs=2, batch_size=32, verbose=0, callbacks=[checkpoint(tmp_path, ending)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "not exact: .*the model of build_fn differs")  # its optimizer
        model = kdc.make_or_restore_model(lambda: compiled(optimizer()), tmp_path, weights_only=True)
    by_hand = compiled(optimizer())
    by_hand.set_weights(trained.get_weights())
    origin = kdc.restored_from(model)
    assert origin is not None
    assert (origin.epoch, origin.step, origin.verdict) == (2, 4, "not exact")
    codes = {finding.code for finding in origin.findings}
    assert {"checkpoint", "new-optimizer"} <= codes <= {"checkpoint", "new-optimizer", "model-differs"}
    assert "not exact: the optimizer starts from its initial state; weights restored from" in capsys.readouterr().out
    for one in (model, by_hand):
        assert int(one.optimizer.iterations) == 0
        one.fit(ROWS, ROWS[:, :1], epochs=2, batch_size=32, shuffle=False, verbose=0)
    tiny.assert_same(tiny.values(model), tiny.values(by_hand))


class Slow(keras.optimizers.Adam):
    """Copies the weights in `build()`, which the first step calls."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.slow = [tf.Variable(v.value, trainable=False) for v in variables]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        result = super().apply(grads, trainable_variables)
        for slow, variable in zip(self.slow, self._trainable_variables, strict=True):
            slow.assign(slow + 0.5 * (variable - slow))
            variable.assign(slow)
        return result


def slow() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(Slow(0.01), "mse")
    return model


def test_an_optimizer_that_copies_the_weights_when_it_is_built_is_resumed(tmp_path: Path) -> None:
    def fit(epochs: int, *callbacks: Any) -> list[Any]:
        model = slow()
        model.fit(ROWS, ROWS[:, :1], epochs=epochs, batch_size=32, verbose=0, callbacks=list(callbacks))
        return model.get_weights()

    fit(2, kdc.BackupAndRestore(tmp_path, delete_checkpoint=False))
    resumed = fit(4, kdc.BackupAndRestore(tmp_path, delete_checkpoint=False))
    tiny.assert_same(resumed, fit(4))

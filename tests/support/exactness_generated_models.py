"""Models and callbacks of generated cases."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tests.support.exactness_callbacks import (
    Anneals,
    AveragesInArray,
    CountsInDict,
    DrawsOfItsOwn,
    KeepsNothing,
    ListsLosses,
    LowersByGlobalNumpy,
    LowersEachThird,
    annealed,
)
from tests.support.exactness_case import dense
from tests.support.exactness_models import (
    CountsInPython,
    Noise,
    RisingLoss,
    Stepping,
    adversaries,
    averaged,
    compiled,
    drop,
    mix,
    normalized,
)

Callbacks = Callable[[], list[Any]]


@dataclass(frozen=True)
class Model:
    """A model that a case may train.

    Attributes:
        build: Builds and compiles it; gets the size of the batches.
        loss: The name under which it reports its loss.
        mirrored: Whether it can be trained by two replicas.
        evaluates: Whether it takes validation data.
        full_batches: Whether it takes batches of one size alone.
        callbacks: What belongs to it.
        resumed: What is otherwise in the resumed run.
    """

    build: Callable[[int], keras.Model]
    loss: str = "loss"
    mirrored: bool = False
    evaluates: bool = True
    full_batches: bool = False
    callbacks: Callbacks = list
    resumed: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def recurrent(kind: type, size: int | None, **options: Any) -> keras.Model:
    first = keras.Input((6,)) if size is None else keras.Input(batch_shape=(size, 6))
    layers = [keras.layers.Reshape((3, 2)), kind(4, **options), keras.layers.Dense(1, activation="sigmoid")]
    model = keras.Sequential([first, *layers])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy", jit_compile=False)
    return model


def same(x: Any, y: Any) -> tuple[Any, Any]:
    return x, y


class CountsInVariable(keras.layers.Layer):
    """A variable that no attribute of Keras tracks: a closure holds it."""

    def __init__(self) -> None:
        super().__init__()
        calls = tf.Variable(0.0, trainable=False)
        self.calls = lambda: calls

    def call(self, x: Any) -> Any:
        return x * (1.0 + 0.1 * tf.sin(self.calls().assign_add(1.0)))


MODELS: dict[str, Model] = {
    "dense": Model(lambda size: dense(), mirrored=True),
    "dense, AUC": Model(lambda size: dense(weighted_metrics=["AUC"]), mirrored=True),
    "dense, eagerly": Model(lambda size: dense(run_eagerly=True)),
    "BatchNormalization": Model(lambda size: dense(inside=(keras.layers.BatchNormalization(),)), mirrored=True),
    "train_step": Model(lambda size: compiled(Stepping(same))),
    "train_step with tf.nn.dropout": Model(lambda size: compiled(Stepping(drop))),
    "train_step with tf.random.shuffle, eagerly": Model(lambda size: compiled(Stepping(mix), run_eagerly=True)),
    "train_step that counts, eagerly": Model(lambda size: compiled(CountsInPython(), run_eagerly=True)),
    "two optimizers": Model(lambda size: adversaries(), loss="maker", evaluates=False),
    "EMA": Model(lambda size: dense(averaged()), mirrored=True),
    "EMA that is swapped": Model(
        lambda size: dense(averaged()), callbacks=lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
    ),
    "accumulation": Model(lambda size: dense(keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2))),
    "loss scaling": Model(
        lambda size: dense(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=3))
    ),
    "LSTM": Model(lambda size: recurrent(keras.layers.LSTM, None, dropout=0.2), mirrored=True),
    "stateful LSTM": Model(lambda size: recurrent(keras.layers.LSTM, size, stateful=True), full_batches=True),
    "stateful GRU": Model(
        lambda size: recurrent(keras.layers.GRU, size, stateful=True, recurrent_dropout=0.2), full_batches=True
    ),
    "variable in the loss": Model(lambda size: dense(loss=RisingLoss())),
    "variable in the loss, by a callback": Model(lambda size: annealed(), mirrored=True, callbacks=lambda: [Anneals()]),
    "hidden variable in a layer": Model(lambda size: dense(inside=(CountsInVariable(),))),
    "Normalization adapted once": Model(
        lambda size: normalized(adapt=True), resumed={"model": lambda: normalized(adapt=False)}
    ),
    "tf.random": Model(lambda size: dense(inside=(Noise(),)), mirrored=True),
    "tf.random, eagerly": Model(lambda size: dense(inside=(Noise(),), run_eagerly=True)),
}
PLAIN = ["dense"] * 8 + ["BatchNormalization"] * 3 + ["train_step"] * 2


def model(rng: random.Random, *, mirrored: bool) -> str:
    """Draws one; often a plain one, so that much else is called exact."""
    able = [name for name in [*PLAIN, *MODELS] if MODELS[name].mirrored or not mirrored]
    return rng.choice(able)


CALLBACKS: dict[str, Callable[[str], list[Any]]] = {
    "EarlyStopping": lambda loss: [
        keras.callbacks.EarlyStopping(loss, mode="min", patience=9, restore_best_weights=True)
    ],
    "ReduceLROnPlateau": lambda loss: [
        keras.callbacks.ReduceLROnPlateau(loss, mode="min", patience=1, factor=0.5, min_delta=0.02)
    ],
    "LearningRateScheduler": lambda loss: [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)],
    "counter": lambda loss: [LowersEachThird()],
    "list": lambda loss: [ListsLosses()] if loss == "loss" else [],
    "dict": lambda loss: [CountsInDict()],
    "array": lambda loss: [AveragesInArray()] if loss == "loss" else [],
    "own generator": lambda loss: [DrawsOfItsOwn()],
    "np.random": lambda loss: [LowersByGlobalNumpy()],
    "no state": lambda loss: [KeepsNothing()],
}
SEEN = ["EarlyStopping", "ReduceLROnPlateau", "LearningRateScheduler", "np.random", "no state"]


def callbacks(rng: random.Random, chosen: Model) -> tuple[str, Callbacks]:
    """Draws none, one or two; those with a state that cannot be inspected less often."""
    names = [rng.choice([*SEEN, *SEEN, *CALLBACKS]) for _ in range(rng.choice([0, 0, 1, 1, 2]))]

    def make() -> list[Any]:
        return [*chosen.callbacks(), *(callback for name in names for callback in CALLBACKS[name](chosen.loss))]

    return ", ".join(names) or "none", make

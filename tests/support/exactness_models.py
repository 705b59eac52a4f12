"""Models with state that is not among their variables, or where no one looks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support import tiny
from tests.support.exactness_case import EVERYWHERE, Arguments, Case, dense

RANDOM = r"(?i)random"


class Noise(keras.layers.Layer):
    """As in many an example: the random numbers are TensorFlow's, not those of a SeedGenerator."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + tf.random.normal(tf.shape(x), stddev=0.3) if training else x


class Stepping(keras.Model):
    """Trains by a step of its own; `change` gets the batch first."""

    def __init__(self, change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(7, "relu"), keras.layers.Dense(1, "sigmoid")
        self.change = change

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.hidden(x))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = self.change(*data)
        with tf.GradientTape() as tape:
            loss = self.factor() * self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}

    def factor(self) -> Any:
        return 1.0


class CountsInPython(Stepping):
    def __init__(self) -> None:
        super().__init__(lambda x, y: (x, y))
        self.batches_seen = 0

    def factor(self) -> Any:
        self.batches_seen += 1
        return 1.0 + 0.1 * self.batches_seen


class CountsItsCalls(keras.optimizers.schedules.LearningRateSchedule):
    """A request for the optimizer's rate changes the rate."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: Any) -> Any:
        self.calls += 1
        return 0.1 * 0.9**self.calls

    def get_config(self) -> dict[str, Any]:
        return {}


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    model.build((None, 6))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy", **options)
    return model


def drop(x: Any, y: Any) -> tuple[Any, Any]:
    return tf.nn.dropout(x, 0.3), y


def mix(x: Any, y: Any) -> tuple[Any, Any]:
    return 0.8 * x + 0.2 * tf.random.shuffle(x), y


class Adversaries(keras.Model):
    """Two networks, each with an optimizer; Keras knows of one of these."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential([keras.Input((6,)), keras.layers.Dense(7, "relu"), keras.layers.Dense(1)])
        self.maker = keras.Sequential([keras.Input((3,)), keras.layers.Dense(7, "relu"), keras.layers.Dense(6)])
        self.seeds = keras.random.SeedGenerator(5)

    def compile(self, critic_optimizer: Any, maker_optimizer: Any) -> None:
        super().compile(optimizer=maker_optimizer)
        self.critic_optimizer = critic_optimizer

    def call(self, x: Any) -> Any:
        return self.critic(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        real, _ = data
        noise = keras.random.normal((tiny.BATCH, 3), seed=self.seeds)
        with tf.GradientTape() as tape:
            gap = tf.reduce_mean(tf.nn.softplus(self.critic(self.maker(noise))))
            gap += tf.reduce_mean(tf.nn.softplus(-self.critic(real)))
        variables = self.critic.trainable_variables
        self.critic_optimizer.apply(tape.gradient(gap, variables), variables)
        with tf.GradientTape() as tape:
            fooled = tf.reduce_mean(tf.nn.softplus(-self.critic(self.maker(noise))))
        variables = self.maker.trainable_variables
        self.optimizer.apply(tape.gradient(fooled, variables), variables)
        return {"critic": gap, "maker": fooled}


def adversaries(rate: float = 0.02) -> keras.Model:
    model = Adversaries()
    model.build((None, 6))
    model.compile(keras.optimizers.Adam(0.01, name="critic_adam"), keras.optimizers.Adam(rate, name="maker_adam"))
    return model


def unbuilt() -> keras.Model:
    layers = [keras.layers.Dense(7, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return model


class RisingLoss(keras.losses.Loss):
    def __init__(self) -> None:
        super().__init__()
        self.level = tf.Variable(1.0, trainable=False)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.level.assign_add(0.1) * tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


def stateful_lstm() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(tiny.BATCH, 3, 2)),
            keras.layers.LSTM(4, stateful=True),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy")
    return model


def sequences(model: keras.Model) -> Arguments:
    return {"x": tiny.shuffled().map(lambda x, y: (tf.reshape(x, (-1, 3, 2)), y))}


def averaged(**options: Any) -> Any:
    return keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9, **options)


def normalized(*, adapt: bool) -> keras.Model:
    layer = keras.layers.Normalization()
    if adapt:
        layer.adapt(tiny.data()[0] * 3.0 + 2.0)
    model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(7, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def normalized_rows(model: keras.Model) -> Arguments:
    layer = keras.layers.Normalization()
    layer.adapt(tiny.data()[0])
    return {"x": tiny.shuffled().map(lambda x, y: (layer(x), y))}


def discretized(model: keras.Model) -> Arguments:
    layer = keras.layers.Discretization(num_bins=5)
    layer.adapt(tiny.data()[0])
    return {"x": tiny.shuffled().map(lambda x, y: (tf.cast(layer(x), tf.float32), y))}


def texts(model: keras.Model) -> Arguments:
    words = np.array(["good", "bad", "day", "night", "red", "blue"])
    lines = [" ".join(words[row > 0]) or "none" for row in tiny.data()[0]]
    layer = keras.layers.TextVectorization(max_tokens=9, output_sequence_length=6)
    layer.adapt(lines)
    rows = tf.data.Dataset.from_tensor_slices((lines, tiny.data()[1])).shuffle(tiny.ROWS, seed=3)
    return {"x": rows.batch(tiny.BATCH).map(lambda x, y: (tf.cast(layer(x), tf.float32), y))}


def _each_way(name: str, make: Callable[..., keras.Model], **options: Any) -> dict[str, Case]:
    """Traced, the random numbers' position is in the kernel; run eagerly, it is in the saved state."""
    return {
        name: Case("not exact", model=lambda: make(), says=RANDOM, **options),
        f"{name}, with XLA": Case("not exact", model=lambda: make(jit_compile=True), says=RANDOM),
        f"{name}, run eagerly": Case("exact", model=lambda: make(run_eagerly=True)),
    }


def words(model: keras.Model) -> dict[str, Any]:
    """Enough of them in each batch for several threads."""
    found = np.random.default_rng(5).integers(0, 300, (tiny.ROWS, 2048))
    return {"x": found.astype("int32"), "y": tiny.data()[1], "batch_size": tiny.BATCH}


def embedded(optimizer: Any) -> keras.Model:
    layers = keras.layers
    model = keras.Sequential([keras.Input((2048,)), layers.Embedding(300, 32), layers.GlobalAveragePooling1D()])
    model.add(layers.Dense(1))
    model.compile(optimizer, "mse")
    return model


MODEL_CASES: dict[str, Case] = {
    "large Embedding": Case("exact", words, lambda: embedded("adam")),
    "large Embedding with sparse updates": Case(
        "exact if", words, lambda: embedded(keras.optimizers.SGD(0.1)), says="enable_op_determinism"
    ),
    **_each_way("tf.random in a layer", lambda **options: dense(inside=(Noise(),), **options), strategies=EVERYWHERE),
    **_each_way("tf.nn.dropout in a train_step", lambda **options: compiled(Stepping(drop), **options)),
    **_each_way("tf.random.shuffle in a train_step", lambda **options: compiled(Stepping(mix), **options)),
    "train_step of one's own": Case("exact", model=lambda: compiled(Stepping(lambda x, y: (x, y)))),
    "Python attribute that a train_step counts up": Case(
        "exact", model=lambda: compiled(CountsInPython(), run_eagerly=True)
    ),
    "schedule that counts its calls, run eagerly": Case(
        "exact", model=lambda: dense(keras.optimizers.SGD(CountsItsCalls(), momentum=0.9), run_eagerly=True)
    ),
    "Sequential without Input": Case("exact", model=unbuilt, strategies=EVERYWHERE),
    "variable in a loss": Case("exact", model=lambda: dense(loss=RisingLoss())),
    "second optimizer": Case("exact", model=adversaries),
    "stateful LSTM": Case("exact", sequences, stateful_lstm),
    "averages of the optimizer": Case("exact", model=lambda: dense(averaged()), strategies=EVERYWHERE),
    "accumulated gradients": Case(
        "exact", model=lambda: dense(keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2))
    ),
    "loss scaling": Case(
        "exact",
        model=lambda: dense(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=3)),
    ),
    "nested optimizers": Case(
        "exact",
        model=lambda: dense(
            keras.optimizers.LossScaleOptimizer(averaged(gradient_accumulation_steps=2), dynamic_growth_steps=3)
        ),
    ),
    "Normalization adapted in both runs": Case("exact", model=lambda: normalized(adapt=True)),
    "Normalization adapted in the first run alone": Case(
        "exact",
        model=lambda: normalized(adapt=True),
        resumed={"model": lambda: normalized(adapt=False)},
    ),
    "Normalization in a map": Case("exact", normalized_rows),
    "Discretization in a map": Case("exact", discretized),
    "TextVectorization in a map": Case("exact", texts),
}

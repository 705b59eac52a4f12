"""Models that only their first step builds, killed in the first epoch and later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.support.exactness_case import EVERYWHERE, Case


def layers() -> list[Any]:
    normalized = [keras.layers.Dense(7), keras.layers.BatchNormalization(), keras.layers.Activation("relu")]
    return [*normalized, keras.layers.Dropout(0.3), keras.layers.Dense(1, activation="sigmoid")]


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.parts = layers()

    def call(self, x: Any, training: bool = False) -> Any:
        for part in self.parts:
            takes_training = isinstance(part, keras.layers.BatchNormalization | keras.layers.Dropout)
            x = part(x, training=training) if takes_training else part(x)
        return x


class Steps(Subclassed):
    """With a `train_step` and a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="loss")

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, self(x, training=True)))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


def compiled(make: Callable[[], keras.Model], **options: Any) -> Callable[[], keras.Model]:
    def model() -> keras.Model:
        made = make()
        made.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", **options)
        return made

    return model


_KINDS = {
    "Sequential": compiled(lambda: keras.Sequential(layers()), metrics=["accuracy"]),
    "subclassed": compiled(Subclassed, metrics=["accuracy"]),
    "train_step": compiled(Steps),
    "run_eagerly": compiled(Subclassed, run_eagerly=True),
    "jit_compile": compiled(Subclassed, jit_compile=True),
    "steps_per_execution": compiled(Subclassed, steps_per_execution=2),
}
_NOT_WITH_REPLICAS = {"steps_per_execution"}  # Keras itself fails, also without this package
UNBUILT_CASES: dict[str, Case] = {
    f"not built: {kind}, killed in epoch {epoch}": Case(
        "exact", model=model, strategies=EVERYWHERE if kind not in _NOT_WITH_REPLICAS else ("default",), epoch=epoch
    )
    for kind, model in _KINDS.items()
    for epoch in (0, 1)
}

"""What the examples of Keras give to Keras' own step: an optimizer, a layer, a callback or an input of one's own."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.support import tiny
from tests.support.exactness_averaged import copied, follow
from tests.support.exactness_case import Arguments, Case
from tests.support.exactness_pairs import CLASSES, PIXELS, REPLICAS, batched, digits, labelled, network
from tests.support.exactness_trainers import logits, with_adam


def classifier(**options: Any) -> keras.Model:
    return with_adam(network(PIXELS, CLASSES, name="classifier"), loss=logits(), metrics=["accuracy"], **options)


class LogisticEndpoint(layers.Layer):
    """The loss and the metric are the last layer's own."""

    def __init__(self) -> None:
        super().__init__(name="predictions")
        self.loss_fn = logits()
        self.accuracy_metric = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    def call(self, inputs: Any) -> Any:
        targets, seen = inputs
        self.add_loss(self.loss_fn(targets, seen))
        self.accuracy_metric.update_state(targets, seen)
        return ops.softmax(seen)


def endpoint() -> keras.Model:
    x, targets = keras.Input((PIXELS,), name="inputs"), keras.Input((), dtype="int32", name="targets")
    return with_adam(keras.Model([x, targets], LogisticEndpoint()([targets, layers.Dense(CLASSES)(x)])))


def named(model: keras.Model) -> Arguments:
    return {"x": batched(*digits()).map(lambda x, y: {"inputs": x, "targets": y})}


class Centralized(keras.optimizers.RMSprop):
    """Takes the mean out of each gradient."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        centred = [g - ops.mean(g, axis=0, keepdims=True) if len(g.shape) > 1 else g for g in grads]
        return super().apply(centred, trainable_variables)


def centralized() -> keras.Model:
    model = network(PIXELS, CLASSES, name="classifier")
    model.compile(Centralized(0.01), logits(), metrics=["accuracy"])
    return model


def beta(count: Any, concentration: float) -> Any:
    one, other = (tf.random.gamma((count,), concentration) for _ in range(2))
    return one / (one + other)


def mixed_up(**options: Any) -> Arguments:
    """MixUp: pairs of images of two shuffled datasets, as in the example, with random numbers in the map."""

    def mix(one: Any, other: Any) -> tuple[Any, Any]:
        share = beta(tiny.BATCH, 0.2)[:, None]
        return one[0] * share + other[0] * (1 - share), one[1] * share + other[1] * (1 - share)

    x, y = digits()
    told = np.eye(CLASSES, dtype="float32")[y]
    return {"x": tf.data.Dataset.zip((batched(x, told), batched(x, told))).map(mix, **options)}


def cut_out(model: keras.Model) -> Arguments:
    """CutMix: a part of another image is put into each."""

    def cut(one: Any, other: Any) -> tuple[Any, Any]:
        begin = tf.random.uniform((), 0, PIXELS // 2, tf.int32)
        inside = tf.range(PIXELS)
        kept = tf.cast((inside < begin) | (inside >= begin + PIXELS // 2), tf.float32)
        return one[0] * kept + other[0] * (1 - kept), 0.5 * one[1] + 0.5 * other[1]

    x, y = digits()
    told = np.eye(CLASSES, dtype="float32")[y]
    return {"x": tf.data.Dataset.zip((batched(x, told), batched(x, told))).map(cut)}


def soft_classifier() -> keras.Model:
    model = network(PIXELS, CLASSES, name="classifier")
    return with_adam(model, loss=keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])


class EMA(keras.callbacks.Callback):
    """Keeps an averaged copy of the model, and validates with it at the end."""

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.averaged = copied(model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        follow(self.averaged, self.model)

    def on_train_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.averaged.get_weights())


PART_CASES: dict[str, Case] = {
    "keras.io: endpoint layer": Case("exact", named, endpoint, strategies=REPLICAS),
    "keras.io: gradient centralization": Case("exact", labelled, centralized),
    "keras.io: MixUp": Case("exact", lambda model: mixed_up(), soft_classifier),
    "keras.io: MixUp, in parallel calls": Case(  # as the example has it; two uninterrupted runs differ too
        "not exact", lambda model: mixed_up(num_parallel_calls=tf.data.AUTOTUNE), soft_classifier, says="parallel"
    ),
    "keras.io: CutMix": Case("exact", cut_out, soft_classifier),
    "keras.io: averages kept by a callback": Case("exact", labelled, classifier, lambda: [EMA()]),
}

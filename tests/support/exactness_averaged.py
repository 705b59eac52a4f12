"""Networks that follow others, queues and diffusion, as the examples of Keras write them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.support import tiny
from tests.support.exactness_case import Arguments, Case
from tests.support.exactness_pairs import (
    CLASSES,
    PIXELS,
    REPLICAS,
    batched,
    descend,
    digits,
    labelled,
    network,
    pictures,
)
from tests.support.exactness_trainers import logits, with_adam

WIDTH = 6


def follow(target: Any, online: Any, share: float = 0.9) -> None:
    for theirs, ours in zip(target.weights, online.weights, strict=True):
        theirs.assign(share * theirs + (1 - share) * ours)


def copied(model: Any) -> Any:
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    return twin


def unit(x: Any) -> Any:
    return ops.normalize(x, axis=1)


def augmenter(name: str) -> keras.Sequential:
    """Random layers in the model, whose seeds are variables of it."""
    return network(PIXELS, PIXELS, layers.GaussianNoise(0.2), layers.Dropout(0.1), name=name)


class SimSiam(keras.Model):
    """Two views of one image are to be recognised as one. Without a call()."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.predictor = network(PIXELS, WIDTH, name="encoder"), network(WIDTH, WIDTH, name="predictor")
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        one, two = data
        with tf.GradientTape() as tape:
            z1, z2 = self.encoder(one), self.encoder(two)
            p1, p2 = unit(self.predictor(z1)), unit(self.predictor(z2))
            loss = -ops.mean(p1 * unit(ops.stop_gradient(z2))) - ops.mean(p2 * unit(ops.stop_gradient(z1)))
        learned = [*self.encoder.trainable_variables, *self.predictor.trainable_variables]
        descend(self.optimizer, tape, loss, learned)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


def two_views(model: keras.Model) -> Arguments:
    """Two datasets of one seed's order, each with a random map."""

    def view(x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x), stddev=0.2)

    return {"x": tf.data.Dataset.zip((batched(digits()[0]).map(view), batched(digits()[0]).map(view)))}


class SimCLR(keras.Model):
    """Two optimizers, a probe that is trained next to, and an unused optimizer of Keras'. Without a call()."""

    def __init__(self) -> None:
        super().__init__()
        self.augmenter, self.encoder = augmenter("augmenter"), network(PIXELS, WIDTH, name="encoder")
        self.projection_head = network(WIDTH, WIDTH, name="projection_head")
        self.linear_probe = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(CLASSES)], name="linear_probe")

    def compile(self, contrastive_optimizer: Any, probe_optimizer: Any, **options: Any) -> None:
        super().compile(**options)
        self.contrastive_optimizer, self.probe_optimizer = contrastive_optimizer, probe_optimizer
        self.probe_loss = logits()
        self.contrastive_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self) -> list[Any]:
        return [self.contrastive_accuracy, self.probe_accuracy]

    def contrast(self, one: Any, two: Any) -> Any:
        return self.matched(one, two)

    def matched(self, one: Any, two: Any) -> Any:
        alike = ops.matmul(unit(one), ops.transpose(unit(two))) / 0.1
        labels = ops.arange(tiny.BATCH)
        self.contrastive_accuracy.update_state(labels, alike)
        return ops.mean(keras.losses.sparse_categorical_crossentropy(labels, alike, from_logits=True))

    def train_step(self, data: Any) -> dict[str, Any]:
        images, labels = data
        with tf.GradientTape() as tape:
            views = [self.encoder(self.augmenter(images, training=True), training=True) for _ in range(2)]
            loss = self.contrast(*(self.projection_head(view, training=True) for view in views))
        learned = self.encoder.trainable_weights + self.projection_head.trainable_weights
        descend(self.contrastive_optimizer, tape, loss, learned)
        with tf.GradientTape() as tape:
            seen = self.linear_probe(self.encoder(images, training=False), training=True)
            probe_loss = self.probe_loss(labels, seen)
        descend(self.probe_optimizer, tape, probe_loss, self.linear_probe)
        self.probe_accuracy.update_state(labels, seen)
        return {"c_loss": loss, "p_loss": probe_loss, **{m.name: m.result() for m in self.metrics}}


class NNCLR(SimCLR):
    """What an image is compared with are its neighbours in a queue of features, a variable of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_queue = keras.Variable(
            unit(keras.random.normal((3 * tiny.BATCH, WIDTH), seed=4)), trainable=False, name="feature_queue"
        )

    def contrast(self, one: Any, two: Any) -> Any:
        nearest = ops.argmax(ops.matmul(unit(one), ops.transpose(self.feature_queue)), axis=1)
        loss = self.matched(ops.stop_gradient(ops.take(self.feature_queue, nearest, axis=0)), two)
        self.feature_queue.assign(ops.concatenate([unit(one), self.feature_queue[: -tiny.BATCH]], axis=0))
        return loss


def contrastive(model: keras.Model) -> keras.Model:
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
    return model


class BYOL(keras.Model):
    """A target network follows the online one."""

    def __init__(self) -> None:
        super().__init__()
        self.augmenter, self.online = augmenter("augmenter"), network(PIXELS, WIDTH, name="online")
        self.predictor, self.target = network(WIDTH, WIDTH, name="predictor"), copied(self.online)

    def call(self, x: Any) -> Any:
        return self.predictor(self.online(x))

    def train_step(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            said = unit(self(self.augmenter(x, training=True)))
            loss = ops.mean(ops.square(said - unit(self.target(self.augmenter(x, training=True)))))
        descend(self.optimizer, tape, loss, [*self.online.trainable_weights, *self.predictor.trainable_weights])
        follow(self.target, self.online)
        return {"loss": loss}


class MeanTeacher(keras.Model):
    """Consistent with an average of itself; the teacher is another attribute, made in compile()."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.noise = network(PIXELS, CLASSES, name="student"), layers.GaussianNoise(0.2)

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.teacher = copied(self.student)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.student(x, training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self.student(self.noise(x, training=True), training=True)
            apart = ops.mean(ops.square(y_pred - self.teacher(self.noise(x, training=True))))
            loss = self.compute_loss(x, y, y_pred) + 0.5 * apart
        descend(self.optimizer, tape, loss, self.student)
        follow(self.teacher, self.student)
        return {"loss": loss, **self.compute_metrics(x, y, y_pred)}


class DDPM(keras.Model):
    """Learns the noise that was put on an image at a drawn time; an averaged network is kept. Without a call()."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network(PIXELS + 1, PIXELS, name="network")
        self.ema_network = copied(self.network)
        self.alphas = np.cumprod(1.0 - np.linspace(0.01, 0.2, 20)).astype("float32")
        self.seeds = keras.random.SeedGenerator(2)

    def train_step(self, images: Any) -> dict[str, Any]:
        t = keras.random.randint((tiny.BATCH,), 0, 20, seed=self.seeds)
        noise = keras.random.normal((tiny.BATCH, PIXELS), seed=self.seeds)
        alpha = ops.take(self.alphas, t)[:, None]
        noisy = ops.sqrt(alpha) * images + ops.sqrt(1 - alpha) * noise
        with tf.GradientTape() as tape:
            found = self.network(ops.concatenate([noisy, ops.cast(t[:, None], "float32")], axis=1), training=True)
            loss = self.loss(noise, found)
        descend(self.optimizer, tape, loss, self.network)
        follow(self.ema_network, self.network)
        return {"loss": loss}


class DDIM(keras.Model):
    """As its example: images are normalized by what was adapted, numbers are drawn of Keras' global seed."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.normalizer.adapt(digits()[0])
        self.network = network(PIXELS + 1, PIXELS, name="network")
        self.ema_network = copied(self.network)

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.noise_loss_tracker]

    def train_step(self, images: Any) -> dict[str, Any]:
        images = self.normalizer(images, training=True)
        noise = keras.random.normal((tiny.BATCH, PIXELS))
        angle = keras.random.uniform((tiny.BATCH, 1), 0.1, 1.4)
        with tf.GradientTape() as tape:
            noisy = ops.cos(angle) * images + ops.sin(angle) * noise
            loss = self.loss(noise, self.network(ops.concatenate([noisy, ops.sin(angle) ** 2], axis=1), training=True))
        descend(self.optimizer, tape, loss, self.network)
        self.noise_loss_tracker.update_state(loss)
        follow(self.ema_network, self.network)
        return {m.name: m.result() for m in self.metrics}


AVERAGED_CASES: dict[str, Case] = {
    "keras.io: SimSiam": Case("exact", two_views, lambda: with_adam(SimSiam())),
    "keras.io: SimCLR": Case("exact", labelled, lambda: contrastive(SimCLR())),
    "keras.io: NNCLR": Case("exact", labelled, lambda: contrastive(NNCLR())),
    "keras.io: BYOL": Case("exact", pictures, lambda: with_adam(BYOL()), strategies=REPLICAS),
    "keras.io: mean teacher": Case(
        "exact", labelled, lambda: with_adam(MeanTeacher(), loss=logits()), strategies=REPLICAS
    ),
    "keras.io: DDPM": Case("exact", pictures, lambda: with_adam(DDPM(), loss=keras.losses.MeanSquaredError())),
    "keras.io: DDIM": Case("exact", pictures, lambda: with_adam(DDIM(), loss=keras.losses.MeanAbsoluteError())),
}

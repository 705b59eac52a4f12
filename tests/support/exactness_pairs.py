"""Several networks in one model, each with an optimizer of its own, as the examples of Keras write them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

from tests.support import tiny
from tests.support.exactness_case import Arguments, Case

RANDOM = r"(?i)random"
REPLICAS = ("default", "mirrored")
NOISE, PIXELS, CLASSES = 4, 64, 10


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """A few images between -1 and 1, flat, and what they show."""
    x, y = load_digits(return_X_y=True)
    return (x[: tiny.ROWS] / 8.0 - 1.0).astype("float32"), y[: tiny.ROWS].astype("int32")


def batched(*parts: Any) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])
    return rows.shuffle(tiny.ROWS, seed=3).batch(tiny.BATCH, drop_remainder=True)


def pictures(model: keras.Model) -> Arguments:
    return {"x": batched(digits()[0])}


def labelled(model: keras.Model) -> Arguments:
    return {"x": batched(*digits())}


def two_kinds(model: keras.Model) -> Arguments:
    return {"x": batched(digits()[0], digits()[0][::-1].copy())}


def network(inputs: int, outputs: int, *inside: Any, name: str, activation: str | None = None) -> keras.Sequential:
    middle = inside or (layers.Dense(9, activation="relu"),)
    return keras.Sequential([keras.Input((inputs,)), *middle, layers.Dense(outputs, activation=activation)], name=name)


def judge_of_images() -> keras.Sequential:
    inside = [layers.Reshape((8, 8, 1)), layers.Conv2D(4, 3, strides=2), layers.LeakyReLU(0.2), layers.Flatten()]
    return network(PIXELS, 1, *inside, layers.Dropout(0.2), name="discriminator")


def maker_of_images() -> keras.Sequential:
    inside = [layers.Dense(16), layers.Reshape((4, 4, 1)), layers.BatchNormalization(), layers.LeakyReLU(0.2)]
    up = [layers.Conv2DTranspose(3, 4, strides=2, padding="same"), layers.Flatten()]
    return network(NOISE, PIXELS, *inside, *up, name="generator", activation="tanh")


def descend(optimizer: Any, tape: tf.GradientTape, loss: Any, part: Any) -> None:
    variables = getattr(part, "trainable_weights", part)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


class DCGAN(keras.Model):
    """Without a call(), and with an optimizer of Keras' that no one uses."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator, self.generator = judge_of_images(), maker_of_images()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer: Any, g_optimizer: Any, **options: Any) -> None:
        super().compile(**options)
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.d_loss_metric, self.g_loss_metric = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_metric, self.g_loss_metric]

    def noise(self, count: Any) -> Any:
        return keras.random.normal((count, NOISE), seed=self.seed_generator)

    def train_step(self, real: Any) -> dict[str, Any]:
        count = tiny.BATCH
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))])
        labels += 0.05 * keras.random.uniform((2 * count, 1), seed=self.seed_generator)
        everything = ops.concatenate([self.generator(self.noise(count)), real])
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(everything, training=True))
        descend(self.d_optimizer, tape, d_loss, self.discriminator)
        noise = self.noise(count)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(ops.zeros((count, 1)), self.discriminator(self.generator(noise, training=True)))
        descend(self.g_optimizer, tape, g_loss, self.generator)
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def two_adams(model: keras.Model, **options: Any) -> keras.Model:
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02), **options)
    return model


class WGAN(DCGAN):
    """Its critic takes several steps in each, and has its gradient's size held; noise is drawn by `draw`."""

    def __init__(self, draw: Callable[..., Any] | None = None, critic_steps: int = 3) -> None:
        super().__init__()
        self.draw, self.critic_steps = draw, critic_steps

    def noise(self, count: Any) -> Any:
        return self.draw((count, NOISE)) if self.draw else super().noise(count)

    def gradient_penalty(self, real: Any, fake: Any) -> Any:
        weight = keras.random.uniform((tiny.BATCH, 1), seed=self.seed_generator)
        between = real + weight * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            judged = self.discriminator(between, training=True)
        size = ops.sqrt(ops.sum(ops.square(tape.gradient(judged, [between])[0]), axis=1) + 1e-6)
        return ops.mean(ops.square(size - 1.0))

    def train_step(self, real: Any) -> dict[str, Any]:
        for _ in range(self.critic_steps):
            noise = self.noise(tiny.BATCH)
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                gap = ops.mean(self.discriminator(fake, training=True))
                gap -= ops.mean(self.discriminator(real, training=True))
                d_loss = gap + 10.0 * self.gradient_penalty(real, fake)
            descend(self.d_optimizer, tape, d_loss, self.discriminator)
        noise = self.noise(tiny.BATCH)
        with tf.GradientTape() as tape:
            g_loss = -ops.mean(self.discriminator(self.generator(noise, training=True), training=True))
        descend(self.g_optimizer, tape, g_loss, self.generator)
        return {"d_loss": d_loss, "g_loss": g_loss}


class ConditionalGAN(DCGAN):
    """Both networks are given the class."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = network(PIXELS + CLASSES, 1, name="discriminator")
        self.generator = network(NOISE + CLASSES, PIXELS, name="generator", activation="tanh")

    def train_step(self, data: Any) -> dict[str, Any]:
        real, classes = data
        told = ops.one_hot(classes, CLASSES)
        noise = ops.concatenate([self.noise(tiny.BATCH), told], axis=1)
        fake = ops.concatenate([self.generator(noise), told], axis=1)
        pairs = ops.concatenate([fake, ops.concatenate([real, told], axis=1)])
        labels = ops.concatenate([ops.ones((tiny.BATCH, 1)), ops.zeros((tiny.BATCH, 1))])
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(pairs))
        descend(self.d_optimizer, tape, d_loss, self.discriminator)
        with tf.GradientTape() as tape:
            fake = ops.concatenate([self.generator(noise), told], axis=1)
            g_loss = self.loss_fn(ops.zeros((tiny.BATCH, 1)), self.discriminator(fake))
        descend(self.g_optimizer, tape, g_loss, self.generator)
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


class CycleGAN(keras.Model):
    """Four networks, four optimizers, one tape; it has a call(), which no one has called when it is fitted."""

    def __init__(self) -> None:
        super().__init__()
        self.gen_g, self.gen_f = (network(PIXELS, PIXELS, name=f"to_{kind}", activation="tanh") for kind in "yx")
        self.disc_x, self.disc_y = (network(PIXELS, 1, name=f"judge_{kind}") for kind in "xy")

    def call(self, inputs: Any) -> tuple[Any, ...]:
        return self.disc_x(inputs), self.disc_y(inputs), self.gen_g(inputs), self.gen_f(inputs)

    def compile(self, make: Callable[[], Any]) -> None:
        super().compile()
        self.gen_g_optimizer, self.gen_f_optimizer = make(), make()
        self.disc_x_optimizer, self.disc_y_optimizer = make(), make()

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            fake_y, fake_x = self.gen_g(x, training=True), self.gen_f(y, training=True)
            cycle = ops.mean(ops.abs(self.gen_f(fake_y) - x)) + ops.mean(ops.abs(self.gen_g(fake_x) - y))
            g_loss = ops.mean(ops.square(self.disc_y(fake_y) - 1.0)) + 10.0 * cycle
            f_loss = ops.mean(ops.square(self.disc_x(fake_x) - 1.0)) + 10.0 * cycle
            x_loss = ops.mean(ops.square(self.disc_x(x) - 1.0) + ops.square(self.disc_x(fake_x)))
            y_loss = ops.mean(ops.square(self.disc_y(y) - 1.0) + ops.square(self.disc_y(fake_y)))
        descend(self.gen_g_optimizer, tape, g_loss, self.gen_g)
        descend(self.gen_f_optimizer, tape, f_loss, self.gen_f)
        descend(self.disc_x_optimizer, tape, x_loss, self.disc_x)
        descend(self.disc_y_optimizer, tape, y_loss, self.disc_y)
        return {"G": g_loss, "F": f_loss, "D_X": x_loss, "D_Y": y_loss}


def cycle_gan(*, build: bool = False) -> keras.Model:
    model = CycleGAN()
    model.compile(lambda: keras.optimizers.Adam(0.01, beta_1=0.5))
    if build:
        model.gen_g_optimizer.build(model.gen_g.trainable_variables)
        model.gen_f_optimizer.build(model.gen_f.trainable_variables)
        model.disc_x_optimizer.build(model.disc_x.trainable_variables)
        model.disc_y_optimizer.build(model.disc_y.trainable_variables)
    return model


class ActorCritic(keras.Model):
    """A common trunk; the actor's and the critic's optimizers are Keras' own one and another."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = network(PIXELS, 8, name="trunk")
        self.actor, self.critic = network(8, CLASSES, name="actor"), network(8, 1, name="critic")
        self.draws = keras.random.SeedGenerator(3)

    def compile(self, actor_optimizer: Any, critic_optimizer: Any) -> None:
        super().compile(optimizer=actor_optimizer)
        self.critic_optimizer = critic_optimizer

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            seen = self.trunk(x)
            logits, value = self.actor(seen), self.critic(seen)[:, 0]
            action = keras.random.categorical(logits, 1, seed=self.draws)[:, 0]
            reward = ops.cast(ops.cast(action, "int32") == y, "float32")
            chance = ops.sum(ops.one_hot(action, CLASSES) * ops.log_softmax(logits), axis=1)
            actor_loss = -ops.mean(chance * ops.stop_gradient(reward - value))
            critic_loss = ops.mean(ops.square(reward - value))
        descend(self.optimizer, tape, actor_loss, [*self.trunk.trainable_weights, *self.actor.trainable_weights])
        descend(self.critic_optimizer, tape, critic_loss, self.critic)
        return {"reward": ops.mean(reward), "critic_loss": critic_loss}


class Rates:
    """A plain helper, no part of Keras, that has the optimizers of the layers: slow at the input, fast at the end."""

    def __init__(self, parts: Sequence[tuple[Any, Any]]) -> None:
        self.parts = parts

    def apply(self, tape: tf.GradientTape, loss: Any) -> None:
        variables = [part.trainable_weights for _, part in self.parts]
        gradients = tape.gradient(loss, variables)
        for (optimizer, _), gradient, own in zip(self.parts, gradients, variables, strict=True):
            optimizer.apply(gradient, own)


class DiscriminativeRates(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = network(PIXELS, 8, name="body"), network(8, CLASSES, name="head")
        parts = [(keras.optimizers.Adam(0.001), self.body), (keras.optimizers.SGD(0.1, momentum=0.9), self.head)]
        self.rates = Rates(parts)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.body(x, training=training), training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        self.rates.apply(tape, loss)
        return {"loss": loss, **self.compute_metrics(x, y, y_pred)}


def discriminative_rates(**options: Any) -> keras.Model:
    model, loss = DiscriminativeRates(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"], **options)
    return model


PAIR_CASES: dict[str, Case] = {
    "keras.io: DCGAN": Case("exact", pictures, lambda: two_adams(DCGAN())),
    "keras.io: DCGAN, run eagerly": Case("exact", pictures, lambda: two_adams(DCGAN(), run_eagerly=True)),
    "keras.io: WGAN-GP": Case("exact", pictures, lambda: two_adams(WGAN())),
    "keras.io: WGAN-GP, noise of tf.random": Case(
        "not exact", pictures, lambda: two_adams(WGAN(tf.random.normal)), says=RANDOM
    ),
    "keras.io: conditional GAN": Case("exact", labelled, lambda: two_adams(ConditionalGAN())),
    "keras.io: CycleGAN": Case("exact", two_kinds, cycle_gan),
    "keras.io: CycleGAN, its optimizers built": Case(  # which Keras cannot do within a step of several replicas
        "exact", two_kinds, lambda: cycle_gan(build=True), strategies=REPLICAS
    ),
    "keras.io: actor and critic": Case("exact", labelled, lambda: two_adams(ActorCritic())),
    "keras.io: an optimizer per layer": Case("exact", labelled, discriminative_rates),
    "keras.io: an optimizer per layer, run eagerly": Case(
        "not exact", labelled, lambda: discriminative_rates(run_eagerly=True), says="the state of the model .* rates"
    ),
}

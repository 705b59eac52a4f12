"""Models that train themselves by a step of their own, as the examples of Keras write them: one optimizer each."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tests.support import tiny
from tests.support.exactness_case import Arguments, Case
from tests.support.exactness_pairs import (
    CLASSES,
    PIXELS,
    RANDOM,
    REPLICAS,
    batched,
    descend,
    digits,
    labelled,
    network,
    pictures,
)

CODE = 3


def logits() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def with_adam(model: keras.Model, **options: Any) -> keras.Model:
    model.compile(optimizer=keras.optimizers.Adam(0.01), **options)
    return model


class Sampling(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        mean, log_var = inputs
        return mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seed_generator)


class VAE(keras.Model):
    """Without a call()."""

    def __init__(self) -> None:
        super().__init__()
        inputs = keras.Input((PIXELS,))
        hidden = layers.Dense(9, activation="relu")(inputs)
        mean, log_var = layers.Dense(CODE)(hidden), layers.Dense(CODE)(hidden)
        self.encoder = keras.Model(inputs, [mean, log_var, Sampling()([mean, log_var])], name="encoder")
        self.decoder = network(CODE, PIXELS, name="decoder", activation="tanh")
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total_loss_tracker, self.kl_loss_tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(data)
            rebuilt = ops.mean(ops.sum(ops.square(data - self.decoder(z)), axis=1))
            kl_loss = -0.5 * ops.mean(ops.sum(1 + log_var - ops.square(mean) - ops.exp(log_var), axis=1))
            total = rebuilt + kl_loss
        descend(self.optimizer, tape, total, self)
        self.total_loss_tracker.update_state(total)
        self.kl_loss_tracker.update_state(kl_loss)
        return {"loss": self.total_loss_tracker.result(), "kl_loss": self.kl_loss_tracker.result()}


class VectorQuantizer(layers.Layer):
    def __init__(self, embeddings: int, width: int) -> None:
        super().__init__()
        self.embeddings = self.add_weight(shape=(width, embeddings), initializer="random_uniform", name="embeddings")

    def call(self, x: Any) -> Any:
        apart = ops.sum(x**2, axis=1, keepdims=True) + ops.sum(self.embeddings**2, axis=0)
        nearest = ops.argmin(apart - 2 * ops.matmul(x, self.embeddings), axis=1)
        quantized = ops.matmul(ops.one_hot(nearest, self.embeddings.shape[1]), ops.transpose(self.embeddings))
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(quantized) - x) ** 2))
        self.add_loss(ops.mean((quantized - ops.stop_gradient(x)) ** 2))
        return x + ops.stop_gradient(quantized - x)


class VQVAETrainer(keras.Model):
    """Its network's own losses are added up; without a call()."""

    def __init__(self, train_variance: float) -> None:
        super().__init__()
        self.train_variance = train_variance
        quantizer, decoder = VectorQuantizer(6, CODE), network(CODE, PIXELS, name="decoder")
        self.vqvae = keras.Sequential([network(PIXELS, CODE, name="encoder"), quantizer, decoder])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]

    def train_step(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = ops.mean((x - self.vqvae(x)) ** 2) / self.train_variance + sum(self.vqvae.losses)
        descend(self.optimizer, tape, loss, self.vqvae)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


class Distiller(keras.Model):
    """A student learns of a teacher, in Keras' own step; it has a call(), which no one has called."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = (network(PIXELS, CLASSES, name=name) for name in ("teacher", "student"))
        self.teacher.trainable = False
        self.far = keras.losses.KLDivergence()

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        told = ops.softmax(self.teacher(x, training=False) / 3.0)
        return 0.1 * super().compute_loss(x, y, y_pred, sample_weight) + 0.9 * 9.0 * self.far(
            told, ops.softmax(y_pred / 3.0)
        )

    def call(self, x: Any) -> Any:
        return self.student(x)


def taught() -> keras.Model:
    """The teacher was trained before, in the same process, by an optimizer of its own."""
    model = with_adam(Distiller(), loss=logits(), metrics=["accuracy"])
    with_adam(model.teacher, loss=logits())
    model.teacher.trainable = True
    model.teacher.fit(labelled(model)["x"], epochs=1, verbose=0)
    model.teacher.trainable = False
    return model


class StyleTransfer(keras.Model):
    """Keras' optimizer, put there after compile(), trains the decoder alone; the loss looks through a third network.

    Without a call(), and none of the networks is frozen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = network(PIXELS, 8, name="encoder"), network(8, PIXELS, name="decoder")
        self.loss_net = network(PIXELS, 6, name="loss_net")

    def compile(self, optimizer: Any) -> None:
        super().compile()
        self.optimizer = optimizer
        self.style_loss_tracker = keras.metrics.Mean(name="style_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.style_loss_tracker]

    def train_step(self, x: Any) -> dict[str, Any]:
        code = self.encoder(x)
        with tf.GradientTape() as tape:
            made = self.decoder(code)
            loss = ops.mean(ops.square(self.encoder(made) - code))
            loss += ops.mean(ops.square(ops.mean(self.loss_net(made), 0) - ops.mean(self.loss_net(x), 0)))
        descend(self.optimizer, tape, loss, self.decoder)
        self.style_loss_tracker.update_state(loss)
        return {"style_loss": self.style_loss_tracker.result()}


class FGSM(keras.Model):
    """Trains on images that were pushed towards the wrong answer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network(PIXELS, CLASSES, name="inner")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.compute_loss(x, y, self(x, training=True))
        pushed = x + 0.1 * tf.sign(tape.gradient(loss, x))
        with tf.GradientTape() as tape:
            y_pred = self(pushed, training=True)
            loss = self.compute_loss(x, y, y_pred)
        descend(self.optimizer, tape, loss, self)
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class Siamese(keras.Model):
    """Three images, the second like the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = network(PIXELS, 5, name="embedding")
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs: Any) -> Any:
        anchor, positive, negative = (self.embedding(image) for image in inputs)
        return ops.sum((anchor - positive) ** 2, -1), ops.sum((anchor - negative) ** 2, -1)

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            near, far = self(data)
            loss = ops.mean(ops.maximum(near - far + 0.5, 0.0))
        descend(self.optimizer, tape, loss, self.embedding)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


def triplets(model: keras.Model) -> Arguments:
    x = digits()[0]
    return {"x": batched(x, x + 0.1, x[::-1].copy()).map(lambda *images: (images,)).map(lambda images: images)}


class Accumulating(keras.Model):
    """Applies the gradients of two steps at once: counter and sums are variables of TensorFlow, not of Keras."""

    def __init__(self, gradients: int = 2) -> None:
        super().__init__()
        self.inner = network(PIXELS, CLASSES, name="inner")
        self.n_gradients, self.n_acum_step = tf.constant(gradients), tf.Variable(0, trainable=False)
        self.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.inner.trainable_variables]

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        self.n_acum_step.assign_add(1)
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        for total, gradient in zip(self.sums, tape.gradient(loss, self.inner.trainable_variables), strict=True):
            total.assign_add(gradient)
        tf.cond(self.n_acum_step == self.n_gradients, self.apply_sums, lambda: None)
        return {"loss": loss, **self.compute_metrics(x, y, y_pred)}

    def apply_sums(self) -> None:
        self.optimizer.apply_gradients(zip(self.sums, self.inner.trainable_variables, strict=True))
        self.n_acum_step.assign(0)
        for total in self.sums:
            total.assign(tf.zeros_like(total))


class MaskedAutoencoder(keras.Model):
    """Sees a part of the patches of an image, and is to draw the others; `draw` chooses them. Without a call()."""

    def __init__(self, draw: Any = None) -> None:
        super().__init__()
        self.encoder, self.decoder = network(4 * 8, 12, name="encoder"), network(12, PIXELS, name="decoder")
        self.mask_token = self.add_weight(shape=(1, 4 * 8), initializer="random_normal", name="mask_token")
        self.draw, self.seeds = draw, keras.random.SeedGenerator(11)

    def train_step(self, images: Any) -> dict[str, Any]:
        shape = (tiny.BATCH, 8)
        chances = self.draw(shape) if self.draw else keras.random.uniform(shape, seed=self.seeds)
        patches = ops.reshape(images, (-1, 8, 8))
        kept = ops.argsort(chances, axis=1)[:, :4]
        seen = ops.reshape(ops.take_along_axis(patches, kept[..., None], axis=1), (-1, 4 * 8))
        with tf.GradientTape() as tape:
            drawn = self.decoder(self.encoder(seen + self.mask_token))
            loss = self.compute_loss(y=images, y_pred=drawn)
        descend(self.optimizer, tape, loss, self)
        return {"loss": loss, **self.compute_metrics(images, images, drawn, None)}


def masked(draw: Any = None) -> keras.Model:
    return with_adam(MaskedAutoencoder(draw), loss="mse", metrics=["mae"])


TRAINER_CASES: dict[str, Case] = {
    "keras.io: VAE": Case("exact", pictures, lambda: with_adam(VAE())),
    "keras.io: VQ-VAE": Case("exact", pictures, lambda: with_adam(VQVAETrainer(0.3))),
    "keras.io: distillation": Case(
        "exact", labelled, lambda: with_adam(Distiller(), loss=logits(), metrics=["accuracy"]), strategies=REPLICAS
    ),
    "keras.io: distillation of a teacher that was trained before": Case("exact", labelled, taught),
    "keras.io: style transfer": Case("exact", pictures, lambda: with_adam(StyleTransfer())),
    "keras.io: adversarial training": Case(
        "exact", labelled, lambda: with_adam(FGSM(), loss=logits(), metrics=["accuracy"])
    ),
    "keras.io: triplets": Case("exact", triplets, lambda: with_adam(Siamese())),
    "keras.io: gradients accumulated by hand": Case(
        "exact", labelled, lambda: with_adam(Accumulating(), loss=logits())
    ),
    "keras.io: masked autoencoder": Case("exact", pictures, masked),
    "keras.io: masked autoencoder, masks of tf.random": Case(
        "not exact", pictures, lambda: masked(tf.random.uniform), says=RANDOM
    ),
}

"""Several networks in one model, as the examples of Keras write them: against, behind or after each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.support import tiny
from tests.support.exactness_models import (
    CLASSES,
    PIXELS,
    RANDOM,
    REPLICAS,
    Arguments,
    Case,
    batched,
    classifier,
    classifying,
    descend,
    digits,
    labelled,
    logits,
    network,
    pictures,
    tracked,
    trackers,
    with_adam,
)

NOISE, WIDTH, CODE = 4, 6, 3


def two_adams(model: keras.Model, **options: Any) -> keras.Model:
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02), **options)
    return model


def copied(model: Any) -> Any:
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    return twin


def follow(target: Any, online: Any, share: float = 0.9) -> None:
    for theirs, ours in zip(target.weights, online.weights, strict=True):
        theirs.assign(share * theirs + (1 - share) * ours)


def unit(x: Any) -> Any:
    return ops.normalize(x, axis=1)


# Networks against each other, each with an optimizer of its own.


class DCGAN(keras.Model):
    """Without a call(), and with an optimizer of Keras' that no one uses."""

    metrics = trackers("d_loss_metric", "g_loss_metric")

    def __init__(self) -> None:
        super().__init__()
        down = [layers.Reshape((8, 8, 1)), layers.Conv2D(4, 3, strides=2), layers.LeakyReLU(0.2), layers.Flatten()]
        self.discriminator = network(PIXELS, 1, *down, layers.Dropout(0.2), name="discriminator")
        up = [layers.Dense(16), layers.Reshape((4, 4, 1)), layers.BatchNormalization(), layers.LeakyReLU(0.2)]
        up += [layers.Conv2DTranspose(3, 4, strides=2, padding="same"), layers.Flatten()]
        self.generator = network(NOISE, PIXELS, *up, name="generator", activation="tanh")
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer: Any, g_optimizer: Any, **options: Any) -> None:
        super().compile(**options)
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.d_loss_metric, self.g_loss_metric = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

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
        return tracked(self.metrics, d_loss, g_loss)


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
        return tracked(self.metrics, d_loss, g_loss)


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
    for name in ("gen_g", "gen_f", "disc_x", "disc_y") if build else ():
        getattr(model, f"{name}_optimizer").build(getattr(model, name).trainable_variables)
    return model


def two_kinds(model: keras.Model) -> Arguments:
    return {"x": batched(digits()[0], digits()[0][::-1].copy())}


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
            scores, value = self.actor(seen), self.critic(seen)[:, 0]
            action = keras.random.categorical(scores, 1, seed=self.draws)[:, 0]
            reward = ops.cast(ops.cast(action, "int32") == y, "float32")
            chance = ops.sum(ops.one_hot(action, CLASSES) * ops.log_softmax(scores), axis=1)
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
    model = DiscriminativeRates()
    model.compile(loss=logits(), metrics=["accuracy"], **options)
    return model


# Networks one behind the other.


class Sampling(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        mean, log_var = inputs
        return mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seed_generator)


class VAE(keras.Model):
    """Without a call()."""

    metrics = trackers("total_loss_tracker", "kl_loss_tracker")

    def __init__(self) -> None:
        super().__init__()
        inputs = keras.Input((PIXELS,))
        hidden = layers.Dense(9, activation="relu")(inputs)
        mean, log_var = layers.Dense(CODE)(hidden), layers.Dense(CODE)(hidden)
        self.encoder = keras.Model(inputs, [mean, log_var, Sampling()([mean, log_var])], name="encoder")
        self.decoder = network(CODE, PIXELS, name="decoder", activation="tanh")
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(data)
            rebuilt = ops.mean(ops.sum(ops.square(data - self.decoder(z)), axis=1))
            kl_loss = -0.5 * ops.mean(ops.sum(1 + log_var - ops.square(mean) - ops.exp(log_var), axis=1))
            total = rebuilt + kl_loss
        descend(self.optimizer, tape, total, self)
        found = tracked(self.metrics, total, kl_loss)
        return {"loss": found["total_loss"], "kl_loss": found["kl_loss"]}


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

    metrics = trackers("loss_tracker")

    def __init__(self, train_variance: float) -> None:
        super().__init__()
        self.train_variance = train_variance
        quantizer, decoder = VectorQuantizer(6, CODE), network(CODE, PIXELS, name="decoder")
        self.vqvae = keras.Sequential([network(PIXELS, CODE, name="encoder"), quantizer, decoder])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def train_step(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = ops.mean((x - self.vqvae(x)) ** 2) / self.train_variance + sum(self.vqvae.losses)
        descend(self.optimizer, tape, loss, self.vqvae)
        return tracked(self.metrics, loss)


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
        far = self.far(told, ops.softmax(y_pred / 3.0))
        return 0.1 * super().compute_loss(x, y, y_pred, sample_weight) + 0.9 * 9.0 * far

    def call(self, x: Any) -> Any:
        return self.student(x)


def taught() -> keras.Model:
    """The teacher was trained before, in the same process, by an optimizer of its own."""
    model = classifying(Distiller())
    with_adam(model.teacher, loss=logits())
    model.teacher.trainable = True
    model.teacher.fit(labelled(model)["x"], epochs=1, verbose=0)
    model.teacher.trainable = False
    return model


class StyleTransfer(keras.Model):
    """Keras' optimizer, put there after compile(), trains the decoder alone; the loss looks through a third network.

    Without a call(), and none of the networks is frozen.
    """

    metrics = trackers("style_loss_tracker")

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = network(PIXELS, 8, name="encoder"), network(8, PIXELS, name="decoder")
        self.loss_net = network(PIXELS, 6, name="loss_net")

    def compile(self, optimizer: Any) -> None:
        super().compile()
        self.optimizer = optimizer
        self.style_loss_tracker = keras.metrics.Mean(name="style_loss")

    def train_step(self, x: Any) -> dict[str, Any]:
        code = self.encoder(x)
        with tf.GradientTape() as tape:
            made = self.decoder(code)
            loss = ops.mean(ops.square(self.encoder(made) - code))
            loss += ops.mean(ops.square(ops.mean(self.loss_net(made), 0) - ops.mean(self.loss_net(x), 0)))
        descend(self.optimizer, tape, loss, self.decoder)
        return tracked(self.metrics, loss)


# Networks that follow others, queues and diffusion.


def augmenter() -> keras.Sequential:
    """Random layers in the model, whose seeds are variables of it."""
    return network(PIXELS, PIXELS, layers.GaussianNoise(0.2), layers.Dropout(0.1), name="augmenter")


class SimSiam(keras.Model):
    """Two views of one image are to be recognised as one. Without a call()."""

    metrics = trackers("loss_tracker")

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.predictor = network(PIXELS, WIDTH, name="encoder"), network(WIDTH, WIDTH, name="predictor")
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def train_step(self, data: Any) -> dict[str, Any]:
        one, two = data
        with tf.GradientTape() as tape:
            z1, z2 = self.encoder(one), self.encoder(two)
            p1, p2 = unit(self.predictor(z1)), unit(self.predictor(z2))
            loss = -ops.mean(p1 * unit(ops.stop_gradient(z2))) - ops.mean(p2 * unit(ops.stop_gradient(z1)))
        learned = [*self.encoder.trainable_variables, *self.predictor.trainable_variables]
        descend(self.optimizer, tape, loss, learned)
        return tracked(self.metrics, loss)


def two_views(model: keras.Model) -> Arguments:
    """Two datasets of one seed's order, each with a random map."""

    def view(x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x), stddev=0.2)

    return {"x": tf.data.Dataset.zip((batched(digits()[0]).map(view), batched(digits()[0]).map(view)))}


class SimCLR(keras.Model):
    """Two optimizers, a probe that is trained next to, and an unused optimizer of Keras'. Without a call()."""

    metrics = trackers("contrastive_accuracy", "probe_accuracy")

    def __init__(self) -> None:
        super().__init__()
        self.augmenter, self.encoder = augmenter(), network(PIXELS, WIDTH, name="encoder")
        self.projection_head = network(WIDTH, WIDTH, name="projection_head")
        self.linear_probe = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(CLASSES)], name="linear_probe")

    def compile(self, contrastive_optimizer: Any, probe_optimizer: Any, **options: Any) -> None:
        super().compile(**options)
        self.contrastive_optimizer, self.probe_optimizer = contrastive_optimizer, probe_optimizer
        self.probe_loss = logits()
        self.contrastive_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

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


class BYOL(keras.Model):
    """A target network follows the online one."""

    def __init__(self) -> None:
        super().__init__()
        self.augmenter, self.online = augmenter(), network(PIXELS, WIDTH, name="online")
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


class Diffusion(keras.Model):
    """An averaged network is kept. Without a call()."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network(PIXELS + 1, PIXELS, name="network")
        self.ema_network = copied(self.network)

    def learn(self, images: Any, signal: Any, noise: Any, when: Any) -> Any:
        """Learns the noise that was put on an image."""
        noisy = signal[0] * images + signal[1] * noise
        with tf.GradientTape() as tape:
            found = self.network(ops.concatenate([noisy, when], axis=1), training=True)
            loss = self.loss(noise, found)
        descend(self.optimizer, tape, loss, self.network)
        follow(self.ema_network, self.network)
        return loss


class DDPM(Diffusion):
    """The noise is that of a drawn time."""

    def __init__(self) -> None:
        super().__init__()
        self.alphas = np.cumprod(1.0 - np.linspace(0.01, 0.2, 20)).astype("float32")
        self.seeds = keras.random.SeedGenerator(2)

    def train_step(self, images: Any) -> dict[str, Any]:
        t = keras.random.randint((tiny.BATCH,), 0, 20, seed=self.seeds)
        noise = keras.random.normal((tiny.BATCH, PIXELS), seed=self.seeds)
        alpha = ops.take(self.alphas, t)[:, None]
        signal = (ops.sqrt(alpha), ops.sqrt(1 - alpha))
        return {"loss": self.learn(images, signal, noise, ops.cast(t[:, None], "float32"))}


class DDIM(Diffusion):
    """As its example: images are normalized by what was adapted, numbers are drawn of Keras' global seed."""

    metrics = trackers("noise_loss_tracker")

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.normalizer.adapt(digits()[0])

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")

    def train_step(self, images: Any) -> dict[str, Any]:
        images = self.normalizer(images, training=True)
        noise = keras.random.normal((tiny.BATCH, PIXELS))
        angle = keras.random.uniform((tiny.BATCH, 1), 0.1, 1.4)
        loss = self.learn(images, (ops.cos(angle), ops.sin(angle)), noise, ops.sin(angle) ** 2)
        return tracked(self.metrics, loss)


class EMA(keras.callbacks.Callback):
    """Keeps an averaged copy of the model, and validates with it at the end."""

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.averaged = copied(model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        follow(self.averaged, self.model)

    def on_train_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.averaged.get_weights())


EXAMPLES: dict[str, Case] = {
    "DCGAN": Case("exact", pictures, lambda: two_adams(DCGAN())),
    "DCGAN, run eagerly": Case("exact", pictures, lambda: two_adams(DCGAN(), run_eagerly=True)),
    "WGAN-GP": Case("exact", pictures, lambda: two_adams(WGAN())),
    "WGAN-GP, noise of tf.random": Case("not exact", pictures, lambda: two_adams(WGAN(tf.random.normal)), says=RANDOM),
    "conditional GAN": Case("exact", labelled, lambda: two_adams(ConditionalGAN())),
    "CycleGAN": Case("exact", two_kinds, cycle_gan),
    "CycleGAN, its optimizers built": Case(  # which Keras cannot do within a step of several replicas
        "exact", two_kinds, lambda: cycle_gan(build=True), strategies=REPLICAS
    ),
    "actor and critic": Case("exact", labelled, lambda: two_adams(ActorCritic())),
    "an optimizer per layer": Case("exact", labelled, discriminative_rates),
    "an optimizer per layer, run eagerly": Case(
        "not exact", labelled, lambda: discriminative_rates(run_eagerly=True), says="the state of the model .* rates"
    ),
    "VAE": Case("exact", pictures, lambda: with_adam(VAE())),
    "VQ-VAE": Case("exact", pictures, lambda: with_adam(VQVAETrainer(0.3))),
    "distillation": Case("exact", labelled, lambda: classifying(Distiller()), strategies=REPLICAS),
    "distillation of a teacher that was trained before": Case("exact", labelled, taught),
    "style transfer": Case("exact", pictures, lambda: with_adam(StyleTransfer())),
    "SimSiam": Case("exact", two_views, lambda: with_adam(SimSiam())),
    "SimCLR": Case("exact", labelled, lambda: two_adams(SimCLR())),
    "NNCLR": Case("exact", labelled, lambda: two_adams(NNCLR())),
    "BYOL": Case("exact", pictures, lambda: with_adam(BYOL()), strategies=REPLICAS),
    "mean teacher": Case("exact", labelled, lambda: with_adam(MeanTeacher(), loss=logits()), strategies=REPLICAS),
    "DDPM": Case("exact", pictures, lambda: with_adam(DDPM(), loss=keras.losses.MeanSquaredError())),
    "DDIM": Case("exact", pictures, lambda: with_adam(DDIM(), loss=keras.losses.MeanAbsoluteError())),
    "averages kept by a callback": Case("exact", labelled, lambda: classifying(classifier()), lambda: [EMA()]),
}
NETWORK_CASES: dict[str, Case] = {f"keras.io: {name}": case for name, case in EXAMPLES.items()}

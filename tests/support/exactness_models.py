"""What a case of the table of resumes is, and those of which the model, its step or its optimizer matters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

from tests.support import refuse_plain_text, tiny

Verdict = Literal["exact", "exact if", "not exact"]
Arguments = dict[str, Any]
EVERYWHERE = ("default", "mirrored", "multi_worker")
RANDOM = r"(?i)random"
REPLICAS = EVERYWHERE[:2]
PIXELS, CLASSES = 64, 10


def compiled(model: keras.Model, optimizer: Any = None, loss: Any = "binary_crossentropy", **options: Any) -> Any:
    model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), loss, **options)
    return model


def dense(
    optimizer: Any = None,
    *,
    activation: str = "relu",
    rate: float = 0.3,
    loss: Any = "binary_crossentropy",
    inside: tuple[Any, ...] = (),
    dtype: str = "float32",
    **options: Any,
) -> keras.Model:
    """Its weights depend on every batch, on their order and on masks."""
    hidden = [layers.Dense(7, activation=activation, dtype=dtype), *inside, layers.Dropout(rate, dtype=dtype)]
    model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(1, activation="sigmoid", dtype=dtype)])
    return compiled(model, optimizer, loss, metrics=["accuracy"], **options)


@dataclass(frozen=True)
class Case:
    """A training that is killed and resumed, and what must be said of its continuation.

    Attributes:
        expected: The verdict; None where any will do that is true.
        fit: The arguments of fit(), made after the model, which it gets; "callbacks" among them belong to the input.
        model: Builds and compiles the model, in the strategy's scope.
        callbacks: The user's callbacks.
        says: A regular expression that must be found in the notes, the conditions or the warnings.
        strategies: Under which it is tried.
        kills: Epoch and batch before which each attempt but the last is killed.
        resumed: Fields that are others in the resumed run.
        epochs: How many are trained.
        save_freq: How often it is backed up.
        words: What it is made of, if it was drawn.
    """

    expected: Verdict | None
    fit: Callable[[keras.Model], Arguments] = lambda model: {"x": tiny.shuffled()}
    model: Callable[[], keras.Model] = dense
    callbacks: Callable[[], list[Any]] = list
    says: str = ""
    strategies: tuple[str, ...] = ("default",)
    kills: tuple[tuple[int, int], ...] = ((1, 2),)
    resumed: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    epochs: int = 3
    save_freq: int | str = 1
    words: str = ""

    def __post_init__(self) -> None:
        refuse_plain_text(self)
        if self.expected not in ("exact", None) and not self.says:
            raise ValueError(f"it is {self.expected!r}, but nothing says why")

    def __str__(self) -> str:
        kills = " and ".join(f"{epoch}/{batch}" for epoch, batch in self.kills)
        how = f"{'/'.join(self.strategies)}, save_freq {self.save_freq}, {self.epochs} epochs, killed at {kills}"
        return f"{self.words} | {how}"

    def as_resumed(self) -> Case:
        return replace(self, **self.resumed)


class Noise(layers.Layer):
    """As in many an example: the random numbers are TensorFlow's, not those of a SeedGenerator."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + tf.random.normal(tf.shape(x), stddev=0.3) if training else x


class Stepping(keras.Model):
    """Trains by a step of its own; `change` gets the batch first."""

    def __init__(self, change: Callable[[Any, Any], tuple[Any, Any]] = lambda x, y: (x, y)) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(7, "relu"), layers.Dense(1, "sigmoid")
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
        super().__init__()
        self.batches_seen = 0

    def factor(self) -> Any:
        self.batches_seen += 1
        return 1.0 + 0.1 * self.batches_seen


def drop(x: Any, y: Any) -> tuple[Any, Any]:
    return tf.nn.dropout(x, 0.3), y


def mix(x: Any, y: Any) -> tuple[Any, Any]:
    return 0.8 * x + 0.2 * tf.random.shuffle(x), y


def built(model: keras.Model, **options: Any) -> keras.Model:
    model.build((None, 6))
    return compiled(model, **options)


class CountsItsCalls(keras.optimizers.schedules.LearningRateSchedule):
    """A request for the optimizer's rate changes the rate."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: Any) -> Any:
        self.calls += 1
        return 0.1 * 0.9**self.calls

    def get_config(self) -> dict[str, Any]:
        return {}


class Adversaries(keras.Model):
    """Two networks, each with an optimizer; Keras knows of one of these."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential([keras.Input((6,)), layers.Dense(7, "relu"), layers.Dense(1)])
        self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(7, "relu"), layers.Dense(6)])
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


class RisingLoss(keras.losses.Loss):
    def __init__(self) -> None:
        super().__init__()
        self.level = tf.Variable(1.0, trainable=False)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.level.assign_add(0.1) * tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


def recurrent(first: Any, *inside: Any, **options: Any) -> keras.Model:
    return compiled(keras.Sequential([first, *inside, layers.Dense(1, activation="sigmoid")]), **options)


def sequences(model: keras.Model) -> Arguments:
    return {"x": tiny.shuffled().map(lambda x, y: (tf.reshape(x, (-1, 3, 2)), y))}


def averaged(**options: Any) -> Any:
    return keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9, **options)


def accumulated() -> keras.Model:
    return dense(keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2))


def loss_scaled(optimizer: Any = None) -> keras.Model:
    inner = optimizer or keras.optimizers.Adam(0.01)
    return dense(keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=3))


def normalized(*, adapt: bool) -> keras.Model:
    layer = layers.Normalization()
    if adapt:
        layer.adapt(tiny.data()[0] * 3.0 + 2.0)
    return compiled(keras.Sequential([keras.Input((6,)), layer, layers.Dense(7, "relu"), layers.Dense(1)]), loss="mse")


def adapted(layer: Any) -> Callable[[keras.Model], Arguments]:
    """A layer in a map, adapted to the rows."""

    def fit(model: keras.Model) -> Arguments:
        made = layer()
        made.adapt(tiny.data()[0])
        return {"x": tiny.shuffled().map(lambda x, y: (tf.cast(made(x), tf.float32), y))}

    return fit


def texts(model: keras.Model) -> Arguments:
    words = np.array(["good", "bad", "day", "night", "red", "blue"])
    lines = [" ".join(words[row > 0]) or "none" for row in tiny.data()[0]]
    layer = layers.TextVectorization(max_tokens=9, output_sequence_length=6)
    layer.adapt(lines)
    rows = tf.data.Dataset.from_tensor_slices((lines, tiny.data()[1])).shuffle(tiny.ROWS, seed=3)
    return {"x": rows.batch(tiny.BATCH).map(lambda x, y: (tf.cast(layer(x), tf.float32), y))}


def words(model: keras.Model) -> Arguments:
    """Enough of them in each batch for several threads."""
    found = np.random.default_rng(5).integers(0, 300, (tiny.ROWS, 2048))
    return {"x": found.astype("int32"), "y": tiny.data()[1], "batch_size": tiny.BATCH}


def embedded(optimizer: Any) -> keras.Model:
    inside = [layers.Embedding(300, 32), layers.GlobalAveragePooling1D(), layers.Dense(1)]
    return compiled(keras.Sequential([keras.Input((2048,)), *inside]), optimizer, "mse")


def each_way(name: str, make: Callable[..., keras.Model], **options: Any) -> dict[str, Case]:
    """Traced, the random numbers' position is in the kernel; run eagerly, it is in the saved state."""
    return {
        name: Case("not exact", model=lambda: make(), says=RANDOM, **options),
        f"{name}, with XLA": Case("not exact", model=lambda: make(jit_compile=True), says=RANDOM),
        f"{name}, run eagerly": Case("exact", model=lambda: make(run_eagerly=True)),
    }


class Subclassed(keras.Model):
    """Only its first step builds it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = unbuilt_layers()

    def call(self, x: Any, training: bool = False) -> Any:
        for part in self.parts:
            takes_training = isinstance(part, layers.BatchNormalization | layers.Dropout)
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


def unbuilt_layers() -> list[Any]:
    normalized = [layers.Dense(7), layers.BatchNormalization(), layers.Activation("relu")]
    return [*normalized, layers.Dropout(0.3), layers.Dense(1, activation="sigmoid")]


def unbuilt(make: Callable[[], keras.Model], **options: Any) -> Callable[[], keras.Model]:
    return lambda: compiled(make(), keras.optimizers.Adam(0.01), **options)


def short_sequential() -> keras.Model:
    return keras.Sequential([layers.Dense(7, "relu"), layers.Dropout(0.3), layers.Dense(1, "sigmoid")])


# As the examples of Keras write them: images of digits, and a step, a layer, an optimizer or an input of one's own.


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


def network(inputs: int, outputs: int, *inside: Any, name: str, activation: str | None = None) -> keras.Sequential:
    middle = inside or (layers.Dense(9, activation="relu"),)
    return keras.Sequential([keras.Input((inputs,)), *middle, layers.Dense(outputs, activation=activation)], name=name)


def logits() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def with_adam(model: keras.Model, **options: Any) -> keras.Model:
    model.compile(optimizer=keras.optimizers.Adam(0.01), **options)
    return model


def classifying(model: keras.Model) -> keras.Model:
    return with_adam(model, loss=logits(), metrics=["accuracy"])


def descend(optimizer: Any, tape: tf.GradientTape, loss: Any, part: Any) -> None:
    variables = getattr(part, "trainable_weights", part)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def trackers(*names: str) -> property:
    """The `metrics` of a model: attributes of its own."""
    return property(lambda model: [getattr(model, name) for name in names])


def tracked(metrics: Sequence[Any], *values: Any) -> dict[str, Any]:
    for metric, value in zip(metrics, values, strict=True):
        metric.update_state(value)
    return {metric.name: metric.result() for metric in metrics}


class Wrapped(keras.Model):
    """A network in another model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network(PIXELS, CLASSES, name="inner")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)


class FGSM(Wrapped):
    """Trains on images that were pushed towards the wrong answer."""

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


class Accumulating(Wrapped):
    """Applies the gradients of two steps at once: counter and sums are variables of TensorFlow, not of Keras."""

    def __init__(self, gradients: int = 2) -> None:
        super().__init__()
        self.n_gradients, self.n_acum_step = tf.constant(gradients), tf.Variable(0, trainable=False)
        self.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.inner.trainable_variables]

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


class Siamese(keras.Model):
    """Three images, the second like the first one."""

    metrics = trackers("loss_tracker")

    def __init__(self) -> None:
        super().__init__()
        self.embedding = network(PIXELS, 5, name="embedding")
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs: Any) -> Any:
        anchor, positive, negative = (self.embedding(image) for image in inputs)
        return ops.sum((anchor - positive) ** 2, -1), ops.sum((anchor - negative) ** 2, -1)

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            near, far = self(data)
            loss = ops.mean(ops.maximum(near - far + 0.5, 0.0))
        descend(self.optimizer, tape, loss, self.embedding)
        return tracked(self.metrics, loss)


def triplets(model: keras.Model) -> Arguments:
    x = digits()[0]
    return {"x": batched(x, x + 0.1, x[::-1].copy()).map(lambda *images: (images,)).map(lambda images: images)}


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


def classifier() -> keras.Model:
    return network(PIXELS, CLASSES, name="classifier")


def centralized() -> keras.Model:
    model = classifier()
    model.compile(Centralized(0.01), logits(), metrics=["accuracy"])
    return model


def beta(count: Any, concentration: float) -> Any:
    one, other = (tf.random.gamma((count,), concentration) for _ in range(2))
    return one / (one + other)


def mix_up(one: Any, other: Any) -> tuple[Any, Any]:
    share = beta(tiny.BATCH, 0.2)[:, None]
    return one[0] * share + other[0] * (1 - share), one[1] * share + other[1] * (1 - share)


def cut_mix(one: Any, other: Any) -> tuple[Any, Any]:
    """A part of another image is put into each."""
    begin = tf.random.uniform((), 0, PIXELS // 2, tf.int32)
    inside = tf.range(PIXELS)
    kept = tf.cast((inside < begin) | (inside >= begin + PIXELS // 2), tf.float32)
    return one[0] * kept + other[0] * (1 - kept), 0.5 * one[1] + 0.5 * other[1]


def mixed(mix: Callable[[Any, Any], tuple[Any, Any]], **options: Any) -> Callable[[keras.Model], Arguments]:
    """Pairs of images of two shuffled datasets, as in the examples, with random numbers in the map."""

    def fit(model: keras.Model) -> Arguments:
        x, y = digits()
        told = np.eye(CLASSES, dtype="float32")[y]
        return {"x": tf.data.Dataset.zip((batched(x, told), batched(x, told))).map(mix, **options)}

    return fit


def soft_classifier() -> keras.Model:
    return with_adam(classifier(), loss=keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])


EXAMPLES: dict[str, Case] = {
    "adversarial training": Case("exact", labelled, lambda: classifying(FGSM())),
    "triplets": Case("exact", triplets, lambda: with_adam(Siamese())),
    "gradients accumulated by hand": Case("exact", labelled, lambda: with_adam(Accumulating(), loss=logits())),
    "masked autoencoder": Case("exact", pictures, masked),
    "masked autoencoder, masks of tf.random": Case(
        "not exact", pictures, lambda: masked(tf.random.uniform), says=RANDOM
    ),
    "endpoint layer": Case("exact", named, endpoint, strategies=REPLICAS),
    "gradient centralization": Case("exact", labelled, centralized),
    "MixUp": Case("exact", mixed(mix_up), soft_classifier),
    "MixUp, in parallel calls": Case(  # as the example has it; two uninterrupted runs differ too
        "not exact", mixed(mix_up, num_parallel_calls=tf.data.AUTOTUNE), soft_classifier, says="parallel"
    ),
    "CutMix": Case("exact", mixed(cut_mix), soft_classifier),
}
UNBUILT = {
    "Sequential": unbuilt(lambda: keras.Sequential(unbuilt_layers()), metrics=["accuracy"]),
    "subclassed": unbuilt(Subclassed, metrics=["accuracy"]),
    "train_step": unbuilt(Steps),
    "run_eagerly": unbuilt(Subclassed, run_eagerly=True),
    "jit_compile": unbuilt(Subclassed, jit_compile=True),
    "steps_per_execution": unbuilt(Subclassed, steps_per_execution=2),
}
NOT_WITH_REPLICAS = {"steps_per_execution"}  # Keras itself fails, also without this package
EXACT_MODELS: dict[str, Callable[[], keras.Model]] = {
    "train_step of one's own": lambda: built(Stepping()),
    "Python attribute that a train_step counts up": lambda: built(CountsInPython(), run_eagerly=True),
    "schedule that counts its calls, run eagerly": lambda: dense(
        keras.optimizers.SGD(CountsItsCalls(), momentum=0.9), run_eagerly=True
    ),
    "variable in a loss": lambda: dense(loss=RisingLoss()),
    "second optimizer": adversaries,
    "accumulated gradients": accumulated,
    "loss scaling": loss_scaled,
    "nested optimizers": lambda: loss_scaled(averaged(gradient_accumulation_steps=2)),
    "Normalization adapted in both runs": lambda: normalized(adapt=True),
}
MODEL_CASES: dict[str, Case] = {
    "large Embedding": Case("exact", words, lambda: embedded("adam")),
    "large Embedding with sparse updates": Case(
        "exact if", words, lambda: embedded(keras.optimizers.SGD(0.1)), says="enable_op_determinism"
    ),
    **each_way("tf.random in a layer", lambda **options: dense(inside=(Noise(),), **options), strategies=EVERYWHERE),
    **each_way("tf.nn.dropout in a train_step", lambda **options: built(Stepping(drop), **options)),
    **each_way("tf.random.shuffle in a train_step", lambda **options: built(Stepping(mix), **options)),
    **{name: Case("exact", model=model) for name, model in EXACT_MODELS.items()},
    "Sequential without Input": Case("exact", model=unbuilt(short_sequential), strategies=EVERYWHERE),
    "stateful LSTM": Case(
        "exact",
        sequences,
        lambda: recurrent(keras.Input(batch_shape=(tiny.BATCH, 3, 2)), layers.LSTM(4, stateful=True)),
    ),
    "averages of the optimizer": Case("exact", model=lambda: dense(averaged()), strategies=EVERYWHERE),
    "Normalization adapted in the first run alone": Case(
        "exact", model=lambda: normalized(adapt=True), resumed={"model": lambda: normalized(adapt=False)}
    ),
    "Normalization in a map": Case("exact", adapted(layers.Normalization)),
    "Discretization in a map": Case("exact", adapted(lambda: layers.Discretization(num_bins=5))),
    "TextVectorization in a map": Case("exact", texts),
    **{
        f"not built: {kind}, killed in epoch {epoch}": Case(
            "exact",
            model=model,
            strategies=("default",) if kind in NOT_WITH_REPLICAS else EVERYWHERE,
            kills=((epoch, 2),),
        )
        for kind, model in UNBUILT.items()
        for epoch in (0, 1)
    },
    **{f"keras.io: {name}": case for name, case in EXAMPLES.items()},
}

"""Cases of which the input matters: variables in maps, pipelines that race, Python code, and scripts that changed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import tiny
from tests.support.exactness_models import EVERYWHERE, Arguments, Case, Verdict, adversaries, compiled, dense
from tests.support.inputs import INPUTS, STEPS, Batches, SelfShuffling, rows, shuffle

PYTHON_CODE = r"keeps no state( of its own)?,"
PARALLEL = r"(?i)parallel"
ORDER = r"(?i)determinis|order"
AUTOTUNE = tf.data.AUTOTUNE
TWO_CALLS = {"num_parallel_calls": 2}
SIGNATURE = (tf.TensorSpec((6,), "float32"), tf.TensorSpec((1,), "float32"))
MORE_STRATEGIES = {  # which of the cases below are tried under how many of them
    **dict.fromkeys(("augmentation in a map", "augmentation in a map, prefetched"), 3),
    **dict.fromkeys(("finite", "shuffled without a seed of its own", "shuffle, repeat", "numpy"), 3),
    **dict.fromkeys(("finite with fewer steps_per_epoch", "shuffled validation"), 3),
    **dict.fromkeys(("augmentation of an endless dataset", "number of rows"), 2),
}
Rows = tuple[np.ndarray, np.ndarray]
Draw = Callable[[tuple[int, ...]], np.ndarray]
Make = Callable[[], "tf.data.Dataset | Arguments"]


def for_images(*first: Any) -> keras.Model:
    ends = [keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")]
    return compiled(keras.Sequential([keras.Input((6, 6, 1)), *first, *ends]), metrics=["accuracy"])


def image_rows() -> Rows:
    rng = np.random.default_rng(0)
    return rng.random((tiny.ROWS, 6, 6, 1), "float32"), rng.integers(2, size=(tiny.ROWS, 1)).astype("float32")


def images() -> tf.data.Dataset:
    """Shuffled and batched: what comes after it gets a batch of images, as in the guides of Keras."""
    return tf.data.Dataset.from_tensor_slices(image_rows()).shuffle(tiny.ROWS, seed=3).batch(tiny.BATCH)


def given(make: Make) -> Callable[[keras.Model], Arguments]:
    """The arguments of fit(), of which most have nothing but a dataset."""

    def fit(model: keras.Model) -> Arguments:
        made = make()
        return made if isinstance(made, dict) else {"x": made}

    return fit


def strategies_of(name: str) -> tuple[str, ...]:
    return EVERYWHERE[: MORE_STRATEGIES.get(name, 1)]


def of_rows(expected: Verdict, make: Make, says: str = "", **options: Any) -> Case:
    return Case(expected, given(make), says=says, **options)


def of_images(expected: Verdict, make: Make, says: str = "", **options: Any) -> Case:
    return Case(expected, given(make), for_images, says=says, **options)


def mapped(dataset: tf.data.Dataset, change: Callable[[Any], Any], **options: Any) -> tf.data.Dataset:
    return dataset.map(lambda x, y: (change(x), y), **options)


def flip() -> Any:
    return keras.layers.RandomFlip()


def rotation() -> Any:
    return keras.layers.RandomRotation(0.2)


def augment(dataset: tf.data.Dataset, *layers: Any, **options: Any) -> tf.data.Dataset:
    def through(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        for layer in layers:
            x = layer(x, training=True)
        return x, y

    return dataset.map(through, **options)


def keras_noise(seed: Any = None) -> tf.data.Dataset:
    return mapped(tiny.shuffled(), lambda x: x + keras.random.normal((6,), stddev=0.3, seed=seed))


def counted() -> tf.data.Dataset:
    batches = tf.Variable(0.0)
    return mapped(tiny.shuffled(), lambda x: x * (1.0 + 0.1 * batches.assign_add(1.0)))


def cached_augmentation() -> tf.data.Dataset:
    once = tf.data.Dataset.from_tensor_slices(image_rows()).batch(tiny.BATCH)
    return augment(once, flip()).cache().shuffle(tiny.STEPS, seed=3)


def one_layer_for_both() -> Arguments:
    layer = flip()
    return {"x": augment(images(), layer), "validation_data": augment(images(), layer)}


def of_epochs(fn: Any) -> Arguments:
    return {"x": fn(0), "callbacks": [kdc.EpochDataset(fn)]}


def epochs_of_one_layer() -> Arguments:
    layer = flip()
    return of_epochs(lambda epoch: augment(images(), layer))


def in_order_of(seed: int = 3, buffer: int = tiny.ROWS) -> tf.data.Dataset:
    return rows().shuffle(buffer, seed=seed).batch(tiny.BATCH)


def shared_with_the_model(change: Callable[[Any], Any] = lambda data: data) -> Case:
    def fit(model: keras.Model) -> Arguments:
        return {"x": change(augment(images(), model.layers[0]))}

    return Case("not exact", fit, lambda: for_images(flip()), says=r"(?i)map|input|dataset")


EXACT_IMAGES: dict[str, Make] = {
    "augmentation in a map": lambda: augment(images(), flip()),
    "augmentation in a map, prefetched": lambda: augment(images(), rotation()).prefetch(2),
    "augmentation in a map, prefetched by AUTOTUNE": lambda: augment(images(), flip()).prefetch(AUTOTUNE),
    "two augmentation layers in a map": lambda: augment(images(), flip(), rotation()),
    "augmentation layers of a Sequential in a map": lambda: augment(images(), keras.Sequential([flip(), rotation()])),
    "augmentation in a map, cached": cached_augmentation,
    "augmentation of an endless dataset": lambda: {"x": augment(images().repeat(), flip()), "steps_per_epoch": 4},
    "augmentation of validation data too": lambda: {
        "x": augment(images(), flip()),
        "validation_data": augment(images().take(2), flip()),
    },
    "one augmentation layer for training and validation": one_layer_for_both,
}
VARIABLES_IN_MAPS = {
    **{name: of_images("exact", make, strategies=strategies_of(name)) for name, make in EXACT_IMAGES.items()},
    "augmentation layer in a map and in the model": shared_with_the_model(),
    "augmentation layer in a map, prefetched, and in the model": shared_with_the_model(lambda data: data.prefetch(2)),
    "augmentation in EpochDataset, one layer": of_images("exact if", epochs_of_one_layer, PYTHON_CODE),
    "augmentation in EpochDataset, a layer per epoch": of_images(
        "exact if", lambda: of_epochs(lambda epoch: augment(images(), flip())), PYTHON_CODE + "|EpochDataset"
    ),
    "EpochDataset that is seeded by the epoch": of_rows(
        "exact if", lambda: of_epochs(lambda epoch: in_order_of(epoch + 1)), PYTHON_CODE
    ),
    "keras.random without a seed in a map": of_rows("exact", keras_noise),
    "keras.random with a SeedGenerator in a map": of_rows("exact", lambda: keras_noise(keras.random.SeedGenerator(5))),
    "keras.random with a number as its seed in a map": of_rows("exact", lambda: keras_noise(5)),
    "a shuffled part behind another": of_rows(
        "exact",
        lambda: rows().repeat(4).batch(8).concatenate(rows().shuffle(40).batch(8)),
        strategies=EVERYWHERE[:2],
    ),
    "variable that a map increments": of_rows("exact", counted, strategies=EVERYWHERE),
}


def slow_for_some(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A function that takes for each row another time, so that neighbours finish out of order now and then."""
    turns = tf.cast(300.0 * tf.abs(x[0]), tf.int32)
    value = tf.while_loop(lambda i, v: i < turns, lambda i, v: (i + 1, tf.sin(v)), [0, x[1]])[1]
    return tf.where(value > 9.0, x + 1.0, x), y


def unordered() -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return rows().map(slow_for_some, num_parallel_calls=8).prefetch(1).batch(tiny.BATCH).with_options(options)


def unordered_map() -> tf.data.Dataset:
    return rows().map(slow_for_some, num_parallel_calls=8, deterministic=False).prefetch(1).batch(tiny.BATCH)


def unordered_interleave() -> tf.data.Dataset:
    slow = lambda x, y: tf.data.Dataset.from_tensors((x, y)).map(slow_for_some)  # noqa: E731
    return rows().interleave(slow, cycle_length=8, num_parallel_calls=8, deterministic=False).batch(tiny.BATCH)


def noise(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.normal(tf.shape(x), stddev=0.3)


def drawn_from_generator(**options: Any) -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(5)
    return mapped(shuffle(rows()), lambda x: x + generator.normal([6], stddev=0.3), **options).batch(tiny.BATCH)


def zipped(draw: Any, data: tf.data.Dataset, ahead: int = 4) -> tf.data.Dataset:
    """Two pipelines, each in a thread of its own, that draw from one state."""
    one, other = (mapped(data, draw).prefetch(ahead) for _ in range(2))
    return tf.data.Dataset.zip(one, other).map(lambda a, b: (a[0] + b[0], a[1]))


def zipped_generator() -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(5)
    return zipped(lambda x: x + generator.normal([6], stddev=0.3), rows()).batch(tiny.BATCH)


def zipped_layer() -> tf.data.Dataset:
    layer = flip()
    return zipped(lambda x: layer(x, training=True), images())


def stateless(**options: Any) -> tf.data.Dataset:
    seeds = tf.data.Dataset.counter().map(lambda i: tf.stack([i, i]))

    def through(row: Any, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return row[0] + tf.random.stateless_normal([6], seed, stddev=0.3), row[1]

    return tf.data.Dataset.zip(shuffle(rows()), seeds).map(through, **options).batch(tiny.BATCH)


def filtered(batch: int = tiny.BATCH, *, shuffles: bool = False) -> tf.data.Dataset:
    return (shuffle(rows()) if shuffles else rows()).filter(lambda x, y: x[0] > -0.5).batch(batch)


RACING = {
    "input of unknown length under several replicas": of_rows(
        "not exact", lambda: filtered(shuffles=True), "unknown length", strategies=("mirrored", "multi_worker")
    ),
    "order that options leave open": of_rows("not exact", unordered, ORDER),
    "order that a map leaves open": of_rows("not exact", unordered_map, ORDER),
    "order that interleave leaves open": of_rows("not exact", unordered_interleave, ORDER),
    "tf.random in a parallel map": of_rows(
        "not exact", lambda: mapped(shuffle(rows()), noise, **TWO_CALLS).batch(tiny.BATCH), PARALLEL
    ),
    "tf.random in a parallel map, AUTOTUNE": of_rows(
        "not exact", lambda: mapped(tiny.shuffled(), noise, num_parallel_calls=AUTOTUNE), PARALLEL
    ),
    "augmentation in a parallel map": of_images("not exact", lambda: augment(images(), flip(), **TWO_CALLS), PARALLEL),
    "augmentation in a parallel map, AUTOTUNE": of_images(
        "not exact", lambda: augment(images(), flip(), num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE), PARALLEL
    ),
    "generator in a map": of_rows("exact", drawn_from_generator),
    "generator in a parallel map": of_rows(
        "not exact", lambda: drawn_from_generator(**TWO_CALLS), r"Generator|(?i:parallel)"
    ),
    "one generator for two pipelines": of_rows("not exact", zipped_generator, "StateVar"),
    "one augmentation layer for two pipelines": of_images("not exact", zipped_layer, "seed_generator"),
    "parallel map without randomness": of_rows(
        "exact", lambda: shuffle(rows()).map(slow_for_some, **TWO_CALLS).batch(tiny.BATCH)
    ),
    "stateless random numbers of a counter": of_rows("exact", stateless),
    "stateless random numbers in a parallel map": of_rows("exact", lambda: stateless(**TWO_CALLS)),
}


def of_any_kind(name: str) -> Case:
    """Each input that fit() takes."""
    strategies = strategies_of(name)
    if "generator" in name or "two workers" in name:
        return of_rows("exact if", INPUTS[name], PYTHON_CODE, strategies=strategies)
    runs_out = name == "finite with fewer steps_per_epoch"  # after two batches of the second epoch
    return of_rows("exact", INPUTS[name], strategies=strategies, kills=((1, 1 if runs_out else 2),))


# Inputs that run Python code: what state it has cannot be inspected.


def shared_draw() -> Draw:
    """Of the random numbers that are numpy's own."""
    return lambda shape: np.random.normal(size=shape).astype("float32")


def own_draw() -> Draw:
    rng = np.random.default_rng(5)
    return lambda shape: rng.normal(size=shape).astype("float32")


class Noisy(Batches):
    def __init__(self, draw: Draw, **options: Any) -> None:
        super().__init__(**options)
        self.draw = draw

    def __getitem__(self, index: int) -> Rows:
        x, y = super().__getitem__(index)
        return x + self.draw(x.shape), y


class OwnGenerator(Batches):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(5)

    def __getitem__(self, index: int) -> Rows:
        x, y = super().__getitem__(index)
        return x + self.rng.normal(size=x.shape).astype("float32"), y


class ShuffledByItsGenerator(Batches):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(5)

    def on_epoch_end(self) -> None:
        self.rng.shuffle(self.order)


class DrawsRate(keras.callbacks.Callback):
    """Draws from the random numbers that the input draws from too."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * (0.5 + np.random.random())


def python_rows(draw: Draw, data: Callable[[], Rows] = tiny.data) -> tf.data.Dataset:
    def found() -> Iterator[Rows]:
        for x, y in zip(*data(), strict=True):
            yield x + draw(x.shape), y

    return tf.data.Dataset.from_generator(found, output_signature=SIGNATURE)


def endless(draw: Draw) -> Arguments:
    def batches() -> Iterator[Rows]:
        x, y = tiny.data()
        while True:
            for start in range(0, tiny.ROWS, tiny.BATCH):
                some = slice(start, start + tiny.BATCH)
                yield x[some] + draw((tiny.BATCH, 6)), y[some]

    return {"x": batches(), "steps_per_epoch": STEPS}


def in_python(change: Callable[[Any], Any], function: Any = tf.numpy_function) -> Callable[[Any], Any]:
    return lambda x: tf.ensure_shape(function(change, [x], tf.float32), x.shape)


def in_numpy(draw: Draw) -> tf.data.Dataset:
    return mapped(tiny.shuffled(), in_python(lambda a: a + draw(a.shape)))


def epochs_in_an_order_of_numpy() -> Arguments:
    def epoch_data(epoch: int) -> tf.data.Dataset:
        order = np.random.permutation(tiny.ROWS)
        x, y = tiny.data()
        return tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(tiny.BATCH)

    return of_epochs(epoch_data)


def loader(seed: int | None) -> Arguments:
    import torch

    torch.manual_seed(5)  # keras.utils.set_random_seed seeds torch only where it is the backend
    found = torch.utils.data.TensorDataset(*map(torch.from_numpy, tiny.data()))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return {"x": torch.utils.data.DataLoader(found, tiny.BATCH, shuffle=True, generator=generator)}


PYTHON_INPUTS: dict[str, Make] = {
    "numpy.random in a PyDataset": lambda: {"x": Noisy(shared_draw())},
    "a generator within a PyDataset": lambda: {"x": OwnGenerator()},
    "a generator in a closure of a PyDataset": lambda: {"x": Noisy(own_draw())},
    "PyDataset that shuffles itself by a generator": lambda: {"x": ShuffledByItsGenerator()},
    "PyDataset that shuffles itself, and is shuffled": lambda: {"x": SelfShuffling(), "shuffle": True},
    "PyDataset that shuffles itself, and a callback that draws": lambda: {
        "x": SelfShuffling(),
        "callbacks": [DrawsRate()],
    },
    "numpy.random in from_generator": lambda: python_rows(shared_draw()).batch(tiny.BATCH),
    "a generator in from_generator": lambda: python_rows(own_draw()).batch(tiny.BATCH),
    "numpy.random in from_generator, prefetched": lambda: python_rows(shared_draw()).batch(tiny.BATCH).prefetch(2),
    "numpy.random in a numpy_function": lambda: in_numpy(shared_draw()),
    "a generator in a numpy_function": lambda: in_numpy(own_draw()),
    "py_function without any state": lambda: mapped(tiny.shuffled(), in_python(lambda a: a * 2.0, tf.py_function)),
    "numpy.random in a Python generator": lambda: endless(shared_draw()),
    "a generator in a Python generator": lambda: endless(own_draw()),
    "numpy.random in EpochDataset": epochs_in_an_order_of_numpy,
}
if importlib.util.find_spec("torch"):
    PYTHON_INPUTS["DataLoader"] = partial(loader, None)
    PYTHON_INPUTS["DataLoader with a generator"] = partial(loader, 5)
EXACT_IN_PYTHON = ("that shuffles itself", "without any state")


def in_python_code(name: str) -> Case:
    if any(words in name for words in EXACT_IN_PYTHON):
        return of_rows("exact", PYTHON_INPUTS[name])
    return of_rows("exact if", PYTHON_INPUTS[name], PYTHON_CODE + "|PyDataset|EpochDataset|DataLoader")


INPUT_CASES: dict[str, Case] = {
    **VARIABLES_IN_MAPS,
    **RACING,
    **{f"input: {name}": of_any_kind(name) for name in INPUTS},
    **{name: in_python_code(name) for name in PYTHON_INPUTS},
}


# Callbacks as users write them: with state of their own, or without.


MADE: dict[str, Any] = {}  # what a script has at its top level, once the strategy is there


def annealed() -> keras.Model:
    weight = MADE["weight"] = keras.Variable(0.0, trainable=False, name="kl_weight")

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1) + weight * tf.reduce_mean(y_pred, axis=-1)

    return dense(loss=loss)


class Anneals(keras.callbacks.Callback):
    """Its state is all in the variable."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        MADE["weight"].assign(MADE["weight"] + 0.05)


class Lowers(keras.callbacks.Callback):
    def lower(self, factor: float = 0.5) -> None:
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.model.optimizer.learning_rate = factor * rate


class LowersEachThird(Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        if self.batches % 3 == 0:
            self.lower()


class SavesItself(LowersEachThird):
    def get_state(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def set_state(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


class AveragesInTensor(Lowers):
    """A tensor cannot change, but the next one takes its place."""

    def __init__(self) -> None:
        super().__init__()
        self.average = tf.constant(0.0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.average = 0.9 * self.average + 0.1 * batch
        self.lower(1.0 - 0.01 * float(self.average))


class ListsTensors(Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.batches = [tf.constant(0)]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(tf.constant(batch))
        self.lower(1.0 - 0.01 * len(self.batches))


class ListsLosses(Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])
        self.lower(1.0 / (1.0 + sum(self.losses) / 100))


class CountsInDict(Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {"batches": 0}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen["batches"] += 1
        self.lower(1.0 - 0.01 * self.seen["batches"])


class AveragesInArray(Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.window = np.zeros(4, "float32")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.window = np.roll(self.window, 1)
        self.window[0] = logs["loss"]
        self.lower(1.0 - 0.1 * float(self.window.mean()))


class LowersByGlobalNumpy(Lowers):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.lower(0.9 + 0.1 * np.random.random())


class DrawsOfItsOwn(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(5)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * (0.5 + self.rng.random())


class KeepsNothing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 / (1 + batch)


class OnlySettings(keras.callbacks.Callback):
    """Attributes that no method changes."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * self.factor**epoch


class CompilesAgain(keras.callbacks.Callback):
    """With another optimizer, at the end of an epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            with self.model.distribute_strategy.scope():
                optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9))
                self.model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
            self.model.make_train_function(force=True)


def prints() -> Any:
    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print("epoch", epoch, logs))


def kept() -> keras.Model:
    """The model, where the functions of a script find it."""
    model = MADE["model"] = dense()
    return model


def closes_over_a_list() -> list[Any]:
    losses: list[float] = []

    def lower(batch: int, logs: Any) -> None:
        losses.append(logs["loss"])
        model.optimizer.learning_rate = 0.1 / len(losses)

    model = MADE["model"]
    return [keras.callbacks.LambdaCallback(on_train_batch_end=lower)]


def of_keras() -> list[Any]:
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1),
        keras.callbacks.EarlyStopping("loss", patience=5, restore_best_weights=True),
        keras.callbacks.TerminateOnNaN(),
    ]


def followed(make: Callable[[], Any], expected: Verdict = "exact", says: str = "", **options: Any) -> Case:
    """A case of which only the callback matters."""
    return Case(expected, callbacks=lambda: [make()], says=says, **options)


CALLBACK_CASES: dict[str, Case] = {
    "variable in a loss that a callback assigns": followed(Anneals, model=annealed, strategies=EVERYWHERE[:2]),
    "callback with a counter": followed(LowersEachThird, strategies=EVERYWHERE),
    "callback with a list": followed(ListsLosses),
    "callback with a dict": followed(CountsInDict),
    "callback with an array": followed(AveragesInArray),
    "callback with a tensor": followed(AveragesInTensor),
    "callback with a list of tensors": followed(ListsTensors),
    "callback with a generator": followed(DrawsOfItsOwn),
    # under MirroredStrategy, TensorFlow fails in the step after it, without this package too
    "callback that compiles again": followed(
        CompilesAgain, "not exact", r"compile\(\) was called during fit\(\)", strategies=("default", "multi_worker")
    ),
    "callback with get_state": followed(SavesItself),
    "callback without any state": followed(KeepsNothing),
    "callback with settings alone": followed(lambda: OnlySettings(0.8)),
    "callback that draws from numpy.random": followed(LowersByGlobalNumpy),
    "LambdaCallback that prints": followed(prints),
    "LambdaCallback with a list in its closure": Case("exact", model=kept, callbacks=closes_over_a_list),
    "Keras' own callbacks": Case("exact", callbacks=of_keras),
}


# Scripts that were changed between the killed run and the resumed one.


def arrays(count: int = tiny.ROWS, **options: Any) -> Arguments:
    x, y = tiny.data()
    return {"x": x[:count], "y": y[:count], "batch_size": tiny.BATCH, **options}


def endless_rows(batch: int) -> Arguments:
    return {"x": rows().repeat().batch(batch), "steps_per_epoch": STEPS}


def some_rows(count: int) -> tf.data.Dataset:
    return rows().take(count).shuffle(tiny.ROWS, seed=3).batch(tiny.BATCH)


def weighted(weight: float) -> Arguments:
    return {"x": tiny.shuffled(), "class_weight": {0: 1.0, 1: weight}}


def noisy(seed: int) -> tf.data.Dataset:
    return mapped(tiny.shuffled(), lambda x: x + tf.random.normal([6], stddev=0.3, seed=seed))


def with_rate(rate: Any, momentum: float = 0.9) -> keras.Model:
    return dense(keras.optimizers.SGD(rate, momentum=momentum))


def with_schedule(rate: float) -> keras.Model:
    return with_rate(keras.optimizers.schedules.ExponentialDecay(rate, 5, 0.5))


def without_decay(pattern: str) -> keras.Model:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=[pattern])
    return dense(optimizer)


def of_two(one: str, other: str, before: str) -> Callable[[str], keras.Model]:
    """Two layers of one shape, in this order for the value from before, and in the other one after it."""

    def make(value: str) -> keras.Model:
        order = (one, other) if value == before else (other, one)
        layers = [keras.layers.Dense(7, activation="relu", name=name) for name in order]
        ends = [keras.layers.Dense(7, name="begin"), *layers, keras.layers.Dense(1, activation="sigmoid", name="end")]
        return compiled(keras.Sequential([keras.Input((6,)), *ends]))

    return make


# How it is made, of which value before and after, and what is said to have changed.
CHANGED_INPUTS: dict[str, tuple[Callable[[Any], Any], Any, Any, str]] = {
    "batch size of an endless dataset": (endless_rows, 8, 4, "batch"),
    "batch size of a dataset of unknown length": (filtered, 8, 4, "batch"),
    "number of rows": (some_rows, 40, 38, ""),
    "number of rows of an array": (arrays, 40, 38, ""),
    "shuffle of arrays": (lambda shuffle: arrays(shuffle=shuffle), True, False, "shuffle"),
    "class_weight": (weighted, 2.0, 3.0, "class_weight"),
    "seed of the shuffle": (in_order_of, 3, 4, "seed"),
    "buffer of the shuffle": (lambda buffer: in_order_of(buffer=buffer), 40, 20, "buffer"),
    "seed of random numbers in a map": (noisy, 5, 6, "seed"),
}
CHANGED_MODELS: dict[str, tuple[Callable[[Any], keras.Model], Any, Any, str]] = {
    # the saved rate is restored, so that the old job continues: not what the one who changed it has asked for
    "learning rate": (with_rate, 0.1, 0.05, "learning.rate"),
    "rate of a second optimizer": (adversaries, 0.02, 0.01, "learning.rate"),
    "schedule of the learning rate": (with_schedule, 0.1, 0.2, "learning.rate"),
    "momentum": (lambda momentum: with_rate(0.1, momentum), 0.9, 0.5, "momentum"),
    "exclude_from_weight_decay": (without_decay, "bias", "kernel", "exclude_from_weight_decay"),
    "loss": (lambda loss: dense(loss=loss), "binary_crossentropy", "mse", "loss"),
    "dtype policy": (lambda dtype: dense(dtype=dtype), "float32", "mixed_bfloat16", "dtype"),
    "run_eagerly": (lambda eager: dense(run_eagerly=eager, jit_compile=False), False, True, "run_eagerly"),
    "jit_compile": (lambda jit_compile: dense(jit_compile=jit_compile), False, True, "jit_compile"),
    "activation": (lambda activation: dense(activation=activation), "relu", "tanh", "activation"),
    "rate of dropout": (lambda rate: dense(rate=rate), 0.3, 0.5, "rate"),
    "layers swapped": (of_two("left", "right", "left"), "left", "right", ""),
    # said as Keras would have numbered them
    "layers numbered by hand swapped": (of_two("branch_1", "branch_2", "branch"), "branch", "branch_1", ""),
}


def changed(name: str) -> Case:
    table = CHANGED_INPUTS if name in CHANGED_INPUTS else CHANGED_MODELS
    make, before, after, what = table[name]
    values = [f"{value:g}" if isinstance(value, float) else str(value) for value in (before, after)]
    says = r"(?is)" + ".*".join([what, *map(re.escape, values)])
    if name in CHANGED_MODELS:
        resumed = {"model": partial(make, after)}
        return Case("not exact", model=partial(make, before), says=says, resumed=resumed)
    resumed = {"fit": given(partial(make, after))}
    return of_rows("not exact", partial(make, before), says, strategies=strategies_of(name), resumed=resumed)


CHANGE_CASES: dict[str, Case] = {f"changed: {name}": changed(name) for name in [*CHANGED_INPUTS, *CHANGED_MODELS]}

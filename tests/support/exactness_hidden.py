"""State that Python's objects keep out of sight; each was found in a program that was called exact and was not."""

from __future__ import annotations

import collections
import decimal
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support import tiny
from tests.support.exactness_case import Case, dense
from tests.support.inputs import Batches


class SetsRate(keras.callbacks.Callback):
    """The rate of each batch is a number that an object of the user's makes."""

    def __init__(self, number: Callable[[], float]) -> None:
        super().__init__()
        self.number = number

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.01 + 0.1 * (float(self.number()) % 1.0)


class Spawning:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)

    def __call__(self) -> float:
        return float(self.rng.spawn(1)[0].random())


class Reading:
    """Reads the next number of an iterator."""

    def __init__(self, numbers: Iterator[float]) -> None:
        self.numbers = numbers

    def __call__(self) -> float:
        return next(self.numbers) / 100


class CountingTwice:
    """Two attributes are one counter."""

    def __init__(self) -> None:
        self.steps = itertools.count()
        self.rate = map(float, self.steps)

    def __call__(self) -> float:
        return (next(self.steps) + next(self.rate)) / 100


class Popping:
    def __init__(self) -> None:
        self.names = {f"part {number}" for number in range(40)}

    def __call__(self) -> float:
        return sum(self.names.pop().encode()) / 97


class Numbering:
    """A dict gives each new key the next number."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = collections.defaultdict(itertools.count().__next__)
        self.seen = 0

    def __call__(self) -> float:
        self.seen += 1
        return self.numbers[self.seen // 2] / 50


class Summing:
    """The sum of an array depends on its order in memory."""

    def __init__(self) -> None:
        self.matrix = np.random.default_rng(3).random((300, 7)).astype("float32")

    def __call__(self) -> float:
        self.matrix = np.asfortranarray(self.matrix * np.float32(1.01))
        return float(self.matrix.sum())


class Locking:
    """Every second batch finds the lock taken."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self) -> float:
        if self.lock.acquire(blocking=False):
            return 0.2
        self.lock.release()
        return 0.7


class CountingInALibrary:
    """A module of a library has a name that the user gave it."""

    def __call__(self) -> float:
        np.batches_seen = getattr(np, "batches_seen", 0) + 1  # type: ignore[attr-defined]
        return float(np.batches_seen) / 30  # type: ignore[attr-defined]


class CountingInALateModule:
    """The module is imported when the function is called, so that no start knows it."""

    def __call__(self) -> float:
        from tests.support import imported_late

        imported_late.calls += 1
        return imported_late.calls / 30


class SettingTheProcess:
    """Asks for a setting of the process that it changes."""

    def __call__(self) -> float:
        decimal.getcontext().prec += 1
        return decimal.getcontext().prec / 50


class Rows(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.rows += 1


class CountingRows:
    def __init__(self) -> None:
        self.logger = logging.getLogger("tests.exactness.rows")
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(Rows())

    def __call__(self) -> float:
        self.logger.info("a batch")
        return self.logger.handlers[0].rows / 30  # type: ignore[attr-defined]


class OnVariable(keras.callbacks.Callback):
    """Counts in an attribute of a variable of the model."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        kernel = self.model.trainable_variables[0]
        kernel.seen = getattr(kernel, "seen", 0) + 1
        self.model.optimizer.learning_rate = 0.1 / kernel.seen


class Scaled(keras.layers.Layer):
    """A number that the trace of a function takes in."""

    scale = 1.0

    def call(self, x: Any) -> Any:
        return x * self.scale


class ScalesLater(keras.callbacks.Callback):
    """Predicts once, changes the number, and goes by what the old trace predicts."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        rows = tiny.data()[0][:4]
        self.model.predict(rows, verbose=0)
        self.model.layers[1].scale = 0.5 + 0.1 * epoch
        self.model.optimizer.learning_rate = 0.1 * float(self.model.predict(rows, verbose=0).mean())


class TrainsAnother(keras.callbacks.Callback):
    """A model that only a function of TensorFlow's reaches."""

    def __init__(self) -> None:
        super().__init__()
        other = dense(keras.optimizers.Adam(0.01))
        other.optimizer.build(other.trainable_variables)
        x, y = (tf.constant(part[:8]) for part in tiny.data())

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, other(x, training=False)))
            other.optimizer.apply(tape.gradient(loss, [v.value for v in other.trainable_variables]))
            return loss

        self.step = step

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * float(self.step())


class KeepsView(keras.callbacks.Callback):
    """Two names for one memory, made while training runs."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.losses = np.zeros(8)
            self.last = self.losses[4:]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.last[batch % 4] = logs["loss"]
        self.model.optimizer.learning_rate = 0.1 * float(self.losses.mean())


class Forecasts(keras.callbacks.Callback):
    """Its recurrent model has states that Keras does not list among the variables."""

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.Input(batch_shape=(1, 3, 1)), keras.layers.GRU(2, stateful=True, seed=1)])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 + 0.05 * float(self.net(np.ones((1, 3, 1), "float32"))[0, 0])


class AdaptsAgain(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.scaling = keras.layers.Normalization()
        self.scaling.adapt(tiny.data()[0])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.scaling.adapt(3.0 * tiny.data()[0])
        mean = float(keras.ops.mean(self.scaling(tiny.data()[0][:2])))
        self.model.optimizer.learning_rate = 0.05 + 0.01 * abs(mean)


UNSEEN = tiny.data()
STRENGTH: list[tf.Variable] = []  # made where the strategy is there
WEIGHTS = {0: 1.0, 1: 1.0}


class Fades(keras.callbacks.Callback):
    """Changes what validation copies once, what a cache keeps, and what Keras looks up for each batch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        UNSEEN[0][:] *= np.float32(0.5)
        for strength in STRENGTH:
            strength.assign(0.5 * strength)
        WEIGHTS[1] *= 1.5


def strengthened() -> tf.data.Dataset:
    STRENGTH.append(tf.Variable(1.0))
    strength = STRENGTH[-1]
    return tf.data.Dataset.from_tensor_slices(tiny.data()).batch(tiny.BATCH).map(lambda x, y: (x * strength, y))


def rate(make: Callable[[], Callable[[], float]]) -> Callable[[], list[Any]]:
    return lambda: [SetsRate(make())]


HIDDEN_CASES: dict[str, Case] = {
    "hidden: generator that spawns": Case("exact", callbacks=rate(Spawning)),
    "hidden: iterator over an array": Case(
        "not exact", callbacks=rate(lambda: Reading(iter(np.linspace(0.0, 90.0, 100)))), says="iterator"
    ),
    "hidden: iterators in a chain": Case(
        "exact if", callbacks=rate(lambda: Reading(itertools.chain(range(9), range(50, 90)))), says="chain"
    ),
    "hidden: one counter in two places": Case("not exact", callbacks=rate(CountingTwice), says="map"),
    "hidden: set that code pops from": Case("exact if", callbacks=rate(Popping), says="set"),
    "hidden: counter of a defaultdict": Case("not exact", callbacks=rate(Numbering), says="numbers"),
    "hidden: order of an array in memory": Case("exact if", callbacks=rate(Summing), says="memory"),
    "hidden: lock that is taken": Case("exact if", callbacks=rate(Locking), says="lock"),
    "hidden: handler that counts": Case("exact if", callbacks=rate(CountingRows), says="(?i)handler|rows"),
    "hidden: number in a library's module": Case("not exact", callbacks=rate(CountingInALibrary), says="batches_seen"),
    "hidden: number in a late module": Case("not exact", callbacks=rate(CountingInALateModule), says="calls"),
    "hidden: setting of the process": Case("exact if", callbacks=rate(SettingTheProcess), says="getcontext"),
    "hidden: attribute of a variable": Case("not exact", callbacks=lambda: [OnVariable()], says="seen"),
    "hidden: number in the trace of predict": Case(
        "exact if",
        model=lambda: dense(inside=(Scaled(),)),
        callbacks=lambda: [ScalesLater()],
        says="scale",
    ),
    "hidden: model that a function trains": Case("exact", callbacks=lambda: [TrainsAnother()]),
    "hidden: part of an array": Case("not exact", callbacks=lambda: [KeepsView()], says="shared memory"),
    "hidden: recurrent model of a callback": Case("exact", callbacks=lambda: [Forecasts()]),
    "hidden: layer that is adapted again": Case("not exact", callbacks=lambda: [AdaptsAgain()], says="adapt"),
    "hidden: validation arrays that change": Case(
        "exact if",
        lambda model: {"x": tiny.shuffled(), "validation_data": UNSEEN},
        callbacks=lambda: [Fades()],
        says="when the first validation of this fit",
    ),
    "hidden: variable in front of a cache": Case(
        "not exact", lambda model: {"x": strengthened().cache()}, callbacks=lambda: [Fades()], says="the first pass"
    ),
    "hidden: variable without a cache": Case("exact", lambda model: {"x": strengthened()}, callbacks=lambda: [Fades()]),
    "hidden: class weights of a PyDataset": Case(
        "exact", lambda model: {"x": Batches(), "class_weight": WEIGHTS}, callbacks=lambda: [Fades()]
    ),
}  # fmt: skip

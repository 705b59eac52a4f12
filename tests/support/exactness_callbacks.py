"""Callbacks as users write them: with state of their own, or without."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support.exactness_case import EVERYWHERE, Case, dense

_made: dict[str, Any] = {}  # what a script has at its top level, once the strategy is there


def annealed() -> keras.Model:
    weight = _made["weight"] = keras.Variable(0.0, trainable=False, name="kl_weight")

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1) + weight * tf.reduce_mean(y_pred, axis=-1)

    return dense(loss=loss)


class Anneals(keras.callbacks.Callback):
    """Its state is all in the variable."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        _made["weight"].assign(_made["weight"] + 0.05)


class _Lowers(keras.callbacks.Callback):
    def lower(self, factor: float = 0.5) -> None:
        self.model.optimizer.learning_rate = factor * float(
            keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)
        )


class LowersEachThird(_Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        if self.batches % 3 == 0:
            self.lower()


class AveragesInTensor(_Lowers):
    """A tensor cannot change, but the next one takes its place."""

    def __init__(self) -> None:
        super().__init__()
        self.average = tf.constant(0.0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.average = 0.9 * self.average + 0.1 * batch
        self.lower(1.0 - 0.01 * float(self.average))


class ListsTensors(_Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.batches = [tf.constant(0)]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(tf.constant(batch))
        self.lower(1.0 - 0.01 * len(self.batches))


class ListsLosses(_Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])
        self.lower(1.0 / (1.0 + sum(self.losses) / 100))


class CountsInDict(_Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {"batches": 0}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen["batches"] += 1
        self.lower(1.0 - 0.01 * self.seen["batches"])


class AveragesInArray(_Lowers):
    def __init__(self) -> None:
        super().__init__()
        self.window = np.zeros(4, "float32")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.window = np.roll(self.window, 1)
        self.window[0] = logs["loss"]
        self.lower(1.0 - 0.1 * float(self.window.mean()))


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


class SavesItself(LowersEachThird):
    def get_state(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def set_state(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


class LowersByGlobalNumpy(_Lowers):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.lower(0.9 + 0.1 * np.random.random())


def prints() -> list[Any]:
    return [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print("epoch", epoch, logs))]


def closes_over_a_list() -> list[Any]:
    losses: list[float] = []

    def lower(batch: int, logs: Any) -> None:
        losses.append(logs["loss"])
        model.optimizer.learning_rate = 0.1 / len(losses)

    model = _made["model"]
    return [keras.callbacks.LambdaCallback(on_train_batch_end=lower)]


def kept() -> keras.Model:
    """The model, where the functions of a script find it."""
    model = _made["model"] = dense()
    return model


def _with(expected: Any, callback: type, *arguments: Any, **options: Any) -> Case:
    says = "" if expected == "exact" else callback.__name__
    return Case(expected, callbacks=lambda: [callback(*arguments)], says=says, **options)


CALLBACK_CASES: dict[str, Case] = {
    "variable in a loss that a callback assigns": Case(
        "exact", model=annealed, callbacks=lambda: [Anneals()], strategies=EVERYWHERE[:2]
    ),
    "callback with a counter": _with("exact", LowersEachThird, strategies=EVERYWHERE),
    "callback with a list": _with("exact", ListsLosses),
    "callback with a dict": _with("exact", CountsInDict),
    "callback with an array": _with("exact", AveragesInArray),
    "callback with a tensor": _with("exact", AveragesInTensor),
    "callback with a list of tensors": _with("exact", ListsTensors),
    "callback with a generator": _with("exact", DrawsOfItsOwn),
    # under MirroredStrategy, TensorFlow fails in the step after it, without this package too
    "callback that compiles again": Case(
        "not exact",
        callbacks=lambda: [CompilesAgain()],
        says=r"compile\(\) was called during fit\(\)",
        strategies=("default", "multi_worker"),
    ),
    "callback with get_state": _with("exact", SavesItself),
    "callback without any state": _with("exact", KeepsNothing),
    "callback with settings alone": _with("exact", OnlySettings, 0.8),
    "callback that draws from numpy.random": _with("exact", LowersByGlobalNumpy),
    "LambdaCallback that prints": Case("exact", callbacks=prints),
    "LambdaCallback with a list in its closure": Case("exact", model=kept, callbacks=closes_over_a_list),
    "Keras' own callbacks": Case(
        "exact",
        callbacks=lambda: [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1),
            keras.callbacks.EarlyStopping("loss", patience=5, restore_best_weights=True),
            keras.callbacks.TerminateOnNaN(),
        ],
    ),
}

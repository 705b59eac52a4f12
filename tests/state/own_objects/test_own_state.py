"""Objects with `get_state` and `set_state`: what these leave out is found, restored and compared as in any other."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import tiny


class Adds(keras.callbacks.Callback):
    """What the model becomes depends on two numbers of it."""

    count = 0

    def __init__(self) -> None:
        super().__init__()
        self.rates = [0.01]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1
        self.rates.append(0.95 * self.rates[-1])
        self.model.layers[-1].bias.assign_add([self.rates[-1] / (1 + self.count % 3)])


class Registered(Adds):
    """Of another package; how one of its numbers is got and set is registered."""


class Stateless(keras.callbacks.Callback):
    """A class of which the user has asserted that it keeps no state."""


class ExtendsStateless(Stateless, Adds):
    """Of which that says nothing."""


class Replays(Adds):
    """Holds an iterator that cannot be saved; `set_state` advances it, fills a list and changes the model."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = (0.9 + 0.01 * n for n in range(100))
        self.log: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self.log.append(batch)
        self.model.layers[-1].bias.assign_add([next(self.steps) / len(self.log)])

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count, "log": self.log}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.log.extend(state["log"])
        for _ in range(self.count):
            next(self.steps)
        kernel = self.model.trainable_variables[0]
        kernel.assign(0.0 * kernel)


class Rates:
    """A schedule object that leaves out how often it was asked."""

    last, asked = 0.1, 0

    def __call__(self, epoch: int, rate: float) -> float:
        self.asked += 1
        self.last *= 0.9
        return self.last / self.asked

    def get_state(self) -> dict[str, Any]:
        return {"last": self.last}

    def set_state(self, state: dict[str, Any]) -> None:
        self.last = state["last"]


class StopsEarly(keras.callbacks.EarlyStopping):
    """Its own `get_state` takes the place of what is known of the class that it extends."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self.model.layers[-1].bias.assign_add([0.1 * self.wait])

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        assert not state


SHARED = {"rate": 0.01}


class SetsOtherwise(keras.callbacks.Callback):
    """`set_state` adds a number, notes something, and makes containers that are not as those were before."""

    is_resumed = False

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.last: collections.deque[int] = collections.deque(maxlen=3)
        self.settings = SHARED
        self.schedule = lambda settings=SHARED: settings["rate"]
        self.texts = {f"{number}" for number in range(900)}
        for number in range(30, 900):
            self.texts.discard(f"{number}")  # its table stays as large as it was

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rates.append(self.schedule())
        self.last.append(batch)
        self.settings["rate"] *= 0.9
        self.texts.pop()

    def get_state(self) -> dict[str, Any]:
        return {"last": list(self.last), "settings": dict(self.settings), "texts": sorted(self.texts)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.is_resumed = True
        self.rates.append(0.02)
        self.last, self.settings = collections.deque(state["last"]), dict(state["settings"])
        self.texts = set(state["texts"])


class ReadsWhenTraced(keras.losses.MeanSquaredError):
    """Adds what the dict holds when TensorFlow traces it."""

    def call(self, y: Any, predicted: Any) -> Any:
        with tf.init_scope():
            rate = float(SHARED["rate"])
        return rate + super().call(y, predicted)


@pytest.mark.finds("code")
@pytest.mark.slow  # complete fits
def test_what_get_state_leaves_out_is_restored_and_what_set_state_sets_otherwise_is_a_condition(tmp_path: Path) -> None:
    kdc.advanced.register_callback_state(Stateless, None)
    kdc.advanced.register_callback_state(
        Registered,
        get=lambda callback: {"count": callback.count},
        set=lambda callback, state: setattr(callback, "count", state["count"]),
    )

    def run(*callbacks: Any) -> keras.Model:
        SHARED["rate"] = 0.01
        model = tiny.model()
        model.compile("sgd", ReadsWhenTraced())
        scheduler, stopping = keras.callbacks.LearningRateScheduler(Rates()), StopsEarly("loss", 10.0, patience=9)
        own = [Registered(), ExtendsStateless(), Replays(), scheduler, stopping, SetsOtherwise()]
        tiny.fit(model, None, [*own, *callbacks], epochs=4)
        return model

    restored = tiny.resumes(tmp_path, run=run, at=(2, 3), expects=None).restored
    places = ("rates", "is_resumed", "last", "settings")
    assert {(found.code, found.subject, found.detail[0].partition(" (")[0]) for found in restored.findings} == {
        *(("set-otherwise", "", f"{place} of the callback SetsOtherwise") for place in places),
        ("unseen-state-of-callback", "the callback SetsOtherwise", "texts"),
        ("code", "call of the class ReadsWhenTraced", "it may read values when TensorFlow traces it"),
    }

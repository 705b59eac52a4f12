"""Objects with `get_state` and `set_state`: what these leave out is found, restored and compared as in any other."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import tiny

pytestmark = pytest.mark.slow


class Decays(keras.callbacks.Callback):
    """Its `get_state` holds one of two numbers on which the learning rate depends."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.rates = 0, [0.01]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1
        self.rates.append(0.95 * self.rates[-1])
        self.model.optimizer.learning_rate = self.rates[-1] / (1 + self.count % 3)

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class SetsAnotherValue(Decays):
    """Continues with a number of its own choice."""

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.rates.append(0.02)


class SetsWhatTrainingDoesNot(Decays):
    """Notes that it was restored."""

    def __init__(self) -> None:
        super().__init__()
        self.is_resumed = False

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.is_resumed = True


class Replays(Decays):
    """Holds an iterator that cannot be saved, and that `set_state` puts where it was; its list grows there."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = (0.9 + 0.01 * n for n in range(100))
        self.log: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self.log.append(batch)
        self.model.optimizer.learning_rate = self.rates[-1] * next(self.steps) / len(self.log)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "log": self.log}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.log.extend(state["log"])
        for _ in range(self.count):
            next(self.steps)


class Rates:
    """A schedule object with `get_state`, that leaves out how often it was asked."""

    def __init__(self) -> None:
        self.last, self.asked = 0.01, 0

    def __call__(self, epoch: int, rate: float) -> float:
        self.asked += 1
        self.last *= 0.9
        return self.last / self.asked

    def get_state(self) -> dict[str, Any]:
        return {"last": self.last}

    def set_state(self, state: dict[str, Any]) -> None:
        self.last = state["last"]


class Registered(keras.callbacks.Callback):
    """Of another package; how its state is got and set is registered."""

    count, rates = 0, (0.01,)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count, self.rates = self.count + 1, (*self.rates, 0.95 * self.rates[-1])
        self.model.optimizer.learning_rate = self.rates[-1] / (1 + self.count % 3)


class StopsEarly(keras.callbacks.EarlyStopping):
    """Its own `get_state` takes the place of what is known of the class that it extends."""

    def __init__(self) -> None:
        super().__init__("loss", patience=2, min_delta=10.0, restore_best_weights=True)
        self.seen = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen += 1
        super().on_epoch_end(epoch, logs)

    def get_state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class WithoutMaxlen(Decays):
    """Keeps the last three numbers, but after `set_state` all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.last: collections.deque[float] = collections.deque(maxlen=3)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self.last.append(0.001 * self.count)
        self.model.optimizer.learning_rate = sum(self.last)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "last": list(self.last)}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.last = collections.deque(state["last"])


class Draws(Decays):
    """Takes any item of a set, which `set_state` makes of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = {f"{number}" for number in range(40)}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.001 * float(self.numbers.pop())

    def get_state(self) -> dict[str, Any]:
        return {"numbers": sorted(self.numbers)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.numbers = set(state["numbers"])


SHARED = {"rate": 0.01}


class Shares(keras.callbacks.Callback):
    """Changes a dict that a schedule reads; `set_state` gives it one of its own."""

    def __init__(self) -> None:
        super().__init__()
        SHARED["rate"] = 0.01
        self.settings = SHARED
        self.schedule = lambda settings=SHARED: settings["rate"]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.settings["rate"] *= 0.9
        self.model.optimizer.learning_rate = self.schedule()

    def get_state(self) -> dict[str, Any]:
        return {"settings": dict(self.settings)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.settings = dict(state["settings"])


class ResetsWeights(Decays):
    """Its `set_state` changes what the model holds."""

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        kernel = self.model.trainable_variables[0]
        kernel.assign(0.0 * kernel)


def resumed(directory: Path, make: Callable[[], Any]) -> tuple[kdc.BackupAndRestore, bool]:
    """The callback of a run that was interrupted and resumed, and whether it ended as one that was not."""
    expected, model = tiny.model(), tiny.model()
    tiny.fit(expected, None, [make()], epochs=4)
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), directory, [make(), tiny.StopAt(2, 3)], epochs=4, save_freq=1)
    backup = kdc.BackupAndRestore(directory)
    tiny.fit(model, None, [make(), backup], epochs=4)
    weights = zip(model.get_weights(), expected.get_weights(), strict=True)
    return backup, all(np.array_equal(ours, theirs) for ours, theirs in weights)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(
    ("make", "verdict", "is_same"),
    [
        (Decays, "exact", True),
        (Replays, "exact", True),
        (lambda: keras.callbacks.LearningRateScheduler(Rates()), "exact", True),
        (Registered, "exact", True),
        (StopsEarly, "exact", True),
        (SetsAnotherValue, "exact if", False),
        (SetsWhatTrainingDoesNot, "exact if", True),
        (WithoutMaxlen, "exact if", False),
        (Draws, "exact if", None),  # the order of strings in a set depends on the process
        (Shares, "exact if", False),
        (ResetsWeights, "exact", True),
    ],
)
def test_what_get_state_leaves_out_is_restored_and_what_set_state_changes_is_compared(
    tmp_path: Path, make: Callable[[], Any], verdict: str, is_same: bool | None
) -> None:
    kdc.advanced.register_callback_state(
        Registered,
        get=lambda callback: {"count": callback.count},
        set=lambda callback, state: setattr(callback, "count", state["count"]),
    )
    backup, ends_the_same = resumed(tmp_path, make)
    assert backup.restored is not None
    assert backup.restored.verdict == verdict, backup.restored
    assert is_same in (None, ends_the_same)


class Stateless(keras.callbacks.Callback):
    """A class of which the user has asserted that it keeps no state."""


class Counts(Stateless):
    """One that extends it and keeps some."""

    count = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1
        self.model.optimizer.learning_rate = 0.01 / (1 + self.count)


def test_an_assertion_about_a_class_says_nothing_about_those_that_extend_it(tmp_path: Path) -> None:
    kdc.advanced.register_callback_state(Stateless, None)
    backup, ends_the_same = resumed(tmp_path, Counts)
    assert backup.restored is not None
    assert (backup.restored.verdict, ends_the_same) == ("exact", True), backup.restored


class ReadsWhenTraced(keras.layers.Layer):
    """Multiplies by what a variable holds when TensorFlow traces it."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = keras.Variable(1.0, trainable=False)

    def call(self, inputs: Any) -> Any:
        with tf.init_scope():
            factor = float(self.factor.value)
        return inputs * factor


class Lowers(keras.callbacks.Callback):
    """Changes that variable, which the traced step does not see."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.layers[1].factor.assign(0.5 ** (epoch + 1))


@pytest.mark.finds("code")
def test_a_variable_that_is_read_while_tensorflow_traces_is_a_condition(tmp_path: Path) -> None:
    def run(*callbacks: Any) -> None:
        inputs = keras.Input((6,))
        model = keras.Model(inputs, keras.layers.Dense(3)(ReadsWhenTraced()(inputs)))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(*tiny.data(), epochs=4, verbose=0, callbacks=[Lowers(), *callbacks])

    keras.utils.set_random_seed(1)
    with pytest.raises(tiny.Stop):
        run(
            kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait")),
            tiny.StopAt(2, 1),
        )
    keras.utils.set_random_seed(1)
    backup = kdc.BackupAndRestore(tmp_path)
    run(backup)
    assert backup.restored is not None
    assert backup.restored.verdict == "exact if"
    assert any("init_scope" in condition for condition in backup.restored.conditions)


@pytest.mark.parametrize("count", [3, 40, 900])
def test_the_order_of_a_set_that_get_state_knows_is_a_condition_and_not_lost(count: int, tmp_path: Path) -> None:
    class DrawsNumbers(Draws):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = {f"{number}" for number in range(count)}
            for number in range(3, count):
                self.numbers.discard(f"{number}")
            self.numbers |= {f"{number}" for number in range(30)}

    backup, _ = resumed(tmp_path, DrawsNumbers)
    assert backup.restored is not None
    assert backup.restored.verdict == "exact if", backup.restored

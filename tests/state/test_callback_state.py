"""What a callback's state may be, who provides it, and what is said when something is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError, BackupMismatchError, ConfigError
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.state import callback_state
from keras_dist_callbacks.state.callback_state import capture_callbacks, restore_callbacks
from keras_dist_callbacks.state.own_values import from_json, to_json
from tests.support import files, tiny
from tests.support.blobs import through_a_blob


class Mine(keras.callbacks.Callback):
    """A user's callback that gives `state` and takes what it gets."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()
        self.state: Any = {} if state is None else state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class Foreign(keras.callbacks.Callback):
    value = 1


@pytest.fixture(autouse=True)
def registrations_end_with_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared(callback_state.Classes), "registered", {})


def stored(value: Any) -> Any:
    """`value` after a way through a manifest and a blob."""
    held: dict[str, Any] = {}
    text = json.dumps(to_json(value, "callbacks/x", held))
    read = through_a_blob(held)
    assert list(read) == list(held)
    return from_json(json.loads(text), read)


@pytest.mark.parametrize(
    "value",
    [
        {"nested": [{"deep": [1, 2.5, None, True, "text \ud800 ü"]}], "tuple": (1, (2, [3]))},
        {"infinite": float("inf"), "big": 2**70, "precise": 0.1 + 0.2},
        np.float32(0.1),
        np.float64(0.1),
        np.int16(-3),
        np.bool_(True),
        {},
        [],
    ],
)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert stored(value) == value
    assert type(stored(value)) is type(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.arange(6, dtype=">i4"),
        np.zeros((0, 3), "float32"),
        np.array(3, "uint8"),
        np.array([1 + 2j], "complex64"),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([True, False]),
    ],
)
def test_arrays_come_back_as_they_were(array: np.ndarray) -> None:
    found = stored({"array": [array]})["array"][0]
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array)
    found[...] = 0  # it is the callback's own


def test_tensors_and_variables_become_arrays() -> None:
    found = stored([tf.constant([1.0, 2.0]), tf.Variable(3), keras.Variable([4.0])])
    assert [array.tolist() for array in found] == [[1.0, 2.0], 3, [4.0]]


def test_not_a_number_comes_back() -> None:
    assert np.isnan(stored(float("nan")))


def test_keys_with_slashes_do_not_mix_arrays_up() -> None:
    found = stored({"a": {"b": np.ones(1)}, "a/b": np.zeros(1)})
    assert (found["a"]["b"][0], found["a/b"][0]) == (1, 0)


def test_a_dict_keeps_its_keys_and_their_order() -> None:
    keys = [7, "7", (2, "a", None), True, 0.5, np.int64(3), "$array"]
    found = stored({"counts": {key: np.full(1, index) for index, key in enumerate(keys)}})["counts"]
    assert [(key, type(key), value[0]) for key, value in found.items()] == [
        (key, type(key), index) for index, key in enumerate(keys)
    ]


def itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = value
    return value


def shrunk_set() -> set[int]:
    found = set(range(1000))
    found.difference_update(range(3, 1000))  # few items in a large table
    return found


BAD_STATES = [
    ({"a": {"b": object()}}, r"callbacks/Mine\(\)/a/b: a object cannot be stored; use dicts"),
    ({"seen": shrunk_set()}, r"callbacks/Mine\(\)/seen: the order of this set is not kept; use a sorted list"),
    ({"a": [0, object()]}, r"callbacks/Mine\(\)/a/1: a object cannot be stored"),
    ({"a": {(1, np.datetime64("2026")): object()}}, r"callbacks/Mine\(\)/a/\(1, .*\): a object cannot be stored"),
    ({"model": Mine()}, r"callbacks/Mine\(\)/model: a Mine cannot be stored"),
    ({"objects": np.array([None])}, r"callbacks/Mine\(\)/objects: an array of object cannot be stored"),
    ({"records": np.zeros(2, [("x", "f4")])}, r"callbacks/Mine\(\)/records: an array of .* cannot be stored"),
    ({"symbol": keras.KerasTensor((1,))}, r"callbacks/Mine\(\)/symbol: a KerasTensor cannot be stored"),
    (itself(), r"callbacks/Mine\(\)/again/again.*nested more than 100 levels deep"),
    ([1, 2], r"the callback Mine\(\): get_state\(\) must return a dict, got list"),
]


@pytest.mark.parametrize(("state", "message"), BAD_STATES)
def test_what_cannot_be_stored_is_an_error_that_says_where(state: Any, message: str) -> None:
    with pytest.raises(BackupError, match=message):
        capture_callbacks([Mine(state)])


def test_what_cannot_be_stored_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    steps = tiny.CountSteps()
    with pytest.raises(BackupError, match=r"callbacks/Mine\(\)/seen: a object cannot be stored"):
        tiny.fit(tiny.model(), tmp_path / "backup", [Mine({"seen": object()}), steps])
    assert steps.trained == []
    assert list(tmp_path.rglob("*.json")) == []


def test_a_get_state_that_raises_is_named_before_the_first_step(tmp_path: Path) -> None:
    class Broken(Mine):
        def get_state(self) -> Any:
            raise KeyError("mine")

    steps = tiny.CountSteps()
    with pytest.raises(
        BackupError, match=r"cannot get the state of the callback Broken\(\): get_state\(\) raised KeyError: 'mine'"
    ):
        tiny.fit(tiny.model(), tmp_path / "backup", [Broken(), steps])
    assert steps.trained == []


@pytest.mark.slow
def test_what_cannot_be_stored_any_more_ends_training_and_earlier_backups_stay(tmp_path: Path) -> None:
    class Grows(Mine):
        bad_at = 3

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.state = {"value": object() if batch == self.bad_at else batch}

    with pytest.raises(BackupError, match=r"callbacks/Grows\(\)/value: a object cannot be stored"):
        tiny.fit(tiny.model(), tmp_path, [Grows()])
    fixed, steps = Grows(), tiny.CountSteps()
    fixed.bad_at = -1
    tiny.fit(tiny.model(), tmp_path, [fixed, steps], epochs=1)
    assert steps.trained == [(0, 3), (0, 4)]


class Refuses(Mine):
    refuses = True

    def set_state(self, state: Any) -> None:
        if self.refuses:
            raise KeyError("epochs_waited")
        super().set_state(state)


@pytest.mark.finds("set-otherwise")
@pytest.mark.slow
@pytest.mark.parametrize("save_freq", [1, "epoch"])
def test_a_set_state_that_raises_is_named_and_the_backup_is_untouched(
    tmp_path: Path, uninterrupted: Any, save_freq: int | str
) -> None:
    tiny.interrupt(tmp_path, 1, 2, save_freq, callbacks=[Refuses({"x": 1})])
    before, steps = files(tmp_path), tiny.CountSteps()
    message = r"the callback Refuses\(\) does not accept its saved state \(KeyError: 'epochs_waited'\); the backup is u"
    with pytest.raises(BackupMismatchError, match=message):
        tiny.fit(tiny.model(), tmp_path, [Refuses(), steps], save_freq=save_freq)
    assert steps.trained == []
    assert before.items() <= files(tmp_path).items()
    fixed, model = Refuses(), tiny.model()
    fixed.refuses = False
    tiny.fit(model, tmp_path, [fixed], save_freq=save_freq)
    assert fixed.state == {"x": 1}
    tiny.assert_same(model, uninterrupted[0])


def test_a_registered_class_needs_no_methods_and_its_subclasses_are_included(tmp_path: Path) -> None:
    class Derived(Foreign):
        pass

    kdc.advanced.register_callback_state(
        Foreign, lambda callback: {"value": callback.value}, lambda callback, s: setattr(callback, "value", s["value"])
    )
    for callback in (Foreign(), Derived()):
        callback.value = 7
        state, _ = capture_callbacks([callback])
        other = type(callback)()
        assert restore_callbacks([other], state, {}) == []
        assert other.value == 7


def test_the_nearer_of_a_registration_and_a_classs_own_methods_wins() -> None:
    class Derived(Mine):
        def get_state(self) -> Any:
            return {"own": 1}

    kdc.advanced.register_callback_state(Mine, lambda callback: {"registered": 1}, lambda callback, state: None)
    assert capture_callbacks([Mine(), Derived()])[0] == {"Mine()": {"registered": 1}, "Derived()": {"own": 1}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Mine(), len, len), "needs a class, got <tests"),
        ((Mine, None, len), "must be functions, got None"),
        ((Mine, len, "set"), "and 'set'"),
    ],
)
def test_a_wrong_registration_is_a_clear_error(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kdc.advanced.register_callback_state(*arguments)
    with pytest.raises(ConfigError, match="tuple of attribute names, got 'monitor'"):
        kdc.advanced.register_callback_state(Mine, len, print, identity="monitor")


def names(*callbacks: keras.callbacks.Callback) -> list[str]:
    return list(capture_callbacks(callbacks)[0])


def test_callbacks_are_distinguished_by_what_identifies_them_then_by_more_then_by_number() -> None:
    stop = keras.callbacks.EarlyStopping
    assert names(stop("a"), stop("b")) == ["EarlyStopping(monitor=a)", "EarlyStopping(monitor=b)"]
    patient, hasty = stop("a", patience=9), stop("a", patience=1)
    assert set(names(patient, hasty)) == set(names(hasty, patient))
    patient.min_delta = -patient.min_delta  # as Keras does at the first epoch's end
    assert names(patient, hasty) == names(stop("a", patience=9), stop("a", patience=1))
    assert names(Mine(), Mine(), Mine()) == ["Mine()", "Mine()#1", "Mine()#2"]


@pytest.mark.slow
def test_keras_callbacks_and_ours_of_the_same_name_are_not_mixed_up(tmp_path: Path) -> None:
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "m.keras", "loss")
    tiny.interrupt(tmp_path / "backup", 0, 2, callbacks=[checkpoint])
    with pytest.warns(RuntimeWarning, match=r"kdc.ModelCheckpoint\(.* was not in the interrupted run"):
        tiny.fit(tiny.model(), tmp_path / "backup", [kdc.ModelCheckpoint(tmp_path / "m.keras", "loss")])


@pytest.mark.finds("callback-new", "callback-gone", "edited-values")
@pytest.mark.slow
def test_keras_callbacks_without_state_are_named_too_when_they_come_or_go(tmp_path: Path) -> None:
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    tiny.interrupt(tmp_path, 0, 2, callbacks=[halve])
    with pytest.warns(RuntimeWarning) as caught:
        tiny.interrupt(tmp_path, 0, 3, callbacks=[keras.callbacks.TerminateOnNaN()])
    text = str(caught[0].message)
    assert "TerminateOnNaN() was not in the interrupted run; it starts without saved state" in text
    assert "LearningRateScheduler() of the interrupted run is not in the list now" in text


def test_a_large_state_of_keras_own_is_held_and_one_of_the_users_copied() -> None:
    weights, mine = np.ones(3), np.ones(3)
    stop = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    stop.best_weights = [weights]
    _, tensors = capture_callbacks([stop, Mine({"array": mine})])
    held = [tensor.array() for tensor in tensors.values()]
    assert np.shares_memory(held[0], weights)
    assert not np.shares_memory(held[1], mine)


@pytest.mark.finds("edited-code", "edited-callbacks")
@pytest.mark.slow
def test_the_best_weights_of_a_model_with_a_scalar_one_come_back(tmp_path: Path) -> None:
    """Keras hands such a weight out as a scalar of numpy; `Normalization` has one."""

    def build() -> keras.Model:
        scale = keras.layers.Normalization()
        scale.adapt(tiny.data()[0])
        return tiny.sequential(scale, keras.layers.Dense(1, activation="sigmoid"))

    stops = [keras.callbacks.EarlyStopping("loss", patience=5, restore_best_weights=True) for _ in range(3)]
    left = iter(stops)
    tiny.resumes(tmp_path, lambda: tiny.compiled(build), at=(2, 1), callbacks=lambda: [next(left)], expects=None)
    assert any(isinstance(weight, np.generic) for weight in stops[0].best_weights)
    assert [np.shape(weight) for weight in stops[1].best_weights] == [np.shape(w) for w in stops[0].best_weights]


class Adapting(keras.callbacks.Callback):
    """Begins each epoch with what it has noted of the one before, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch:
            self.model.optimizer.learning_rate = 0.1 * self.losses[epoch - 1]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])


class AdaptingByItself(Adapting):
    def get_state(self) -> dict[str, Any]:
        return {"losses": self.losses}

    def set_state(self, state: dict[str, Any]) -> None:
        self.losses = state["losses"]


def scheduled(notes: list[float]) -> list[keras.callbacks.Callback]:
    """A schedule that reads what another callback notes."""
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 * notes[epoch - 1] if epoch else rate)
    return [schedule, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: notes.append(logs["loss"]))]


class AdaptingByTheModel(keras.callbacks.Callback):
    """Notes it on the model, where a step that is traced might read it, and does not."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch:
            self.model.optimizer.learning_rate = 0.1 * self.model.notes[epoch - 1]
        else:
            self.model.notes = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.notes.append(logs["loss"])


@pytest.mark.in_gate(2)
@pytest.mark.parametrize(
    "make",
    [lambda: [Adapting()], lambda: [AdaptingByItself()], lambda: [AdaptingByTheModel()], lambda: scheduled([])],
)
def test_hooks_of_an_interrupted_epochs_begin_find_what_earlier_epochs_have_noted(tmp_path: Path, make: Any) -> None:
    """Keras calls them again in the middle of the epoch: a schedule must not raise for a list that is still empty."""
    restored = tiny.resumes(tmp_path, at=(2, 3), callbacks=make, expects=None).restored
    assert "traced" not in {finding.code for finding in restored.findings}  # no step reads it


class Warming(keras.callbacks.Callback):
    """Notes that an epoch begins, and forgets it with the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.is_first, self.epochs, self.waiting = False, 0, [0]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.is_first = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.epochs += self.is_first
        self.is_first = False
        self.model.optimizer.learning_rate = 0.1 / (1 + self.epochs)


class WarmingByItself(Warming):
    """Leaves out what is the same between two epochs."""

    def get_state(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def set_state(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]


class Queueing(Warming):
    """Likewise in a list."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.waiting.append(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        del self.waiting[1:]


@pytest.mark.parametrize("make", [Warming, WarmingByItself])
def test_what_hooks_of_an_epochs_begin_change_again_is_taken_back(tmp_path: Path, make: Any) -> None:
    """What is as it was at the script's start is in no backup, and these hooks have changed it since."""
    tiny.resumes(tmp_path, at=(1, 3), callbacks=lambda: [make()], expects=None)


def test_what_they_change_again_in_a_container_is_named(tmp_path: Path) -> None:
    said = "waiting .*has changed it again"
    tiny.resumes(tmp_path, at=(1, 3), callbacks=lambda: [Queueing()], expects="not exact", saying=said)

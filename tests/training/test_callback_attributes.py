"""Attributes of callbacks that do not say what their state is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.process import shared
from keras_dist_callbacks.training import callback_state
from keras_dist_callbacks.training.callback_attributes import TOPIC, CallbackAttributes
from keras_dist_callbacks.training.callback_state import watched_callbacks
from tests.support import tiny


class Own(keras.callbacks.Callback):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        vars(self).update(attributes)


def nothing_else(holder: Any) -> bool:
    return False


def changed(before: Own, **attributes: Any) -> tuple[CallbackAttributes, dict[str, Any], dict[str, Any]]:
    """What is saved of a callback after some of its attributes changed."""
    found = CallbackAttributes(watched_callbacks([before]))
    vars(before).update(attributes)
    topics, held = found.capture(nothing_else)
    return found, topics.get(TOPIC, {}), {name: tensor.array() for name, tensor in held.items()}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0, 1),
        (1.5, float("inf")),
        ("a", "b"),
        (None, [1.0, "x", None]),
        ({}, {"loss": [0.5, 0.25], "n": {"m": (1, 2)}}),
        (np.zeros(3), np.arange(3.0)),
        (np.float32(1), np.float32(2)),
        (True, 1),
        ([], [0.1 * i for i in range(1000)]),
        ([0], list(range(-100, 100))),
        ([], [2**70] * 100),
        ([], [1.0, 2] * 50),
    ],
)
def test_plain_values_that_changed_come_back_with_their_types(before: Any, after: Any) -> None:
    _, topic, tensors = changed(Own(value=before), value=after)
    again = Own(value=before)
    assert CallbackAttributes(watched_callbacks([again])).restore(topic, tensors) == []
    assert type(again.value) is type(after)
    assert not isinstance(after, list) or list(map(type, again.value)) == list(map(type, after))
    np.testing.assert_equal(again.value, after)


def test_what_did_not_change_is_not_saved_and_needs_no_word() -> None:
    found, topic, _ = changed(Own(rate=0.1, names=["a"], table=np.ones(4)))
    assert topic == {}
    assert found.conditions == []


def test_an_attribute_that_is_changed_in_place_is_noticed() -> None:
    callback = Own(losses=[])
    found = CallbackAttributes(watched_callbacks([callback]))
    callback.losses.append(1.0)
    topics, _ = found.capture(nothing_else)
    assert topics[TOPIC]["callback Own()"]["losses"]["now"] == [1.0]
    assert found.conditions[0].startswith("the callback Own() keeps no state but losses, which was restored")


@pytest.mark.parametrize(("before", "after"), [([], [1.0, 2.0]), ({}, {"a": 1})])
def test_lists_and_dicts_stay_the_objects_that_others_hold(before: Any, after: Any) -> None:
    _, topic, tensors = changed(Own(value=before), value=after)
    held: Any = type(before)()
    CallbackAttributes(watched_callbacks([Own(value=held)])).restore(topic, tensors)
    assert held == after


def test_a_callback_whose_instance_alone_says_its_state_is_not_looked_at() -> None:
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None, get_state=dict, set_state=print)
    assert watched_callbacks([callback]) == {}


def test_an_attribute_that_begins_otherwise_now_is_named_and_left_alone() -> None:
    _, topic, tensors = changed(Own(patience=3, seen=0), patience=2, seen=5)
    again = Own(patience=4, seen=0)
    (note,) = CallbackAttributes(watched_callbacks([again])).restore(topic, tensors)
    assert "patience of the callback Own() began as 3 in the interrupted run and as 4 now" in note
    assert (again.patience, again.seen) == (4, 5)


@pytest.mark.parametrize(
    "value", [np.random.default_rng(0), {1, 2}, object.__new__(Own), {1: iter([1])}, iter([1]), [{3}]]
)
def test_an_object_that_cannot_be_looked_into_is_a_condition(value: Any) -> None:
    found, topic, _ = changed(Own(hidden=value))
    assert topic == {}
    assert "keeps no state (in hidden)" in found.conditions[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (tf.constant(1.0), tf.constant(1.0)),
        ([tf.constant(1.0)], [tf.constant(1.0), tf.constant(2.0)]),
        ([len, 1], [len, 2]),
        ({"a": len}, {"a": max}),
        ({1: 2}, {1: 3}),
    ],
    ids=["tensor", "list of tensors", "number beside an object", "object in a dict", "number as a key"],
)
def test_what_cannot_be_saved_is_a_condition_once_it_is_another(before: Any, after: Any) -> None:
    found, _, _ = changed(Own(value=before))
    assert found.conditions == []
    found, topic, _ = changed(Own(value=before), value=after)
    assert topic == {}
    assert "keeps no state (in value)" in found.conditions[0]


@pytest.mark.parametrize("value", [Path("x"), np.maximum, len, keras, int, b"x", range(3), lambda: 1])
def test_what_has_no_state_needs_no_word(value: Any) -> None:
    found, _, _ = changed(Own(value=value))
    assert found.conditions == []


def test_settings_in_a_namespace_are_seen_and_a_change_of_them_is_a_condition() -> None:
    settings = argparse.Namespace(rate=0.1, names=["a"])
    found, _, _ = changed(Own(settings=settings))
    assert found.conditions == []
    settings.rate = 0.2
    found.capture(nothing_else)
    assert "(in settings)" in found.conditions[0]


def test_numbers_that_a_backup_cannot_hold_are_a_condition() -> None:
    found, topic, _ = changed(Own(value=np.longdouble(1)), value=np.longdouble(2))
    assert topic == {}
    assert "(in value)" in found.conditions[0]


def test_functions_that_hold_on_to_something_mutable_are_a_condition() -> None:
    seen: list[int] = []
    factor = 0.5
    quiet = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(factor))
    loud = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    for callback, expected in ((quiet, []), (loud, ["on_epoch_end"])):
        found = CallbackAttributes(watched_callbacks([callback]))
        found.capture(nothing_else)
        assert [text for text in expected if f"(in {text})" in found.conditions[0]] == expected
        assert bool(found.conditions) == bool(expected)


module_level: list[int] = []
module_constant = {"factor": [0.5, 0.25]}
module_generator = np.random.default_rng(0)


class UsesItsModule(Own):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        module_level.append(len(module_constant))


class DrawsFromItsModule(Own):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        print([module_generator.random() for _ in range(epoch)])


def test_what_a_callback_changes_in_its_module_is_a_condition() -> None:
    callback = UsesItsModule()
    found = CallbackAttributes(watched_callbacks([callback]))
    found.capture(nothing_else)
    assert found.conditions == []
    callback.on_epoch_end(0)
    found.capture(nothing_else)
    assert "keeps no state (in the module's module_level)" in found.conditions[0]
    drawing = CallbackAttributes(watched_callbacks([DrawsFromItsModule()]))
    drawing.capture(nothing_else)
    assert "(in the module's module_generator)" in drawing.conditions[0]


def test_a_layer_whose_variables_are_saved_needs_no_word() -> None:
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    callback = Own(layer=layer)
    found = CallbackAttributes(watched_callbacks([callback]))
    found.capture(lambda holder: holder is layer)
    assert found.conditions == []
    found.capture(nothing_else)
    assert "(in layer)" in found.conditions[0]


def test_callbacks_that_say_what_their_state_is_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Says(Own):
        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: dict[str, Any]) -> None: ...

    class OptedOut(Own): ...

    monkeypatch.setattr(shared(callback_state.Classes), "registered", {})
    kdc.register_callback_state(OptedOut, None)
    others = [kdc.PrintLR(), keras.callbacks.EarlyStopping(), keras.callbacks.History()]
    assert watched_callbacks([Says(), OptedOut(), *others]) == {}
    assert list(watched_callbacks([Own(), *others])) == ["callback Own()"]


@pytest.mark.slow
def test_of_an_extended_keras_callback_only_its_own_attributes_are_looked_at(tmp_path: Path) -> None:
    class Counts(keras.callbacks.EarlyStopping):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            self.epochs = [*getattr(self, "epochs", []), epoch]

    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [Counts("loss"), tiny.StopAt(2, 1)])
    callback, backup = Counts("loss"), kdc.BackupAndRestore(tmp_path)
    tiny.fit(tiny.model(), None, [callback, backup])
    assert callback.epochs == [0, 1, 2]
    (condition,) = [c for c in backup.restored.conditions if "Counts" in c]
    assert "keeps no state but epochs, which was restored" in condition

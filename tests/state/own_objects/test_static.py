"""While state is looked for, no code of the user's objects is called but get_state and set_state."""

from __future__ import annotations

import functools
import inspect
import types
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_objects import code
from tests.support import tiny
from tests.support.carried_over import looked_at
from tests.support.grouped import grouped
from tests.support.unlike_others import CALLED, all_of_them

SETTINGS: Any = None


class Holds(keras.callbacks.Callback):
    """Holds an object in an attribute, a list and a global, as a default and in a closure; reads all of them."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value
        self.values = [value]
        self.by_name = {"it": value, 1: (value,)}
        self.step, self.count = 0, {"steps": 0}

        def read(given: Any = value) -> Any:
            return value.anything, given.anything

        self.read = read

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        self.count["steps"] += 1
        if self.step < 0:
            self.read()
            print(SETTINGS.anything, SETTINGS.lr)


class Simulation:
    """Its get_state is one of another meaning."""

    def get_state(self, place: int) -> int:
        return place

    def set_state(self, place: int, value: int) -> None:
        raise AssertionError


@pytest.mark.parametrize("name", all_of_them())
def test_nothing_of_an_object_in_a_global_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.state.own_objects.test_static.SETTINGS", all_of_them()[name])
    CALLED.clear()
    callback = Holds(SETTINGS)
    looked_at(callback, looked_at(callback))
    assert CALLED == []


@pytest.mark.finds("unseen-state-of-callback")
def test_fit_runs_and_resumes_with_all_of_them_and_names_a_get_state_that_raises(tmp_path: Path) -> None:
    CALLED.clear()
    for epochs in (1, 2):
        backup = kdc.BackupAndRestore(tmp_path, save_freq=1, **grouped(delete_checkpoint=False, when_busy="wait"))
        held = (Simulation(), *all_of_them().values())
        tiny.fit(tiny.model(), None, [*map(Holds, held), backup], epochs=epochs)
    assert CALLED == []
    assert backup.restored is not None
    assert backup.restored.position.step == tiny.STEPS
    assert "value (its get_state() raised TypeError" in str(backup.restored.conditions)


NAMES = ["anything", "value", "lr", "get_state", "name", "shape", "__dict__", "__class__", "__doc__", "a", "x"]


class Slotted:
    __slots__ = ("a", "x")

    def __init__(self) -> None:
        self.a = 1


class Shadowed:
    """Names that lie in the `__dict__` and in the class: a property wins, a cached value and a method do not."""

    x = property(lambda self: 1)

    @functools.cached_property
    def a(self) -> int:
        return 2

    def __init__(self) -> None:
        vars(self).update(x=3, a=4, get_state=5)

    def get_state(self) -> int:
        return 6


def test_what_lies_in_an_object_is_what_inspect_finds() -> None:
    objects = [*all_of_them().values(), Slotted(), Shadowed(), Slotted, Shadowed, keras, keras.layers.Dense(1), len]
    for value in [value for value in map(static.target, objects) if type(value) is not types.MethodType]:
        for name in NAMES:
            found = inspect.getattr_static(value, name, None)
            if isinstance(found, property | functools.cached_property):
                assert static.attribute(value, name) is None, name
            elif not isinstance(found, types.MemberDescriptorType | types.GetSetDescriptorType):
                assert static.attribute(value, name) is found, name


def test_a_method_of_a_library_is_looked_at_again_once_it_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(self: Any, inputs: Any) -> Any:
        return inputs

    def replaced() -> list[Any]:
        return [function for _, function in code.replaced_methods(keras.layers.Dense)]

    assert mine not in replaced()
    monkeypatch.setattr(keras.layers.Dense, "call", mine)
    assert mine in replaced()
    monkeypatch.undo()
    assert mine not in replaced()

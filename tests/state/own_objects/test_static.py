"""While state is looked for, no code of the user's objects is called but get_state and set_state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
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

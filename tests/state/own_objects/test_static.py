"""While state is looked for, no code of the user's objects is called but get_state and set_state."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from tests.support.unlike_others import CALLED, all_of_them

SETTINGS: Any = None


class Holds(keras.callbacks.Callback):
    """Holds an object in an attribute, a list and a global, as a default and in a closure; reads all of them."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value
        self.values = [value]
        self.by_name = {"it": value, 1: (value,)}
        self.step = 0

        def read(given: Any = value) -> Any:
            return value.anything, given.anything

        self.read = read

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        if self.step < 0:
            self.read()
            print(SETTINGS.anything, SETTINGS.lr)


def fit(directory: Any, value: Any, epochs: int) -> kdc.BackupAndRestore:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 2), "float32")
    backup = kdc.BackupAndRestore(
        directory, save_freq=1, verbose=0, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
    )
    model.fit(x, x[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=[Holds(value), backup])
    return backup


class Simulation:
    """Its get_state is one of another meaning."""

    def get_state(self, place: int) -> int:
        return place

    def set_state(self, place: int, value: int) -> None:
        raise AssertionError


@pytest.mark.finds("unseen-state-of-callback")
def test_a_get_state_that_raises_is_a_condition(tmp_path: Any) -> None:
    for epochs in (1, 2):
        backup = fit(tmp_path / "backup", Simulation(), epochs)
    assert backup.restored is not None
    assert "value (its get_state() raised TypeError" in str(backup.restored.conditions)


@pytest.mark.in_gate(8)
@pytest.mark.parametrize("name", all_of_them())
def test_fit_runs_and_resumes_with_any_object_of_which_nothing_is_called(
    tmp_path: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epochs in (1, 2):
        value = all_of_them()[name]
        monkeypatch.setattr("tests.state.own_objects.test_static.SETTINGS", value)
        CALLED.clear()
        backup = fit(tmp_path / "backup", value, epochs)
        assert CALLED == []
    assert backup.restored is not None
    assert backup.restored.position.step == 2

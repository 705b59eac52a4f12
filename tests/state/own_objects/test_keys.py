"""What optimizers, models and callbacks keep under keys and numbers of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
from rich.progress import Progress

import keras_dist_callbacks as kdc
from tests.support import tiny

pytestmark = pytest.mark.slow  # complete fits


class Momentum(keras.optimizers.Optimizer):
    """Has slots for matrices only."""

    def __init__(self, key: Callable[[Any, Any], Any] | None) -> None:
        super().__init__(0.1, name="own")
        self.key = key or type(self)._var_key

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            matrices = [variable for variable in variables if len(variable.shape) == 2]
            self.slots = {self.key(self, v): self.add_variable_from_reference(v, name="momentum") for v in matrices}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        slot = self.slots.get(self.key(self, variable))
        if slot is not None:
            self.assign(slot, 0.9 * slot + gradient)
        self.assign_sub(variable, learning_rate * (gradient if slot is None else slot))

    def get_config(self) -> dict[str, Any]:
        return {}


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("key", [None, lambda optimizer, variable: id(variable)], ids=["name", "id"])
@pytest.mark.parametrize("eager", [False, True])
def test_an_optimizer_may_keep_its_slots_in_a_dict(tmp_path: Path, key: Any, eager: bool) -> None:
    def made() -> keras.Model:
        model = tiny.model()
        model.compile(Momentum(key), "binary_crossentropy", run_eagerly=eager)
        return model

    expected, resumed = made(), made()
    tiny.fit(expected, None)
    tiny.interrupt(tmp_path, 1, 2, built=made())
    backup = kdc.BackupAndRestore(tmp_path)
    tiny.fit(resumed, None, [backup])
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    tiny.assert_same(resumed, expected)


def test_a_list_of_layers_may_be_changed_before_training(tmp_path: Path) -> None:
    """TensorFlow refuses to track a list of which an item was replaced."""
    model = tiny.model()
    model.parts = [keras.layers.Dense(1), keras.layers.Dense(2)]
    model.parts[0] = keras.layers.Dense(3)
    tiny.fit(model, tmp_path, options={"delete_checkpoint": False})
    assert list(tmp_path.glob("commits/*.json"))


@pytest.mark.finds("unseen-state-assertable")
def test_a_dict_by_the_ids_of_objects_is_a_condition(tmp_path: Path) -> None:
    class Averages(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.averages = {id(w): w.numpy() for w in self.model.trainable_weights}

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            for weight in self.model.trainable_weights:
                self.averages[id(weight)] = 0.9 * self.averages[id(weight)] + 0.1 * weight.numpy()

    tiny.interrupt(tmp_path, 1, 2, built=tiny.model(), callbacks=[Averages()])
    backup = kdc.BackupAndRestore(tmp_path)
    tiny.fit(tiny.model(), None, [Averages(), backup])
    assert backup.restored is not None
    (condition,) = backup.restored.conditions
    assert "in averages (a dict whose keys may be the ids of objects)" in condition


def test_a_callback_may_know_the_tasks_of_a_progress_display_by_number(tmp_path: Path) -> None:
    class Shows(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.progress = Progress(disable=True)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.task = self.progress.add_task(f"epoch {epoch}", total=tiny.STEPS)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.progress.update(self.task, completed=batch + 1)
            assert self.progress.tasks[-1].completed == batch + 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.progress.remove_task(self.task)

    tiny.interrupt(tmp_path, 2, 2, built=tiny.model(), callbacks=[Shows()])
    backup, shows = kdc.BackupAndRestore(tmp_path), Shows()
    tiny.fit(tiny.model(), None, [shows, backup])
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    assert shows.task == 2

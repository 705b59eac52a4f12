"""What optimizers, models and callbacks keep under keys and numbers of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
from rich.progress import Progress

from tests.support import tiny


class Momentum(keras.optimizers.Optimizer):
    """Has slots for matrices only."""

    def __init__(self, *, by_id: bool) -> None:
        super().__init__(0.1, name="own")
        self.key = id if by_id else self._var_key

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            matrices = [variable for variable in variables if len(variable.shape) == 2]
            self.slots = {self.key(v): self.add_variable_from_reference(v, name="momentum") for v in matrices}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        slot = self.slots.get(self.key(variable))
        if slot is not None:
            self.assign(slot, 0.9 * slot + gradient)
        self.assign_sub(variable, learning_rate * (gradient if slot is None else slot))


class Averages(keras.callbacks.Callback):
    """Keeps averages by the ids of objects."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.averages = {id(weight): weight.numpy() for weight in self.model.trainable_weights}


class Shows(keras.callbacks.Callback):
    """Knows the tasks of a progress display by number."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.progress = Progress(disable=True)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.task = self.progress.add_task(f"epoch {epoch}", total=tiny.STEPS)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.progress.update(self.task, completed=batch + 1)
        assert self.progress.tasks[-1].completed == batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.progress.remove_task(self.task)

    def on_train_end(self, logs: Any = None) -> None:
        assert self.task == 2


@pytest.mark.finds("unseen-state-assertable")
@pytest.mark.in_gate(2)
@pytest.mark.slow  # complete fits
@pytest.mark.parametrize(("by_id", "eager"), [(False, False), (True, True), (True, False)])
def test_only_a_dict_of_a_callback_by_the_ids_of_objects_is_a_condition(
    tmp_path: Path, by_id: bool, eager: bool
) -> None:
    def run(*callbacks: Any) -> keras.Model:
        model = tiny.model()
        model.compile(Momentum(by_id=by_id), "binary_crossentropy", run_eagerly=eager)
        model.parts = [keras.layers.Dense(1), keras.layers.Dense(2)]
        model.parts[0] = keras.layers.Dense(3)  # TensorFlow refuses to track such a list
        tiny.fit(model, None, [Averages(), Shows(), *callbacks])
        return model

    ended = tiny.resumes(tmp_path, run=run, at=(2, 2), expects="exact if", alike=True)
    (condition,) = ended.restored.conditions
    assert "the callback Averages keeps no state in averages (a dict whose keys may be the ids of objects)" in condition

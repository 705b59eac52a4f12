"""What outlives a fit() in its process: nothing of the user's is kept alive, and later fits know what they must."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import tiny

pytestmark = pytest.mark.slow  # complete fits


class Holder(keras.callbacks.Callback):
    """Holds an array, also in what training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.array = np.zeros((100, 100))
        self.seen = np.zeros(3)
        self.lists = [self.array]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen[0] += 1
        self.lists.append(self.array)
        self.newest = {"array": self.array}


def what_is_alive(directory: Path, end: str, kept: str) -> list[str]:
    """Runs a fit, lets everything go but the model or the callback of this package, and looks what is still there."""
    model, holder = tiny.model(), Holder()
    rows = tf.data.Dataset.from_tensor_slices(tiny.data())
    dataset = rows.shuffle(tiny.ROWS).batch(tiny.BATCH) if end == "kept" else tiny.shuffled()
    backup = kdc.BackupAndRestore(directory, save_freq=1, delete_checkpoint=end == "deleted")
    stops = [tiny.StopAt(1, 2)] if end == "an exception" else []
    try:
        tiny.fit(model, None, [holder, *stops, backup], x=dataset)
    except tiny.Stop:
        assert stops
    objects = {"model": model, "backup": backup, "callback": holder, "array": holder.array, "dataset": dataset}
    alive = {name: weakref.ref(value) for name, value in objects.items()}
    kept_alive = objects[kept]
    del model, holder, rows, dataset, backup, stops, objects
    gc.collect()
    found = [name for name, value in alive.items() if value() is not None]
    assert kept_alive is alive[kept]()
    return found


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("end", ["kept", "deleted", "an exception", "a resume"])
def test_nothing_that_a_fit_was_given_is_kept_alive_by_its_model_or_by_the_callback(tmp_path: Path, end: str) -> None:
    for kept, expected in (("model", ["model"]), ("backup", ["model", "backup"])):  # as any callback keeps its model
        if end == "a resume":
            tiny.interrupt(tmp_path / kept, 1, 2)
        assert what_is_alive(tmp_path / kept, end, kept) == expected


class Changes(keras.callbacks.Callback):
    """Its state changes in some fits only: a number that comes back, a list that two names share, a new attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.sign = 1
        self.first = self.second = [0]
        self.array = self.other = np.zeros(2)
        self.lost = "there"

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.made = [epoch]
            self.sign = -1
            del self.lost
        if epoch == 1:
            self.first = [*self.first, 1]  # not shared any more
            self.array += 1
            self.sign = 1
        self.made.append(epoch)
        self.second.append(epoch)

    def summary(self) -> Any:
        self.other[0] += 1
        lists = self.sign, self.first, self.second, self.made, hasattr(self, "lost")
        return [*lists, self.array.tolist(), self.first is self.second]


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("stop", [(1, 2), (2, 0), (3, 2)])
def test_what_earlier_fits_of_a_loop_have_changed_is_restored_as_it_was(tmp_path: Path, stop: tuple[int, int]) -> None:
    def loop(directory: Path | None, stop: tuple[int, int] | None) -> tuple[Any, Any]:
        model, callback = tiny.model(), Changes()
        for epoch in range(4):
            ours = [] if directory is None else [kdc.BackupAndRestore(directory, save_freq=1, delete_checkpoint=False)]
            stops = [] if stop is None else [tiny.StopAt(*stop)]
            tiny.fit(model, None, [callback, *stops, *ours], initial_epoch=epoch, epochs=epoch + 1)
        return model, callback.summary()

    tiny.script_resumes(tmp_path, loop, stop)

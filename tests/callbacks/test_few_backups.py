"""Where few backups come through: said early, at the user's line; and the first one is not held up."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.engine.priority import Priority
from keras_dist_callbacks.engine.writer import Writer
from tests.support import tiny
from tests.support.busy_machine import REAL_TAKE


class NoteWarnings(keras.callbacks.Callback):
    """How many steps were trained when a warning came."""

    def __init__(self, caught: list[Any]) -> None:
        super().__init__()
        self.caught, self.steps, self.first = caught, 0, None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.002)
        self.steps += 1
        if self.first is None and any("in a row" in str(w.message) for w in self.caught):
            self.first = self.steps


kdc.register_callback_state(NoteWarnings, None)


def test_backups_that_do_not_come_through_are_told_early_at_the_line_of_fit(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        noted = NoteWarnings(caught)
        backup = kdc.BackupAndRestore(tmp_path, save_freq=1, max_bytes_per_second=20_000.0)
        model = tiny.rich_model()
        model.fit(tiny.shuffled(), epochs=2, verbose=0, callbacks=[backup, noted])
    told = [w for w in caught if "3 backups in a row were left out" in str(w.message)]
    assert len(told) == 1
    assert noted.first is not None
    assert told[0].filename == __file__
    assert told[0].category is RuntimeWarning


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own there")
def test_only_the_first_backup_is_written_with_the_priority_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Priority, "take", REAL_TAKE)
    writer, found = Writer(), []

    def note() -> None:
        found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))

    training = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    for urgent in (True, False):
        writer.submit(note, "a test", urgent=urgent)
        writer.wait()
    assert found == [training, (os.SCHED_BATCH, 19)]

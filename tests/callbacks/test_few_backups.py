"""Where few backups come through: said early, at the user's line; and the first one is not held up."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.run.engine import skipped_saves
from keras_dist_callbacks.run.engine.writer import shared_writer
from tests.support import tiny


class NoteWarnings(keras.callbacks.Callback):
    """How many steps were trained when the warning came, which lets the writer continue."""

    def __init__(self, caught: list[Any], writer: threading.Event) -> None:
        super().__init__()
        self.caught, self.writer = caught, writer
        self.steps, self.first = 0, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if not self.first and any("backups are skipped" in str(w.message) for w in self.caught):
            self.first = self.steps
            self.writer.set()

    def on_train_end(self, logs: Any = None) -> None:
        self.writer.set()


kdc.advanced.register_callback_state(NoteWarnings, None)


def test_backups_that_do_not_come_through_are_reported_early_at_the_line_of_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skipped_saves, "_LEAST_RISK", 0.0)
    goes_on = threading.Event()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        noted = NoteWarnings(caught, goes_on)
        backup = kdc.BackupAndRestore(tmp_path, save_freq=1)
        blocks = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: shared_writer().submit(lambda: goes_on.wait(60), "a slow write")
        )
        tiny.model().fit(tiny.shuffled(), epochs=3, verbose=0, callbacks=[blocks, noted, backup])
    told = [w for w in caught if "backups are skipped: a kill now loses" in str(w.message)]
    assert len(told) == 1
    assert 3 < noted.first < 15  # the first backup waits, and some intervals of the next ones are at risk
    assert told[0].filename == __file__
    assert told[0].category is RuntimeWarning

"""Memory that training did not get because a backup held it: the error says how much, and which option lowers it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.run.shutdown.controller import _of_memory
from tests.support import tiny

EXHAUSTED = tf.errors.ResourceExhaustedError(None, None, "failed to allocate memory")


@pytest.mark.parametrize(
    ("error", "held", "said"),
    [
        (EXHAUSTED, 2**20, ["1.0 MiB", "save_freq"]),
        (MemoryError(), 2**21, ["2.0 MiB", "save_freq"]),
        (EXHAUSTED, 0, None),
        (ValueError("another"), 2**20, None),
    ],
)
def test_an_error_for_want_of_memory_names_what_a_backup_holds(
    error: Exception, held: int, said: list[str] | None
) -> None:
    notes = _of_memory(error, held)
    assert len(notes) == (said is not None)
    assert all(part in notes[0] for part in said or [])


@pytest.mark.slow
def test_a_step_without_memory_while_a_backup_is_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, check = threading.Event(), threading.Event(), BackupStore.check_ownership

    def wait(store: BackupStore) -> None:
        begun.set()
        go_on.wait(30)
        check(store)

    class Exhaust(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                assert begun.wait(30)
                threading.Timer(0.2, go_on.set).start()
                raise EXHAUSTED

    monkeypatch.setattr(BackupStore, "check_ownership", wait)
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        tiny.fit(tiny.model(), tmp_path, [Exhaust()], save_freq=2)  # none waits for the one before
    assert any("an unfinished backup held up to" in note for note in caught.value.__notes__)

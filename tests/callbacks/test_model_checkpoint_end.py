"""When ModelCheckpoint notes that a training has ended, and when it takes that back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import keras
import pytest

from keras_dist_callbacks import ModelCheckpoint, Preempted
from keras_dist_callbacks.checkpoints import end_note
from keras_dist_callbacks.checkpoints.end_note import EndNote
from keras_dist_callbacks.run.engine.writer import shared_writer
from tests.support import tiny
from tests.support.callback_helpers import be_worker_1, ignore_keras_warnings
from tests.support.checkpoints import listed, opened
from tests.support.early_exits import FOREVER

pytestmark = [pytest.mark.slow, ignore_keras_warnings]


def notes(directory: Path) -> list[EndNote]:
    found, problems = end_note.read_all(opened(directory), listed(directory).templates)
    assert problems == []
    return found


def end(directory: Path) -> EndNote | None:
    return end_note.end_of(notes(directory), listed(directory))


class Look(keras.callbacks.Callback):
    """Whether an end is noted while training continues."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory, self.seen = directory, []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        shared_writer().wait()
        self.seen.append(end(self.directory))


def test_the_end_names_the_last_file(tmp_path: Path) -> None:
    tiny.fit(tiny.model(), None, [ModelCheckpoint(tmp_path / "{epoch}.keras", max_to_keep=1)], epochs=2)
    found = end(tmp_path)
    assert found is not None
    assert (found.template, found.generation, found.last) == ("{epoch}.keras", 1, "2.keras")


def test_early_stopping_is_an_end_too(tmp_path: Path) -> None:
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100.0)
    tiny.fit(tiny.model(), None, [ModelCheckpoint(tmp_path / "{epoch}.keras"), stop], epochs=9)
    found = end(tmp_path)
    assert found is not None
    assert found.last == "2.keras"


def test_a_deleted_backup_and_two_callbacks_end_alike(tmp_path: Path) -> None:
    callbacks = [ModelCheckpoint(tmp_path / "c" / name) for name in ("{epoch}.keras", "latest.keras")]
    tiny.fit(tiny.model(), tmp_path / "backup", callbacks, epochs=1)
    assert list((tmp_path / "backup").iterdir()) == [tmp_path / "backup/journals"]
    assert end(tmp_path / "c") is not None
    assert len(notes(tmp_path / "c")) == 2


class Signal(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.parametrize("how", [Signal(), tiny.StopAt(1, 2), tiny.StopAt(1, 2, KeyboardInterrupt())])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_interrupted_fit_has_no_end(tmp_path: Path, how: Any) -> None:
    options = {"signals": ["SIGUSR1"], "grace_period": FOREVER}
    callbacks = [ModelCheckpoint(tmp_path / "c" / "{epoch}.keras"), how]
    with pytest.raises((Preempted, tiny.Stop, KeyboardInterrupt)):
        tiny.fit(tiny.model(), tmp_path / "backup", callbacks, options=options)
    shared_writer().wait()
    assert (tmp_path / "c" / "1.keras").exists()
    assert notes(tmp_path / "c") == []


def test_a_new_run_takes_the_end_back_before_its_first_step(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        look = Look(tmp_path)
        tiny.fit(tiny.model(), None, [ModelCheckpoint(tmp_path / "{epoch}.keras"), look], epochs=2)
        assert look.seen == [None, None]
        found = end(tmp_path)
        assert found is not None
        assert found.generation == generation


def test_a_run_that_is_interrupted_leaves_the_end_of_the_one_before_taken_back(tmp_path: Path) -> None:
    tiny.fit(tiny.model(), None, [ModelCheckpoint(tmp_path / "{epoch}.keras")], epochs=1)
    tiny.stopped(tiny.fit, tiny.model(), None, [ModelCheckpoint(tmp_path / "{epoch}.keras"), tiny.StopAt(0, 0)])
    assert end(tmp_path) is None


def test_a_worker_that_writes_nothing_notes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_worker_1(monkeypatch)
    tiny.fit(tiny.model(), None, [ModelCheckpoint(tmp_path / "{epoch}.keras")], epochs=1)
    assert list(tmp_path.iterdir()) == []

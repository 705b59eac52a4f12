"""Keras' own tests of the callbacks that ours replace, taken from the installed Keras and run on our classes."""

from __future__ import annotations

import importlib
import unittest
from pathlib import Path
from typing import Any, NamedTuple

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.callbacks.reported_names import ReportedNames
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage.storage import Storage
from tests.support.callback_helpers import ignore_keras_warnings

# What Keras warns about there is Keras' own business.
pytestmark = [ignore_keras_warnings, pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.slow]


def keras_tests(module: str, request: pytest.FixtureRequest) -> Any:
    request.config.addinivalue_line("markers", "requires_trainable_backend: used by Keras' tests")
    try:
        return importlib.import_module(module)
    except ImportError:
        pytest.skip("this Keras ships without its tests")


def run(case: type[unittest.TestCase]) -> list[str]:
    """Runs all tests of a class.

    Returns:
        The tracebacks of those that failed.
    """
    result = unittest.TestResult()
    result.buffer = True
    unittest.TestLoader().loadTestsFromTestCase(case).run(result)
    keras.config.enable_traceback_filtering()  # Keras' tests switch it off for good
    assert result.testsRun >= 2
    return [trace for _, trace in [*result.failures, *result.errors]]


class ModelCheckpoint(kdc.ModelCheckpoint):
    """Ours, but for what we refuse on purpose.

    Newer versions of Keras save as the best what was never compared, also where no metric has the name.
    """

    def _report_nothing(self, epoch: int, batch: int | None, reason: str) -> None:
        super()._report_nothing(epoch, batch, reason)
        if hasattr(keras.callbacks.ModelCheckpoint, "_should_save_model"):  # the older ones skip it, as we do
            self._write(self.filepath, epoch, batch, {})

    def _compare_names(self) -> ReportedNames:
        return ReportedNames("ModelCheckpoint", {}, None, of_batches=False, warns=False)


@pytest.mark.parametrize(
    ("ours", "module", "case"),
    [
        (ModelCheckpoint, "keras.src.callbacks.model_checkpoint_test", "ModelCheckpointTest"),
        (kdc.TensorBoard, "keras.src.callbacks.tensorboard_test", "TestTensorBoardV2"),
    ],
)
def test_what_keras_tests_of_its_own_callback_holds_for_ours(
    ours: type, module: str, case: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = keras_tests(module, request)
    monkeypatch.setattr(found.callbacks, ours.__name__, ours)
    assert run(getattr(found, case)) == []


class BackupAndRestore(kdc.BackupAndRestore):
    """Ours, with the private attributes that Keras' tests look at next to the public behaviour.

    `_current_epoch` and `_last_batch_seen` count the hooks that this callback got, as Keras' do; the paths are
    those of our newest backup and of the one before it.
    """

    _current_epoch = 0
    _last_batch_seen = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["write_options"] = kdc.WriteOptions(when_busy="wait")  # a save that is skipped would be a warning
        super().__init__(*args, **kwargs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._last_batch_seen = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._current_epoch = epoch + 1

    def _commit_and_blob(self, age: int) -> tuple[str, str]:
        shared_writer().wait()
        store = BackupStore(Storage.open(self.backup_dir))
        commit = store.commits()[-age]
        blob = store.manifest(commit).blobs[0]
        return str(Path(self.backup_dir) / commit.name), str(Path(self.backup_dir) / blob.path)

    _training_metadata_path = property(lambda self: self._commit_and_blob(1)[0])
    _weights_path = property(lambda self: self._commit_and_blob(1)[1])
    _prev_training_metadata_path = property(lambda self: self._commit_and_blob(2)[0])
    _prev_weights_path = property(lambda self: self._commit_and_blob(2)[1])


class Deviation(NamedTuple):
    theirs: Any
    ours: Any
    reason: str


MORE_STEPS = Deviation(17, 15, "5 epochs of 3 batches are 15 steps; Keras trains the 2 of the interrupted epoch twice")
SAVED_LAST = "our hooks come after those of all other callbacks, so one that raises keeps us from being called; private"

# By test, and the number of the assertEqual in it.
BETWEEN_HOOKS = {("test_best_case_step", 5): MORE_STEPS}
WITHIN_HOOKS = {
    ("test_best_case_step", 1): Deviation(1, 0, SAVED_LAST),
    ("test_best_case_step", 5): MORE_STEPS,
    ("test_best_case_epoch", 1): Deviation(2, 1, SAVED_LAST),
}
NOT_GONE = {
    "test_model_deleted_case_epoch": "the directory stays, with the record of where the time has gone alone in it; "
    "test_the_backup_is_gone_after_fit tests that"
}
NOT_WITHIN_HOOKS = {
    **NOT_GONE,
    "test_backup_corrupted": "the epoch whose on_epoch_end raises is not saved, so that there is no second backup to "
    "fall back to; it runs with the interruption one hook later",
}


def interrupting_later(theirs: Any) -> Any:
    """Keras' InterruptingCallback, which raises before the next batch or epoch instead of after the last one."""

    class Later(theirs):  # type: ignore[misc]
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batch_count += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.epoch_count += 1

        def on_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.batch_count == self.steps_int:
                raise RuntimeError("StepsInterruption")

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if self.epoch_count == self.epoch_int:
                raise RuntimeError("EpochInterruption")

    return Later


@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")  # Keras' tests set no seed
@pytest.mark.filterwarnings("ignore:a damaged backup was quarantined:RuntimeWarning")
@pytest.mark.parametrize(
    ("later", "deviations", "excluded"), [(True, BETWEEN_HOOKS, NOT_GONE), (False, WITHIN_HOOKS, NOT_WITHIN_HOOKS)]
)
def test_what_keras_tests_of_its_backups_holds_for_ours_but_for_the_listed_deviations(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    later: bool,
    deviations: dict[tuple[str, int], Deviation],
    excluded: dict[str, str],
) -> None:
    found = keras_tests("keras.src.callbacks.backup_and_restore_test", request)
    monkeypatch.setattr(found.callbacks, "BackupAndRestore", BackupAndRestore)
    if later:
        monkeypatch.setattr(found, "InterruptingCallback", interrupting_later(found.InterruptingCallback))
    asked: list[tuple[str, int]] = []

    def assert_equal(self: unittest.TestCase, first: Any, second: Any, msg: Any = None) -> None:
        place = (self._testMethodName, sum(name == self._testMethodName for name, _ in asked))
        asked.append(place)
        deviation = deviations.get(place, Deviation(second, second, msg or "as Keras' own"))
        assert (second, first) == (deviation.theirs, deviation.ours), deviation.reason

    skipped = {name: unittest.skip(reason)(lambda self: None) for name, reason in excluded.items()}
    case = type("Case", (found.BackupAndRestoreCallbackTest,), {"assertEqual": assert_equal, **skipped})
    assert run(case) == []
    assert set(deviations) <= set(asked)
    resumed = {"test_best_case_step", "test_best_case_epoch", "test_backup_corrupted"} - set(excluded)
    assert {name for name, number in asked if number == 5} >= resumed, (
        "what Keras asserts after its resume was not reached"
    )

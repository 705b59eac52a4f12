"""BackupAndRestore within one process: each test compares with a run that was never interrupted."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import forget_runs, tiny
from tests.support.tiny import interrupt

pytestmark = pytest.mark.slow  # complete fits


@pytest.mark.parametrize(
    ("epoch", "batch", "save_freq"),
    [(1, 3, 1), (1, 3, 2), (2, 0, "epoch"), (2, 3, "epoch"), (1, 0, tiny.STEPS), (0, 2, 1)],
)
@pytest.mark.in_gate(1)
def test_a_resumed_run_ends_bit_identical(
    tmp_path: Path, uninterrupted_rich: Any, epoch: int, batch: int, save_freq: str | int
) -> None:
    reference, reference_history = uninterrupted_rich
    interrupt(tmp_path, epoch, batch, save_freq, built=tiny.rich_model())
    model = tiny.rich_model()
    history = tiny.fit(model, tmp_path, save_freq=save_freq)
    tiny.assert_same(model, reference)
    assert history.history == reference_history
    assert history.epoch == [0, 1, 2]


def test_no_step_is_repeated_and_none_skipped(tmp_path: Path) -> None:
    first, second = tiny.CountSteps(), tiny.CountSteps()
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [first, tiny.StopAt(1, 3)])
    tiny.fit(tiny.model(), tmp_path, [second])
    assert first.trained + second.trained == [(e, b) for e in range(3) for b in range(tiny.STEPS)]


def test_a_run_interrupted_again_in_the_same_epoch_still_ends_bit_identical(
    tmp_path: Path, uninterrupted_rich: Any
) -> None:
    for batch in (1, 2, 4):
        interrupt(tmp_path, 1, batch, built=tiny.rich_model())
    model = tiny.rich_model()
    history = tiny.fit(model, tmp_path)
    tiny.assert_same(model, uninterrupted_rich[0])
    assert history.history == uninterrupted_rich[1]


def test_early_stopping_and_plateau_decide_as_if_never_interrupted(tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        return [
            keras.callbacks.EarlyStopping("loss", min_delta=10, patience=2, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("loss", min_delta=10, patience=1, factor=0.5),
        ]

    reference = tiny.model()
    expected = tiny.fit(reference, None, callbacks(), epochs=6)
    assert len(expected.epoch) == 3, "the scenario needs an early stop"
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [*callbacks(), tiny.StopAt(2, 1)], epochs=6)
    model = tiny.model()
    history = tiny.fit(model, tmp_path, callbacks()[::-1], epochs=6)
    tiny.assert_same(model, reference)
    assert history.history == expected.history


def test_a_schedule_that_changes_the_rate_every_epoch_continues(tmp_path: Path) -> None:
    def schedule() -> Any:
        return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)

    reference = tiny.model()
    expected = tiny.fit(reference, None, [schedule()])
    for where, freq in (((1, 2), 1), ((2, 1), "epoch")):
        directory = tmp_path / str(freq)
        with pytest.raises(tiny.Stop):
            tiny.fit(tiny.model(), directory, [schedule(), tiny.StopAt(*where)], save_freq=freq)
        model = tiny.model()
        history = tiny.fit(model, directory, [schedule()], save_freq=freq)
        tiny.assert_same(model, reference)
        assert history.history["learning_rate"] == expected.history["learning_rate"]


class _RandomRate(keras.callbacks.Callback):
    """Draws from every global random state before each step, and lets training depend on it."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        drawn = random.random() + np.random.random() + float(tf.random.uniform(()))  # noqa: S311
        self.model.optimizer.learning_rate = 0.01 * (1 + drawn)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(("where", "save_freq"), [((1, 3), 1), ((2, 1), "epoch")])
def test_random_states_of_python_numpy_and_tensorflow_continue(tmp_path: Path, where: Any, save_freq: Any) -> None:
    reference = tiny.model()
    expected = tiny.fit(reference, None, [_RandomRate()])
    with pytest.raises(tiny.Stop):  # stopped before anything is drawn for that step
        tiny.fit(tiny.model(), tmp_path, [tiny.StopAt(*where), _RandomRate()], save_freq=save_freq)
    model = tiny.model()
    history = tiny.fit(model, tmp_path, [_RandomRate()], save_freq=save_freq)
    tiny.assert_same(model, reference)
    assert history.history == expected.history


class _StopInValidation(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.epoch == 1:
            raise tiny.Stop


def test_a_run_interrupted_in_validation_keeps_the_epochs_training_logs(tmp_path: Path) -> None:
    x, y = tiny.data()
    validation = (x[:16], y[:16])
    reference = tiny.model()
    expected = tiny.fit(reference, None, validation_data=validation)
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [_StopInValidation()], validation_data=validation)
    model = tiny.model()
    history = tiny.fit(model, tmp_path, validation_data=validation)
    tiny.assert_same(model, reference)
    assert history.history == expected.history


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("steps_per_epoch", [3, 7])
def test_an_endless_dataset_continues_where_it_was(tmp_path: Path, steps_per_epoch: int) -> None:
    def endless() -> tf.data.Dataset:
        return tiny.shuffled().repeat()

    reference = tiny.model()
    expected = tiny.fit(reference, None, x=endless(), steps_per_epoch=steps_per_epoch)
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [tiny.StopAt(2, 2)], x=endless(), steps_per_epoch=steps_per_epoch)
    model = tiny.model()
    history = tiny.fit(model, tmp_path, x=endless(), steps_per_epoch=steps_per_epoch)
    tiny.assert_same(model, reference)
    assert history.history == expected.history


def test_a_dataset_of_unknown_length_continues_where_it_was(tmp_path: Path) -> None:
    def filtered() -> tf.data.Dataset:
        return tiny.shuffled().unbatch().filter(lambda x, y: x[0] > -10.0).batch(tiny.BATCH)

    reference = tiny.model()
    with pytest.warns(UserWarning, match="ran out of data"):
        expected = tiny.fit(reference, None, x=filtered())
    with pytest.warns(UserWarning, match="ran out of data"), pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [tiny.StopAt(2, 2)], x=filtered())
    model = tiny.model()
    with pytest.warns(UserWarning, match="ran out of data"):
        history = tiny.fit(model, tmp_path, x=filtered())
    tiny.assert_same(model, reference)
    assert history.history == expected.history


def test_steps_per_execution_continues_where_it_was(tmp_path: Path) -> None:
    def model() -> keras.Model:
        built = tiny.model()
        built.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", steps_per_execution=2)
        return built

    rows = tf.data.Dataset.from_tensor_slices(tiny.data()).batch(5)  # 8 batches
    reference = model()
    expected = tiny.fit(reference, None, x=rows)
    with pytest.raises(tiny.Stop):
        tiny.fit(model(), tmp_path, [tiny.StopAt(1, 4)], x=rows)
    resumed = model()
    history = tiny.fit(resumed, tmp_path, x=rows)
    tiny.assert_same(resumed, reference)
    assert history.history == expected.history


def test_the_backup_is_gone_after_fit(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    tiny.fit(tiny.model(), backup)
    assert not backup.exists()


@pytest.mark.filterwarnings("ignore:.*runs no step:RuntimeWarning")  # a rerun is in a process of its own
def test_a_kept_backup_of_a_finished_run_runs_no_step_and_returns_the_history(
    tmp_path: Path, uninterrupted: Any
) -> None:
    keep = {"delete_checkpoint": False}
    tiny.fit(tiny.model(), tmp_path, options=keep)
    forget_runs()  # as in another process
    model, steps = tiny.model(), tiny.CountSteps()
    history = tiny.fit(model, tmp_path, [steps], options=keep)
    assert steps.trained == []
    assert history.history == uninterrupted[1]
    tiny.assert_same(model, uninterrupted[0])


def test_a_finished_run_continues_with_more_epochs(tmp_path: Path) -> None:
    reference = tiny.model()
    expected = tiny.fit(reference, None, epochs=5)
    keep = {"delete_checkpoint": False}
    tiny.fit(tiny.model(), tmp_path, epochs=3, options=keep)
    model = tiny.model()
    history = tiny.fit(model, tmp_path, epochs=5, options=keep)
    tiny.assert_same(model, reference)
    assert history.history == expected.history


def test_a_run_killed_before_its_end_was_committed_runs_no_step_again(tmp_path: Path, uninterrupted: Any) -> None:
    class StopAtTrainEnd(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            raise tiny.Stop

    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [StopAtTrainEnd()], save_freq="epoch")
    model, steps = tiny.model(), tiny.CountSteps()
    history = tiny.fit(model, tmp_path, [steps], save_freq="epoch")
    assert steps.trained == []
    assert history.history == uninterrupted[1]
    tiny.assert_same(model, uninterrupted[0])


@pytest.mark.parametrize("error", [tiny.Stop("the user's own"), KeyboardInterrupt()])
def test_after_an_exception_nothing_is_left_and_a_second_fit_resumes(
    tmp_path: Path, uninterrupted: Any, error: BaseException
) -> None:
    threads = set(threading.enumerate())
    model = tiny.model()
    with pytest.raises(type(error)):
        tiny.fit(model, tmp_path, [tiny.StopAt(1, 3, error)])
    assert {t for t in threading.enumerate() if t.name.startswith("kdc")} <= threads
    steps = tiny.CountSteps()
    history = tiny.fit(model, tmp_path, [steps])
    assert steps.trained[0] == (1, 3)
    tiny.assert_same(model, uninterrupted[0])
    assert history.history == uninterrupted[1]


def test_an_exception_outside_of_the_training_loop_leaves_nothing_either(tmp_path: Path, uninterrupted: Any) -> None:
    class StopAtEpochEnd(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise tiny.Stop

    callback = kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait"))
    model = tiny.model()
    with pytest.raises(tiny.Stop):
        tiny.fit(model, None, [callback, StopAtEpochEnd()])
    history = tiny.fit(model, None, [callback])
    tiny.assert_same(model, uninterrupted[0])
    assert history.history == uninterrupted[1]


def test_a_later_fit_of_the_same_model_starts_at_its_own_epoch(tmp_path: Path) -> None:
    interrupt(tmp_path, 2, 1)
    model = tiny.model()
    tiny.fit(model, tmp_path)
    steps = tiny.CountSteps()
    tiny.fit(model, None, [steps], epochs=1)
    assert steps.trained == [(0, b) for b in range(tiny.STEPS)]


def test_a_fit_that_begins_at_a_later_epoch_resumes_exactly(tmp_path: Path) -> None:
    reference = tiny.model()
    expected = tiny.fit(reference, None, epochs=5, initial_epoch=2)
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [tiny.StopAt(3, 2)], epochs=5, initial_epoch=2)
    model = tiny.model()
    history = tiny.fit(model, tmp_path, epochs=5, initial_epoch=2)
    tiny.assert_same(model, reference)
    assert history.history == expected.history
    assert history.epoch == [2, 3, 4]


def test_any_fsspec_path_holds_a_backup(uninterrupted: Any, request: pytest.FixtureRequest) -> None:
    url = f"memory://{request.node.name}/backup"
    interrupt(url, 1, 3)  # type: ignore[arg-type]
    model = tiny.model()
    tiny.fit(model, url)
    tiny.assert_same(model, uninterrupted[0])

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

from tests.support import forget_runs, tiny
from tests.support.early_exits import ActionAt, fail
from tests.support.resume_helpers import StopInValidation

pytestmark = pytest.mark.slow  # complete fits


def stopping_and_slowing() -> list[Any]:
    return [
        keras.callbacks.EarlyStopping("loss", min_delta=10, patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", min_delta=10, patience=1, factor=0.5),
    ]


def halving() -> list[Any]:
    return [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]


class _RandomRate(keras.callbacks.Callback):
    """Draws from every global random state before each step, and lets training depend on it."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        drawn = random.random() + np.random.random() + float(tf.random.uniform(()))  # noqa: S311
        self.model.optimizer.learning_rate = 0.01 * (1 + drawn)


def drawing() -> list[Any]:
    return [_RandomRate()]


def endless() -> tf.data.Dataset:
    return tiny.shuffled().repeat()


def filtered() -> tf.data.Dataset:
    return tiny.shuffled().unbatch().filter(lambda x, y: x[0] > -10.0).batch(tiny.BATCH)


def eight_batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tiny.data()).batch(5)


def two_steps_at_a_time() -> keras.Model:
    built = tiny.model()
    built.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", steps_per_execution=2)
    return built


RICH: dict[str, Any] = {"make": tiny.rich_model}
CHAOS = pytest.mark.chaos
RUNS_OUT = pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning")
RUNS: dict[str, list[Any]] = {
    "within an epoch": [RICH, (1, 3), 1],
    "some steps are trained again": [RICH, (1, 3), 2, CHAOS],
    "between two epochs": [RICH, (2, 0), "epoch", CHAOS],
    "an epoch is trained again": [RICH, (2, 3), "epoch", CHAOS],
    "at the last step of an epoch": [RICH, (1, 0), tiny.STEPS, CHAOS],
    "within the first epoch": [RICH, (0, 2), 1, CHAOS],
    "several times in one epoch": [RICH, ((1, 1), (1, 2), (1, 4)), 1],
    "a rate that changes in each epoch": [{"callbacks": halving}, (1, 2), 1],
    "a rate that changes in each epoch, between": [{"callbacks": halving}, (2, 1), "epoch"],
    "random states of Python, numpy and TensorFlow": [{"callbacks": drawing}, (1, 3), 1],
    "such random states between two epochs": [{"callbacks": drawing}, (2, 1), "epoch", CHAOS],
    "in validation": [{"validation_data": lambda: tuple(part[:16] for part in tiny.data())}, StopInValidation(1), 1],
    "fewer steps than the dataset has": [{"x": endless, "steps_per_epoch": 3}, (2, 2), 1, CHAOS],
    "more steps than a pass has": [{"x": endless, "steps_per_epoch": 7}, (2, 2), 1],
    "a dataset of unknown length": [{"x": filtered}, (2, 2), 1, RUNS_OUT],
    "two steps at a time": [{"make": two_steps_at_a_time, "x": eight_batches}, (1, 4), 1],
    "a fit that begins at a later epoch": [{"epochs": 5, "initial_epoch": 2}, (3, 2), 1],
}


@pytest.mark.in_gate(5)
@pytest.mark.parametrize(
    ("run", "at", "save_freq"), [pytest.param(*row[:3], marks=row[3:], id=name) for name, row in RUNS.items()]
)
def test_a_resumed_run_ends_bit_identical(tmp_path: Path, run: dict[str, Any], at: Any, save_freq: str | int) -> None:
    tiny.resumes(tmp_path, at=at, save_freq=save_freq, **run, expects=None)


def test_no_step_is_repeated_and_none_skipped(tmp_path: Path) -> None:
    steps = tiny.CountSteps()
    tiny.resumes(tmp_path, at=(1, 3), callbacks=lambda: [steps], alike=False)
    assert steps.trained == [(e, b) for e in range(3) for b in range(tiny.STEPS)]


def test_early_stopping_and_plateau_decide_as_if_never_interrupted_in_another_order_too(tmp_path: Path) -> None:
    orders = iter([1, -1, 1])
    ended = tiny.resumes(tmp_path, at=(2, 1), callbacks=lambda: stopping_and_slowing()[:: next(orders)], epochs=6)
    assert len(ended.history.epoch) == 3, "the scenario needs an early stop"


def test_the_backup_is_gone_after_fit(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    tiny.fit(tiny.model(), backup)
    assert list(backup.iterdir()) == [backup / "journals"]


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
    tiny.assert_same([model, history.history], uninterrupted)


def test_a_finished_run_continues_with_more_epochs(tmp_path: Path) -> None:
    def run(epochs: int, directory: Path | None) -> list[Any]:
        model = tiny.model()
        return [model, tiny.fit(model, directory, epochs=epochs, options={"delete_checkpoint": False})]

    run(3, tmp_path)
    tiny.assert_same(run(5, tmp_path), run(5, None))


def test_a_run_killed_before_its_end_was_committed_runs_no_step_again(tmp_path: Path, uninterrupted: Any) -> None:
    stop = keras.callbacks.LambdaCallback(on_train_end=lambda logs: fail())
    tiny.stopped(tiny.fit, tiny.model(), tmp_path, [stop], save_freq="epoch")
    model, steps = tiny.model(), tiny.CountSteps()
    history = tiny.fit(model, tmp_path, [steps], save_freq="epoch")
    assert steps.trained == []
    tiny.assert_same([model, history.history], uninterrupted)


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
    tiny.assert_same([model, history.history], uninterrupted)


def test_an_exception_outside_of_the_training_loop_leaves_nothing_either(tmp_path: Path, uninterrupted: Any) -> None:
    callback = tiny.backed_up(tmp_path)
    model = tiny.model()
    tiny.stopped(tiny.fit, model, None, [callback, ActionAt("on_epoch_end", (1, 0), fail)])
    history = tiny.fit(model, None, [callback])
    tiny.assert_same([model, history.history], uninterrupted)


def test_a_later_fit_of_the_same_model_starts_at_its_own_epoch(tmp_path: Path) -> None:
    model, steps = tiny.resumes(tmp_path, at=(2, 1)).model, tiny.CountSteps()
    tiny.fit(model, None, [steps], epochs=1)
    assert steps.trained == [(0, b) for b in range(tiny.STEPS)]


def test_any_fsspec_path_holds_a_backup(request: pytest.FixtureRequest) -> None:
    tiny.resumes(f"memory://{request.node.name}/backup", at=(1, 3))

"""`on_nonfinite=Rollback(...)`: a run that diverges goes back, tries again, and skips what fails again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from tests.support import forget_runs, tiny

pytestmark = [
    pytest.mark.slow,  # complete fits
    pytest.mark.filterwarnings("ignore:the backup at .* holds values that are not finite:RuntimeWarning"),
]
BAD = 2  # the batch of each epoch with a row that is infinite
X, Y = tiny.data()
POISONED = X.copy()
POISONED[BAD * tiny.BATCH + 1] = np.inf


def trained(directory: Path, option: Any, x: Any, *callbacks: Any, epochs: int = 2, at_once: int = 1) -> Any:
    """One process of a job; its callback, and its model."""
    options = {"save_freq": 1, "on_nonfinite": option, "delete_checkpoint": False}
    backup = kdc.BackupAndRestore(directory, write_options=kdc.WriteOptions(when_busy="wait"), **options)
    model = tiny.model()
    model.steps_per_execution = at_once
    model.fit(x, Y, batch_size=tiny.BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[*callbacks, backup])
    return backup, model


def restarted(run: Callable[[], Any], reasons: list[str] | None = None) -> tuple[Any, list[str]]:
    """Starts a job until it does not ask to be started again; what it returns, and why it was started again."""
    reasons = [] if reasons is None else reasons
    codes = set()
    while len(reasons) < 12:
        forget_runs()
        try:
            found = run()
        except kdc.Preempted as asked:
            codes.add(asked.code)
            reasons.append(asked.reason)
        else:
            assert codes <= {138}
            return found, reasons
    raise AssertionError(reasons)


def test_a_row_that_is_poisoned_in_each_epoch_is_skipped_in_each_and_training_ends(tmp_path: Path) -> None:
    (backup, model), reasons = restarted(lambda: trained(tmp_path, kdc.Rollback(), POISONED))
    assert all(np.isfinite(value).all() for value in tiny.values(model))
    assert len(reasons) == 4, "in each epoch once to go back, and once to skip"
    assert re.search(
        r"the loss \(.*\) is not finite at epoch 1, batch 3 \(step 3\); training goes back to 1-1", reasons[0]
    )
    assert "the same losses as before, so that batches 2 to 3 of epoch 1 are skipped" in reasons[1]
    assert "rollback 1 of 3)" in reasons[2], "a finite backup lies between"
    assert "batches 2 to 3 of epoch 2 are skipped" in reasons[3]
    assert backup.restored.verdict == "exact"
    assert backup.restored.position.step == 4, "of the first epoch three batches count"
    steps = int(model.optimizer.iterations)
    assert steps == 2 * (tiny.STEPS - 2)


@pytest.mark.finds("skipped-batches")
def test_a_kill_after_a_skip_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (_, expected), _ = restarted(lambda: trained(tmp_path / "one", kdc.Rollback(), POISONED))
    place = tmp_path / "other"
    stops = iter([None, None, tiny.StopAt(0, 4)])

    def run() -> Any:
        stop = next(stops, None)
        return trained(place, kdc.Rollback(), POISONED, *([] if stop is None else [stop]))

    with pytest.raises(tiny.Stop):
        restarted(run)
    capsys.readouterr()
    (_, model), _ = restarted(run)
    tiny.assert_same(model, expected)
    assert "exact, with batches 2 to 3 of epoch 1 skipped (the loss was not finite)" in capsys.readouterr().out


def test_what_fails_once_is_not_skipped_and_training_ends_as_without_it(tmp_path: Path) -> None:
    times = iter([True])

    class Fault(keras.callbacks.Callback):
        """Of the hardware, say."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations) == 7 and next(times, False):
                kernel = self.model.layers[0].kernel
                kernel.assign(kernel * np.inf)

    kdc.advanced.register_callback_state(Fault, None)
    (backup, model), reasons = restarted(lambda: trained(tmp_path / "one", kdc.Rollback(), X, Fault()))
    assert len(reasons) == 1
    assert backup.restored.verdict == "exact"
    _, expected = trained(tmp_path / "other", None, X)
    tiny.assert_same(model, expected)


class Explodes(keras.callbacks.Callback):
    """A rate with which no batch helps."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) >= 6:
            self.model.optimizer.learning_rate = 1e30


def test_where_no_skip_helps_training_ends_after_so_many_rollbacks(tmp_path: Path) -> None:
    reasons: list[str] = []
    option = kdc.Rollback(max_rollbacks=2)
    with pytest.raises(kdc.Diverged, match=r"after 2 rollbacks in a row \(max_rollbacks\) nothing is tried any more"):
        restarted(lambda: trained(tmp_path, option, X, Explodes(), epochs=4), reasons)
    assert len(reasons) == 2


def test_before_the_first_finite_backup_training_begins_again(tmp_path: Path) -> None:
    x = X.copy()
    x[0] = np.inf
    (_, model), reasons = restarted(lambda: trained(tmp_path, kdc.Rollback(skip_batches=1), x, epochs=1))
    assert all("goes back to the start" in reason for reason in reasons)
    assert int(model.optimizer.iterations) == tiny.STEPS - 1
    assert np.isfinite(model.history.history["loss"]).tolist() == [True], "of the batches that were not skipped"


def test_an_epoch_whose_last_batch_is_skipped_has_the_values_of_the_others(tmp_path: Path) -> None:
    x = X.copy()
    x[-1] = np.inf
    (_, model), _ = restarted(lambda: trained(tmp_path, kdc.Rollback(skip_batches=1), x))
    assert len(model.history.history["loss"]) == 2
    assert np.isfinite(model.history.history["loss"]).all()
    assert int(model.optimizer.iterations) == 2 * (tiny.STEPS - 1)


@pytest.mark.parametrize("every", [1, 3])
def test_whole_executions_of_several_steps_are_skipped(tmp_path: Path, every: int) -> None:
    option = kdc.Rollback(skip_batches=1, check_every=every, max_rollbacks=9)  # hardly a step of an epoch is left
    (_, model), reasons = restarted(lambda: trained(tmp_path, option, POISONED, at_once=2))
    assert f"batches {3 if every == 1 else 1} to 4 of epoch 1 are skipped" in reasons[1]
    assert all(np.isfinite(value).all() for value in tiny.values(model))
    if every == 1:
        assert int(model.optimizer.iterations) == 2 * (tiny.STEPS - 2), "batches 3 and 4 are one execution"


@pytest.mark.filterwarnings("ignore:Early stopping conditioned on metric:UserWarning")
def test_an_epoch_of_which_all_is_skipped_has_no_values(tmp_path: Path) -> None:
    x = X.copy()
    x[-1] = np.inf  # in the last batch
    early = keras.callbacks.EarlyStopping("loss", patience=9)
    option = kdc.Rollback(skip_batches=tiny.STEPS)
    (_, model), reasons = restarted(lambda: trained(tmp_path, option, x, early))
    assert len(reasons) == 3, "of the second epoch it is known at once: no step was trained in between"
    assert model.history.history == {}
    assert early.best is None or not np.isfinite(early.best)


@pytest.mark.parametrize("wrong", [{"skip_batches": -1}, {"max_rollbacks": 0}, {"check_every": 0}])
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(kdc.ConfigError, match=next(iter(wrong))):
        kdc.Rollback(**wrong)
    with pytest.raises(kdc.ConfigError, match="on_nonfinite"):
        kdc.BackupAndRestore("backup", on_nonfinite="rollback")

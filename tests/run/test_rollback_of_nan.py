"""`on_nonfinite=Rollback(...)`: a run that diverges goes back, tries again, and skips what fails again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.journal import Journal
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.storage.storage import Storage
from tests.support import forget_runs, tiny

pytestmark = [
    pytest.mark.slow,  # complete fits
    pytest.mark.filterwarnings("ignore:the backup at .* holds values that are not finite:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:training has ended with values that are not finite:RuntimeWarning"),
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
    assert "the same losses as before, so that batches 2 to 3 of epoch 1 will be skipped" in reasons[1]
    assert "rollback 1 of 3)" in reasons[2], "a finite backup lies between"
    assert "batches 2 to 3 of epoch 2 will be skipped" in reasons[3]
    assert backup.restored.verdict == "exact"
    assert backup.restored.position.step == 4, "of the first epoch three batches count"
    steps = int(model.optimizer.iterations)
    assert steps == 2 * (tiny.STEPS - 2)
    store = BackupStore(Storage.open(tmp_path))
    journal = validation.convert(store.manifest(store.commits()[-1]).info["journal"], Journal)
    assert [one.end for one in journal.attempts] == [*["diverged"] * 4, "finished"]


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
    with pytest.warns(RuntimeWarning, match="the loss of step 8 is finite now, which was not in the run before"):
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
    assert f"batches {3 if every == 1 else 1} to 4 of epoch 1 will be skipped" in reasons[1]
    assert all(np.isfinite(value).all() for value in tiny.values(model))
    if every == 1:
        assert int(model.optimizer.iterations) == 2 * (tiny.STEPS - 2), "batches 3 and 4 are one execution"


# --- a row whose gradient alone is not finite: the weights turn NaN, and the loss with the batch after


def root(wanted: Any, found: Any) -> Any:
    return keras.ops.sqrt(keras.ops.abs(found - wanted))


@dataclass(frozen=True)
class Silent:
    """A training with such a row.

    Attributes:
        bad: The batch that it is in.
        added_up: Batches of an update of the weights.
        skipped: What is read past in the end, by epoch and batch, from 1.
        feed: How the data is given.
    """

    bad: int
    added_up: int | None
    skipped: tuple[tuple[int, int], ...]
    feed: str = "arrays"


def silent(directory: Path, case: Silent) -> Any:
    x, y = X.copy(), np.ones_like(Y)
    place = case.bad * tiny.BATCH
    x[place], y[place] = 0, 0
    model = tiny.compiled(
        lambda: tiny.sequential(keras.layers.Dense(1, use_bias=False)),
        lambda: keras.optimizers.SGD(0.01, gradient_accumulation_steps=case.added_up),
        root,
    )
    seen = Seen()
    backup = kdc.BackupAndRestore(
        directory,
        save_freq=1,
        on_nonfinite=kdc.Rollback(max_rollbacks=4),
        write_options=kdc.WriteOptions(when_busy="wait"),
    )
    given = {"epochs": 2, "shuffle": False, "verbose": 0, "callbacks": [seen, backup]}
    if case.feed == "arrays":
        model.fit(x, y, batch_size=tiny.BATCH, **given)
    elif case.feed == "endless":
        model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(tiny.BATCH).repeat(), steps_per_epoch=5, **given)
    else:
        model.fit(Batches(x, y, workers=2), **given)
    return model, seen


class Seen(keras.callbacks.Callback):
    """Which batches were trained, of the process that ends training and those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append((self.epoch + 1, batch + 1))

    def get_state(self) -> Any:
        return {"batches": [list(one) for one in self.batches]}

    def set_state(self, state: Any) -> None:
        self.batches = [tuple(one) for one in state["batches"]]


class Batches(keras.utils.PyDataset):
    """As a user writes it, with threads that prepare batches."""

    def __init__(self, x: Any, y: Any, workers: int) -> None:
        super().__init__(workers=workers, use_multiprocessing=False)
        self.x, self.y = x, y

    def __len__(self) -> int:
        return tiny.STEPS

    def __getitem__(self, place: int) -> Any:
        rows = slice(place * tiny.BATCH, (place + 1) * tiny.BATCH)
        return self.x[rows], self.y[rows]


@pytest.mark.in_gate(3)
@pytest.mark.parametrize(
    "case",
    [
        Silent(1, None, ((1, 2), (1, 3), (2, 2), (2, 3))),
        Silent(1, None, ((1, 2), (1, 3), (2, 2), (2, 3)), "endless"),
        Silent(1, None, ((1, 2), (1, 3), (2, 2), (2, 3)), "threads"),
        Silent(4, None, ((1, 5), (2, 1))),
        Silent(0, 3, (*((1, batch) for batch in range(1, 6)), (2, 1), (2, 2), (2, 3))),
    ],
)
def test_what_turns_weights_nan_before_the_loss_shows_it_is_skipped(tmp_path: Path, case: Silent) -> None:
    (model, seen), reasons = restarted(lambda: silent(tmp_path, case))
    if case.bad < tiny.STEPS - 1:  # no loss shows what the last step of all does
        assert all(np.isfinite(value).all() for value in tiny.values(model)), reasons
    every = {(epoch, batch) for epoch in (1, 2) for batch in range(1, tiny.STEPS + 1)}
    assert seen.batches == sorted(every - set(case.skipped)), reasons


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


KERAS_CALLBACKS: dict[str, Callable[[], keras.callbacks.Callback]] = {
    "TerminateOnNaN": keras.callbacks.TerminateOnNaN,
    "EarlyStopping": lambda: keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True),
    "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.2),
}


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("name", KERAS_CALLBACKS)
def test_keras_callbacks_next_to_a_skip_go_on_after_a_kill_as_without_one(tmp_path: Path, name: str) -> None:
    make = KERAS_CALLBACKS[name]
    (_, expected), _ = restarted(lambda: trained(tmp_path / "one", kdc.Rollback(), POISONED, make(), epochs=4))
    stops = iter([None, None, tiny.StopAt(0, 4), tiny.StopAt(2, 4)])

    def run() -> Any:
        stop = next(stops, None)
        others = [] if stop is None else [stop]
        return trained(tmp_path / "other", kdc.Rollback(), POISONED, *others, make(), epochs=4)

    with pytest.raises(tiny.Stop):
        restarted(run)
    with contextlib.suppress(tiny.Stop):  # it may have ended before that
        restarted(run)
    (_, model), _ = restarted(run)
    tiny.assert_same(model, expected)


def test_a_callback_that_raises_before_anything_can_be_done_is_refused(tmp_path: Path) -> None:
    raises = keras.callbacks.TerminateOnNaN(raise_error=True)
    with pytest.raises(kdc.ConfigError, match=r"TerminateOnNaN\(raise_error=True\) ends fit\(\) before on_nonfinite"):
        trained(tmp_path, kdc.Rollback(), POISONED, raises)

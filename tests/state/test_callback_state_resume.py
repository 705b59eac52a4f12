"""Each callback, interrupted and resumed, takes the decisions of a run that was never interrupted."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.state import callback_state
from tests.support import tiny
from tests.support.callback_helpers import ignore_keras_warnings
from tests.support.resume_helpers import (
    StopInValidation,
    assert_same_files,
    attempts,
    orders,
    records,
    saved_models,
)

pytestmark = [ignore_keras_warnings, pytest.mark.slow]

X, Y = tiny.data()
VALIDATION = (X[:16], Y[:16])
POINTS = (
    (0, 2),
    (1, 3, 2),  # a step is trained again
    StopInValidation(1),  # after the last step of an epoch
    (2, 0),
    (2, 3, "epoch"),  # between two epochs, three steps are trained again
    (3, 4),
)


class Counter(keras.callbacks.Callback):
    """A user's callback: what it has seen, in all kinds of values."""

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.every = every
        self.seen: list[tuple[int, int]] = []
        self.losses = np.zeros((2, 3), "float32", order="F")
        self.epoch = -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch % self.every == 0:
            self.seen.append((self.epoch, batch))
            self.losses += np.float32(logs["loss"])


class Own(Counter):
    state_identity = ("every",)

    def get_state(self) -> dict[str, Any]:
        return {"seen": self.seen, "losses": self.losses, "last": np.float32(self.losses[0, 0])}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen, self.losses = state["seen"], state["losses"]
        assert isinstance(state["last"], np.float32)
        assert state["last"] == self.losses[0, 0]


class Foreign(Counter):
    """Of another package, so that it is registered."""


def lambda_with_state() -> keras.callbacks.LambdaCallback:
    totals = [0.0]
    return keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: totals.append(totals[-1] + logs["loss"]),
        get_state=lambda: {"totals": list(totals)},
        set_state=lambda state: totals.__setitem__(slice(None), state["totals"]),
        totals=totals,
    )


def watchers(directory: Path) -> list[Any]:
    """What only looks on, until it stops training: the order in the list cannot matter."""
    directory.mkdir(exist_ok=True)
    appended = directory / "appended.csv"
    if not appended.exists():
        appended.write_bytes(b"epoch,of an earlier job\r\n")
    return [
        keras.callbacks.EarlyStopping("loss", min_delta=10, patience=3, restore_best_weights=True),
        keras.callbacks.EarlyStopping("loss", min_delta=10, patience=30),
        keras.callbacks.ModelCheckpoint(
            directory / "keras" / "best-{epoch}.weights.h5", "loss", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.ModelCheckpoint(directory / "keras" / "step-{epoch}-{batch}.keras", save_freq=3),
        kdc.ModelCheckpoint(directory / "ours" / "newest-{epoch}.keras", "val_loss", max_to_keep=2),
        kdc.ModelCheckpoint(
            directory / "ours" / "best.weights.h5", "val_loss", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.CSVLogger(directory / "rows.csv"),
        kdc.ChiefOnly(keras.callbacks.CSVLogger(appended, separator=";", append=True)),
        kdc.TensorBoard(directory / "board", update_freq=1),
        keras.callbacks.TerminateOnNaN(),
        lambda_with_state(),
        Own(every=2),
        Own(every=1),
        kdc.ChiefOnly(Foreign()),
    ]


def seen(callbacks: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for callback in callbacks:
        inner = getattr(callback, "callback", callback)
        if isinstance(inner, Counter):
            found[f"{type(inner).__name__} {inner.every}"] = (inner.seen, inner.losses.tolist())
        elif isinstance(inner, keras.callbacks.LambdaCallback):
            found["lambda"] = inner.totals
        elif isinstance(inner, keras.callbacks.EarlyStopping):
            found[f"patience {inner.patience}"] = (inner.stopped_epoch, inner.wait, inner.best, inner.best_epoch)
    return found


@pytest.fixture
def foreign_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared(callback_state.Classes), "registered", {})

    def put(callback: Any, state: dict[str, Any]) -> None:
        callback.seen, callback.losses = state["seen"], state["losses"]

    kdc.advanced.register_callback_state(
        Foreign, lambda c: {"seen": c.seen, "losses": c.losses}, put, identity=("every",)
    )


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tiny.Ended]:
    directory, model = tmp_path_factory.mktemp("watched"), tiny.model()
    callbacks = watchers(directory)
    history = tiny.fit(model, None, callbacks, epochs=6, validation_data=VALIDATION)
    return directory, tiny.Ended(model, history, callbacks)


@pytest.mark.in_gate(1)
@pytest.mark.usefixtures("foreign_is_registered")
@pytest.mark.parametrize("chain", [0, 1, 2])
def test_stops_files_rows_events_and_states_are_those_of_an_uninterrupted_run(
    tmp_path: Path, watched: Any, chain: int
) -> None:
    reference, expected = watched
    assert expected.history.epoch == [0, 1, 2, 3], "the scenario needs an early stop"
    callbacks = attempts(watchers, tmp_path, orders(chain, len(POINTS) + 1))
    given: dict[str, Any] = {"epochs": 6, "validation_data": VALIDATION, "expects": None, "alike": False}
    ended = tiny.resumes(tmp_path / "backup", at=POINTS, callbacks=callbacks, **given)
    tiny.assert_same(ended, expected)
    assert seen(ended.callbacks) == seen(expected.callbacks)
    assert records(reference)
    assert_same_files(tmp_path / "resumed", reference)


class Values(keras.callbacks.Callback):
    """Reports given values at the end of each epoch."""

    def __init__(self, **values: Sequence[float]) -> None:
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs |= {name: values[epoch] for name, values in self.values.items()}


@pytest.mark.filterwarnings("ignore:ModelCheckpoint (uses|saves nothing)")
def test_values_that_are_no_number_leave_the_decisions_of_an_uninterrupted_run(tmp_path: Path) -> None:
    def compares(directory: Path) -> list[Any]:
        best: dict[str, Any] = {"save_best_only": True, "save_weights_only": True}
        return [
            Values(cost=(math.nan, math.nan, 3.0, 2.0), gain=(1.0, math.inf, 2.0, math.nan)),
            kdc.ModelCheckpoint(directory / "ours" / "cost-{epoch}.weights.h5", "cost", mode="min", **best),
            kdc.ModelCheckpoint(directory / "ours" / "gain-{epoch}.weights.h5", "gain", mode="max", **best),
            keras.callbacks.ModelCheckpoint(directory / "keras-{epoch}.weights.h5", "cost", mode="min", **best),
            keras.callbacks.EarlyStopping("cost", mode="min", patience=20, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("gain", mode="max", patience=1),
        ]

    callbacks = attempts(compares, tmp_path, [0, 0, 0])
    tiny.resumes(tmp_path / "backup", at=((1, 2), (3, 1)), callbacks=callbacks, epochs=4, expects=None)
    assert saved_models(tmp_path / "resumed") == saved_models(tmp_path / "uninterrupted")
    ours = sorted(path.name.partition(".")[0] for path in (tmp_path / "resumed" / "ours").glob("*.h5"))
    assert ours == ["cost-3", "cost-4", "gain-1", "gain-2"]


class Rates(keras.callbacks.Callback):
    """The learning rate that each step was trained with, over all attempts."""

    def __init__(self, found: dict[tuple[int, int], float]) -> None:
        super().__init__()
        self.found = found

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        rate = float(self.model.optimizer.learning_rate)
        assert self.found.setdefault((self.epoch, batch), rate) == rate, "a step was repeated with another rate"


@pytest.mark.parametrize("chain", [0, *(pytest.param(n, marks=pytest.mark.chaos) for n in (1, 2))])
def test_learning_rates_are_those_of_an_uninterrupted_run_step_by_step(
    tmp_path: Path, chain: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rates: dict[str, dict[tuple[int, int], float]] = {"resumed": {}, "uninterrupted": {}}
    printed = []

    def changing_rates(directory: Path) -> list[Any]:
        printed.append((directory.name, capsys.readouterr().out))  # of the run before
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            keras.callbacks.ReduceLROnPlateau("loss", min_delta=10, patience=1, cooldown=2, factor=0.5),
            keras.callbacks.ReduceLROnPlateau("loss", min_delta=10, patience=2, factor=0.25),
            kdc.PrintLR(freq=4),
            Rates(rates[directory.name]),
        ]

    callbacks = attempts(changing_rates, tmp_path, orders(chain, 4))
    places = ((1, 2), (2, 3, "epoch"), (3, 0))
    tiny.resumes(tmp_path / "backup", at=places, callbacks=callbacks, epochs=5, expects=None)
    assert len(set(rates["uninterrupted"].values())) == 5, "the scenario needs a new rate each epoch"
    assert rates["resumed"] == rates["uninterrupted"]
    of_resumes = {
        line
        for _, text in printed
        for line in text.splitlines()
        if not re.match(r"kdc: (Resumed from|\d+ starts in)", line)
    }
    assert of_resumes == set(capsys.readouterr().out.splitlines())


def averaged() -> keras.Model:
    return tiny.model(optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("order", [0, *(pytest.param(n, marks=pytest.mark.chaos) for n in (1, 2))])
@pytest.mark.parametrize("swap_on_epoch", [False, True])
def test_averaged_weights_are_swapped_as_in_an_uninterrupted_run(
    tmp_path: Path, swap_on_epoch: bool, order: int
) -> None:
    def swapping(directory: Path) -> list[Any]:
        return [
            keras.callbacks.SwapEMAWeights(swap_on_epoch=swap_on_epoch),
            keras.callbacks.ModelCheckpoint(directory / "{epoch}.weights.h5", save_weights_only=True),
            keras.callbacks.TensorBoard(directory / "board", update_freq=2),
        ]

    callbacks = attempts(swapping, tmp_path, [order] * 4)
    given: dict[str, Any] = {"validation_data": VALIDATION, "expects": None}
    places = ((1, 2), StopInValidation(1), (2, 1, "epoch"))
    tiny.resumes(tmp_path / "backup", averaged, at=places, callbacks=callbacks, **given)
    assert_same_files(tmp_path / "resumed", tmp_path / "uninterrupted")


@pytest.mark.chaos
def test_the_swap_is_right_when_the_order_changes_too(tmp_path: Path) -> None:
    def swapping(directory: Path) -> list[Any]:
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), Own(), lambda_with_state()]

    callbacks = attempts(swapping, tmp_path, [0, 1, 2, 0])
    places = ((1, 0, "epoch"), (1, 2), (2, 1, "epoch"))
    tiny.resumes(tmp_path / "backup", averaged, at=places, callbacks=callbacks, expects=None)


def with_a_nan_at(step: int) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(tiny.BATCH).enumerate()
    return rows.map(lambda i, row: (tf.where(i == step, np.nan, row[0]), row[1]))


@pytest.mark.in_gate(1)
@pytest.mark.filterwarnings("ignore:.*values that are not finite:RuntimeWarning")
@pytest.mark.parametrize("interrupted_at", [(0, 4), (1, 2), (1, 3)])
def test_training_ends_at_the_same_nan(tmp_path: Path, interrupted_at: tuple[int, int]) -> None:
    steps, step = tiny.CountSteps(), tiny.STEPS + 3
    given: dict[str, Any] = {"x": lambda: with_a_nan_at(step), "steps_per_epoch": tiny.STEPS, "epochs": 4}
    callbacks = lambda: [steps, keras.callbacks.TerminateOnNaN()]  # noqa: E731
    ended = tiny.resumes(tmp_path, at=interrupted_at, callbacks=callbacks, expects=None, alike=False, **given)
    assert steps.trained[-1] == (1, 3)
    assert len(steps.trained) == step + 1
    assert ended.history.epoch == [0, 1]


@pytest.mark.skipif(
    "raise_error" not in inspect.signature(keras.callbacks.TerminateOnNaN).parameters,
    reason="this Keras has no such error",
)
def test_an_error_at_a_nan_comes_again_at_the_same_step(tmp_path: Path) -> None:
    for _ in range(2):
        steps = tiny.CountSteps()
        with pytest.raises(RuntimeError, match="NaN or Inf loss encountered at batch 3"):
            tiny.fit(
                tiny.model(), tmp_path, [keras.callbacks.TerminateOnNaN(raise_error=True), steps], x=with_a_nan_at(3)
            )
    assert steps.trained == []

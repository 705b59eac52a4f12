"""Names that ModelCheckpoint looks for and no metric has: named at the first step, an error after an epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ConfigError
from tests.support import tiny
from tests.support.callback_helpers import X, Y, fit, ignore_keras_warnings, tiny_model

pytestmark = [ignore_keras_warnings, pytest.mark.slow]  # complete fits

VALIDATION = {"validation_data": (X, Y)}
MAE = keras.metrics.MeanAbsoluteError


class OwnStep(keras.Model):
    """Its steps report what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.inner(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"mine": keras.ops.sum(self(data[0]))}

    def test_step(self, data: Any) -> dict[str, Any]:
        return {"theirs": keras.ops.sum(data[0])}


class Unbuilt(keras.Model):
    """Has no variable before its first step, and a metric that a layer keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(1)
        self.kept = keras.metrics.Mean(name="kept")

    def call(self, x: Any) -> Any:
        self.kept.update_state(x)
        return self.inner(x)


def one(**compiled: Any) -> keras.Model:
    model = tiny_model()
    model.compile("sgd", **{"loss": "mse", **compiled})
    return model


def two(**compiled: Any) -> keras.Model:
    given = keras.Input((3,))
    outputs = {name: keras.layers.Dense(1, name=name)(given) for name in ("left", "right")}
    model = keras.Model(given, outputs)
    model.compile("sgd", **{"loss": {"left": "mse", "right": "mae"}, **compiled})
    return model


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    model.compile("sgd", **{"loss": "mse", **options})
    return model


FORMS: dict[str, tuple[Callable[[], keras.Model], list[str]]] = {
    "a loss alone": (one, ["loss", "val_loss"]),
    "a text": (lambda: one(metrics=["mae"]), ["mae", "val_mae"]),
    "an alias": (lambda: one(loss="binary_crossentropy", metrics=["acc", "AUC"]), ["acc", "val_acc", "val_AUC"]),
    "an object": (lambda: one(metrics=[MAE(name="mine")]), ["mine", "val_mine"]),
    "weighted": (lambda: one(weighted_metrics=["mae"]), ["mae", "val_mae"]),
    "a function": (lambda: one(metrics=[keras.losses.mean_squared_error]), ["val_mean_squared_error"]),
    "a loss of each output": (two, ["left_loss", "val_right_loss"]),
    "a dict": (lambda: two(metrics={"left": ["mae", "mse"]}), ["left_mae", "val_left_mse"]),
    "a list of lists": (lambda: two(metrics={"left": ["mae"], "right": [MAE(name="m")]}), ["val_right_m", "left_mae"]),
    "a model that its first step builds": (
        lambda: compiled(Unbuilt(), metrics=["mae"]),
        ["kept", "val_kept", "mae", "val_mae"],
    ),
    "steps of the user's": (lambda: compiled(OwnStep()), ["mine", "val_theirs"]),
}


def fit_form(model: keras.Model, callback: Any, **arguments: Any) -> None:
    y = Y if len(model.outputs if model.built else [0]) == 1 else {"left": Y, "right": Y}
    y = (Y > 0).astype("float32") if model.loss == "binary_crossentropy" else y
    model.fit(X, y, verbose=0, callbacks=[callback], validation_data=(X, y), epochs=2, **arguments)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.in_gate(3)
def test_names_that_training_reports_are_not_warned_of(tmp_path: Path, form: str) -> None:
    build, names = FORMS[form]
    template = "-".join(["{epoch}", *(f"{{{name}:.2f}}" for name in names)])
    for monitor in names:
        callback = kdc.ModelCheckpoint(
            tmp_path / monitor / f"{template}.weights.h5",
            monitor=monitor,
            mode="max",
            save_best_only=True,
            save_weights_only=True,
            initial_value_threshold=-1e9,
        )
        fit_form(build(), callback)
        assert list((tmp_path / monitor).glob("1-*"))


class Later(keras.callbacks.Callback):
    """Adds a name to the logs of some epochs."""

    def __init__(self, name: str, *epochs: int) -> None:
        super().__init__()
        self.name, self.epochs = name, epochs

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None and epoch in self.epochs:
            logs[self.name] = 1.0


def heard(directory: Path, *others: Any, monitor: str = "", name: str = "{epoch}", **arguments: Any) -> tuple[Any, ...]:
    """What a fit warns of, and the error that it ends with."""
    best = {"monitor": monitor, "save_best_only": True} if monitor else {}
    freq = arguments.pop("save_freq", "epoch")
    callback = kdc.ModelCheckpoint(directory / f"{name}.keras", save_freq=freq, mode="max", **best)
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            fit(one(metrics=["mae"]), *others, callback, **{"epochs": 3, **arguments})
        except ConfigError as found:
            error = str(found)
    ours = [one for one in caught if "ModelCheckpoint" in str(one.message)]
    assert {Path(one.filename).name for one in ours} <= {"callback_helpers.py"}, "it is the user's line that is named"
    return [str(one.message) for one in ours], error, len(list(directory.glob("*.keras")))


NOT = "which is not reported by this fit(). Reported: loss, mae"
WITH = f"{NOT}, val_loss, val_mae"
BATCH = "which is not reported after a batch, where save_freq saves. Reported: loss, mae"
MISSING: dict[str, tuple[dict[str, Any], list[str], str | None]] = {
    # Keras' default is not looked at where it has no effect
    "nothing is monitored": ({}, [], None),
    "no validation": (
        {"monitor": "val_mae"},
        ["uses 'val_mae' (monitor), but fit() has no validation data: give it validation_data or", "or use 'mae'"],
        f"uses 'val_mae' (monitor), {NOT}; did you mean 'mae'?",
    ),
    "no validation in these epochs": (
        {"monitor": "val_mae", "validation_freq": 4, **VALIDATION},
        ["'val_mae' (monitor), but fit() validates in none of its epochs"],
        "'val_mae'",
    ),
    "misspelt": (
        {"monitor": "val_mea", **VALIDATION},
        [f"uses 'val_mea' (monitor), {WITH}; did you mean 'val_mae'?"],
        f"uses 'val_mea' (monitor), {WITH}; did you mean 'val_mae'?",
    ),
    "a placeholder": (
        {"name": "{epoch}-{accuracy:.2f}", **VALIDATION},
        [f"uses 'accuracy' (filepath), {WITH}"],
        f"uses 'accuracy' (filepath), {WITH}",
    ),
    "validation in every second epoch": (
        {"monitor": "val_mea", "validation_freq": 2, **VALIDATION},
        [f"'val_mea' (monitor), {WITH}", "nothing at epoch 1, because val_mea is not in the logs (loss, mae)"],
        f"'val_mea' (monitor), {WITH}",
    ),
    "validation after a batch": (
        {"monitor": "val_mae", "save_freq": 5, **VALIDATION},
        [f"'val_mae' (monitor), {BATCH}; did you mean 'mae'?"],
        f"'val_mae' (monitor), {BATCH}; did you mean 'mae'?",
    ),
    "a placeholder after a batch": (
        {"name": "{batch}-{val_mae}", "save_freq": 2, **VALIDATION},
        [f"'val_mae' (filepath), {BATCH}"],
        f"'val_mae' (filepath), {BATCH}",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_name_that_is_never_reported_is_a_warning_and_then_an_error(tmp_path: Path, case: str) -> None:
    given, warned, error = MISSING[case]
    said, ended, saved = heard(tmp_path, **given)
    for text in warned:
        assert any(text in one for one in said), said
    assert len(said) == len([text for text in warned if not text.startswith("or ")]), said
    assert (error is None) == (ended is None)
    assert error is None or (ended is not None and error in ended)
    assert saved == (3 if error is None else 0)


def test_the_error_comes_after_the_first_epoch_that_could_report_the_name(tmp_path: Path) -> None:
    steps = tiny.CountSteps()
    heard(tmp_path, steps, monitor="val_mea")
    assert [epoch for epoch, _ in steps.trained] == [0] * 3
    steps = tiny.CountSteps()
    heard(tmp_path, steps, monitor="val_mea", validation_freq=2, **VALIDATION)
    assert [epoch for epoch, _ in steps.trained] == [0] * 3 + [1] * 3


def test_a_name_that_a_callback_adds_is_used(tmp_path: Path) -> None:
    said, error, saved = heard(tmp_path, Later("f1", 1), monitor="f1", name="{epoch}-{f1}")
    assert error is None
    assert saved == 1
    assert "'f1' (monitor), which is not reported by this fit()" in said[0]
    assert len(said) == 2, "the other one: nothing is saved at epoch 1"


def test_the_learning_rate_that_keras_callbacks_add_is_used_without_a_warning(tmp_path: Path) -> None:
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01)
    assert heard(tmp_path, schedule, name="{epoch}-{learning_rate:.3f}") == ([], None, 3)


def test_epochs_without_validation_save_no_file_that_is_named_by_it(tmp_path: Path) -> None:
    said, error, saved = heard(tmp_path, name="{epoch}-{val_mae:.0f}", validation_freq=2, **VALIDATION)
    assert (error, saved) == (None, 1)
    assert ["nothing at epoch 1, because val_mae is not in the logs" in one for one in said] == [True]


@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_the_epoch_before_the_error_is_not_lost(tmp_path: Path) -> None:
    """The corrected script continues with it."""

    def run(monitor: str, steps: tiny.CountSteps) -> keras.Model:
        keras.utils.clear_session(free_memory=False)
        model = tiny_model()
        callback = kdc.ModelCheckpoint(tmp_path / "m" / "{epoch}.keras", monitor=monitor, save_best_only=True)
        fit(model, steps, callback, kdc.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False), epochs=2)
        return model

    steps = tiny.CountSteps()
    with pytest.warns(UserWarning, match="uses 'val_loss'"), pytest.raises(ConfigError, match="'val_loss'") as error:
        run("val_loss", steps)
    assert "a restart alone raises this error again" in "".join(error.value.__notes__)
    corrected = run("loss", steps)
    assert steps.trained == [(epoch, batch) for epoch in range(2) for batch in range(3)]
    reference = tiny_model()
    fit(reference, epochs=2)
    np.testing.assert_array_equal(corrected.get_weights()[0], reference.get_weights()[0])

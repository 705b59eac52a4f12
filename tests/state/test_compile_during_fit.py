"""A callback that compiles the model, or gives it another optimizer, in the middle of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.base.errors import BackupMismatchError
from tests.support import forget_runs, tiny
from tests.support.refused_models import compiled

pytestmark = [
    pytest.mark.slow,  # complete fits
    pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning"),
]

LOSS = "binary_crossentropy"
CALLED = "compile() was called during fit(); compile before fit(), or call fit() again after compile()"
REPLACED = "the model was given another optimizer during fit(); give it to compile() before fit()"
AS_SCRIPT = "the optimizer, and which layers are frozen, are as the script has them"
Action = Callable[[Any], None]


class AtEpoch(keras.callbacks.Callback):
    def __init__(self, epoch: int, act: Action) -> None:
        super().__init__()
        self.epoch, self.act = epoch, act

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            self.act(self.model)
            self.model.make_train_function(force=True)


class FirstStep(keras.callbacks.Callback):
    """What the model has before the first batch that a fit trains."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Any] | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.weights is None:
            self.batch, self.weights = batch, self.model.get_weights()
            self.config = self.model.optimizer.get_config()
            self.of_optimizer = {v.path: v.numpy() for v in self.model.optimizer.variables}


kdc.advanced.register_callback_state(FirstStep, None)


def compiles(make: Callable[[], Any], **options: Any) -> Action:
    return lambda model: model.compile(make(), LOSS, metrics=["accuracy"], **options)


def freezes(model: Any) -> None:
    model.layers[0].trainable = False
    compiles(lambda: keras.optimizers.Adam(0.01, name="second"))(model)


def sets_optimizer(model: Any) -> None:
    model.optimizer = keras.optimizers.RMSprop(0.01, momentum=0.5, clipnorm=1.0, name="second")


def decaying() -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.01, 20), use_ema=True, ema_momentum=0.9, name="second"
    )


OTHER_OPTIMIZERS: dict[str, tuple[Action, str]] = {
    "of the same class": (compiles(lambda: keras.optimizers.SGD(0.01, momentum=0.5, name="second")), CALLED),
    "of another class": (compiles(lambda: keras.optimizers.Adam(0.01, name="momentum")), CALLED),
    "with a schedule and averages": (compiles(decaying), CALLED),
    "with scaled losses": (
        compiles(lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), name="second")),
        CALLED,
    ),
    "run eagerly": (compiles(lambda: keras.optimizers.Adam(0.01, name="second"), run_eagerly=True), CALLED),
    "with a frozen layer": (freezes, CALLED),
    "without compile()": (sets_optimizer, REPLACED),
}


def resumed(directory: Path, *callbacks: Any, save_freq: str | int = 1) -> tuple[Restored, FirstStep]:
    """The answer of a resume, and what it has restored: all weights, and where training was."""
    weights = kdc.load_backup(directory, tiny.model()).get_weights()
    model, first, backup = tiny.model(), FirstStep(), kdc.BackupAndRestore(directory, save_freq=save_freq)
    tiny.fit(model, None, [*callbacks, first, backup])
    assert backup.restored is not None
    assert backup.restored.verdict == "not exact"
    assert first.weights is not None
    tiny.assert_same(first.weights, weights)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    return backup.restored, first


@pytest.mark.parametrize(("act", "reason"), OTHER_OPTIMIZERS.values(), ids=OTHER_OPTIMIZERS)
@pytest.mark.in_gate(2)
def test_training_goes_on_with_the_optimizer_of_the_script(tmp_path: Path, act: Action, reason: str) -> None:
    tiny.interrupt(tmp_path, 2, 2, callbacks=[AtEpoch(1, act)])
    restored, first = resumed(tmp_path, AtEpoch(1, act))
    assert first.batch == 2
    assert reason in restored.notes
    assert AS_SCRIPT in " ".join(restored.notes)
    assert len(restored.notes) == 2
    assert first.config == tiny.model().optimizer.get_config()


@pytest.mark.parametrize(("act", "reason"), OTHER_OPTIMIZERS.values(), ids=OTHER_OPTIMIZERS)
@pytest.mark.in_gate(1)
def test_what_the_callback_compiles_in_the_interrupted_epoch_too_is_restored(
    tmp_path: Path, act: Action, reason: str
) -> None:
    tiny.interrupt(tmp_path, 1, 3, callbacks=[AtEpoch(1, act)])
    restored, first = resumed(tmp_path, AtEpoch(1, act))
    assert first.batch == 3
    assert reason in restored.notes
    assert AS_SCRIPT not in " ".join(restored.notes)


LOSSES: dict[str, dict[str, Any]] = {
    "another loss": {"loss": "mse"},
    "other metrics": {"loss": LOSS, "metrics": ["mae", keras.metrics.AUC(name="auc")]},
    "weighted metrics": {"loss": LOSS, "metrics": ["accuracy"], "weighted_metrics": ["mae"]},
}


@pytest.mark.parametrize("arguments", LOSSES.values(), ids=LOSSES)
@pytest.mark.in_gate(1)
def test_an_optimizer_that_is_compiled_with_other_losses_and_metrics_is_restored(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    callback = AtEpoch(1, lambda model: model.compile(model.optimizer, **arguments))
    tiny.interrupt(tmp_path, 2, 2, callbacks=[callback])
    saved = kdc.load_backup(tmp_path)
    restored, first = resumed(tmp_path, callback)
    assert CALLED in restored.notes
    assert AS_SCRIPT not in " ".join(restored.notes)
    assert first.of_optimizer
    tiny.assert_same(first.of_optimizer, {path: saved[path] for path in first.of_optimizer})


def unfreezes(model: Any) -> None:
    model.layers[0].trainable = True
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)


@pytest.mark.parametrize("save_freq", [1, "epoch"])
@pytest.mark.in_gate(1)
def test_layers_stay_frozen_as_in_the_script_whose_optimizer_has_no_variables_for_them(
    tmp_path: Path, save_freq: str | int
) -> None:
    tiny.interrupt(tmp_path, 2, 2, save_freq, built=compiled(trainable=False), callbacks=[AtEpoch(1, unfreezes)])
    model, backup = compiled(trainable=False), kdc.BackupAndRestore(tmp_path, save_freq=save_freq)
    model.optimizer.build(model.trainable_variables)
    tiny.fit(model, None, [AtEpoch(1, unfreezes), backup])
    assert backup.restored is not None
    assert CALLED in backup.restored.notes
    assert AS_SCRIPT in " ".join(backup.restored.notes)
    assert not model.layers[0].trainable


@pytest.mark.finds("compiled")
def test_strict_refuses_it(tmp_path: Path) -> None:
    callback = AtEpoch(1, OTHER_OPTIMIZERS["of another class"][0])
    tiny.interrupt(tmp_path, 2, 2, callbacks=[callback])
    steps = tiny.CountSteps()
    with pytest.raises(BackupMismatchError, match=r"would not be exact.*compile\(\) was called during fit\(\)"):
        tiny.fit(tiny.model(), tmp_path, [callback, steps], options={"strict": True})
    assert steps.trained == []


@pytest.mark.finds("as-compiled")
def test_the_weights_of_a_finished_run_are_restored(tmp_path: Path) -> None:
    act, keeps = OTHER_OPTIMIZERS["of another class"][0], {"delete_checkpoint": False}
    expected, model = tiny.model(), tiny.model()
    tiny.fit(expected, tmp_path, [AtEpoch(1, act)], options=keeps)
    forget_runs()  # as in another process
    with pytest.warns(RuntimeWarning, match="what the interrupted run has compiled"):
        tiny.fit(model, tmp_path, [AtEpoch(1, act)], options=keeps)
    tiny.assert_same(model.get_weights(), expected.get_weights())


@pytest.mark.in_gate(1)
def test_a_later_fit_of_the_model_that_a_callback_has_compiled_says_so_too(tmp_path: Path) -> None:
    callback, keeps = AtEpoch(1, OTHER_OPTIMIZERS["of another class"][0]), {"delete_checkpoint": False}
    model = tiny.model()
    tiny.fit(model, tmp_path, [callback], options=keeps)
    tiny.interrupt(tmp_path, 4, 2, built=model, callbacks=[callback], epochs=6, options=keeps)
    forget_runs()  # as in another process
    backup, model = kdc.BackupAndRestore(tmp_path), tiny.model()
    tiny.fit(model, tmp_path, [callback], options=keeps)
    tiny.fit(model, None, [callback, backup], epochs=6)
    assert backup.restored is not None
    assert CALLED in backup.restored.notes


@pytest.mark.in_gate(1)
def test_a_fit_that_is_called_again_after_compile_is_resumed_exactly(tmp_path: Path) -> None:
    def run(*callbacks: Any) -> keras.Model:
        model = tiny.model()
        tiny.fit(model, tmp_path / "first" if callbacks else None, epochs=2, options={"delete_checkpoint": False})
        model.compile(keras.optimizers.Adam(0.01, name="second"), LOSS, metrics=["accuracy"])
        tiny.fit(model, None, callbacks, epochs=2)
        return model

    tiny.resumes(tmp_path / "second", run=run)


class Quietly(keras.callbacks.Callback):
    """Changes something of the model without another trace."""

    def __init__(self, act: Action) -> None:
        super().__init__()
        self.act = act

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.act(self.model)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("mode", ["run_eagerly", "jit_compile"])
@pytest.mark.finds("mode-changed")
def test_a_mode_that_training_changes_is_not_an_exact_resume(tmp_path: Path, mode: str) -> None:
    quietly = Quietly(lambda model: setattr(model, mode, not getattr(model, mode)))
    tiny.interrupt(tmp_path, 2, 2, callbacks=[quietly])
    restored, _ = resumed(tmp_path, quietly)
    assert "run_eagerly or jit_compile was changed during fit()" in " ".join(restored.notes)


def freezes_a_bias(model: Any) -> None:
    model.layers[0].bias.trainable = False


@pytest.mark.finds("variables-trainable")
def test_trainable_of_a_single_variable_that_training_changes_is_not_an_exact_resume(tmp_path: Path) -> None:
    callback = AtEpoch(1, freezes_a_bias)
    tiny.interrupt(tmp_path, 2, 2, callbacks=[callback])
    expected = "training has changed trainable of single variables (Dense 1, frozen weight 1); set trainable of layers"
    assert expected in resumed(tmp_path, callback)[0].notes


def with_frozen_bias() -> Any:
    model = tiny.model()
    freezes_a_bias(model)
    momentum = keras.optimizers.SGD(0.1, momentum=0.9, name="momentum")  # without variables for what is frozen
    model.compile(momentum, LOSS, metrics=["accuracy"])
    return model


def test_a_variable_that_is_frozen_from_the_start_is_exact(tmp_path: Path) -> None:
    tiny.resumes(tmp_path, with_frozen_bias)


@pytest.mark.finds("setting")
def test_a_variable_that_is_frozen_in_one_run_only_is_named(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 1, 2)
    with pytest.raises(
        BackupMismatchError, match=r"trainable of single variables changed from \[\] to .*Dense 1, frozen weight 1"
    ):
        tiny.fit(with_frozen_bias(), tmp_path)


class Held(keras.callbacks.Callback):
    """Holds what it gives the model: an optimizer, or a metric by which it sets the rate."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = keras.optimizers.Adam(0.01, name="second")
        self.metric = keras.metrics.MeanAbsoluteError(name="held")
        self.is_used = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.is_used = True
            self.model.compile(self.optimizer, LOSS, metrics=[self.metric])
            self.model.make_train_function(force=True)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.is_used:
            self.optimizer.learning_rate = 0.1 * float(self.metric.result())


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("stop", [(2, 2), (1, 3)])
def test_an_optimizer_and_a_metric_that_a_callback_holds_are_no_exact_resume(
    tmp_path: Path, stop: tuple[int, int]
) -> None:
    tiny.interrupt(tmp_path, *stop, callbacks=[Held()])
    assert CALLED in resumed(tmp_path, Held())[0].notes

"""A callback that compiles the model again, or gives it another optimizer, in the middle of training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks._compat import model_parts
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.errors import BackupMismatchError
from keras_dist_callbacks.process import shared
from keras_dist_callbacks.training import resume_mode
from tests.support import tiny

pytestmark = pytest.mark.slow  # complete fits

LOSS = "binary_crossentropy"
Action = Callable[[Any], None]


class AtEpoch(keras.callbacks.Callback):
    def __init__(self, epoch: int, act: Action) -> None:
        super().__init__()
        self.epoch, self.act = epoch, act

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            self.act(self.model)
            self.model.make_train_function(force=True)


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


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.1 * 0.5 ** (tf.cast(step, tf.float32) / 5)

    def get_config(self) -> dict[str, Any]:
        return {}


ACTIONS: dict[str, Action] = {
    "of the same class": compiles(lambda: keras.optimizers.SGD(0.01, momentum=0.5, name="second")),
    "of another class": compiles(lambda: keras.optimizers.Adam(0.01, name="second")),
    "with a schedule and averages": compiles(decaying),
    "with scaled losses": compiles(
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, name="inner"), name="second")
    ),
    "run eagerly": compiles(lambda: keras.optimizers.Adam(0.01, name="second"), run_eagerly=True),
    "with a frozen layer": freezes,
    "without compile()": sets_optimizer,
}


@pytest.mark.parametrize("stop", [pytest.param((1, 0), marks=pytest.mark.chaos), (1, 3), (2, 2)])
@pytest.mark.parametrize("act", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.in_gate(1)
def test_a_replaced_optimizer_is_restored(tmp_path: Path, act: Action, stop: tuple[int, int]) -> None:
    tiny.interrupt(tmp_path, *stop, built=tiny.model(), callbacks=[AtEpoch(1, act)])
    resumed, expected = tiny.model(), tiny.model()
    backup = kdc.BackupAndRestore(tmp_path)
    history = tiny.fit(resumed, None, [AtEpoch(1, act), backup])
    assert history.history == tiny.fit(expected, None, [AtEpoch(1, act)]).history
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    tiny.assert_same(resumed, expected)


def test_the_optimizer_of_a_finished_run_is_restored(tmp_path: Path) -> None:
    act, keeps = ACTIONS["of another class"], {"delete_checkpoint": False}
    expected, resumed = tiny.model(), tiny.model()
    tiny.fit(expected, tmp_path, [AtEpoch(1, act)], options=keeps)
    shared(resume_mode.Runs).ended.clear()  # as in another process
    with pytest.warns(RuntimeWarning, match="fit.. runs no step"):
        tiny.fit(resumed, tmp_path, [AtEpoch(1, act)], options=keeps)
    tiny.assert_same(resumed, expected)


def frozen_first() -> Any:
    model = tiny.model()
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(0.01, name="first"), LOSS, metrics=["accuracy"])
    return model


def unfreezes(model: Any) -> None:
    model.trainable = True
    compiles(lambda: keras.optimizers.SGD(0.01, momentum=0.9, name="second"))(model)


@pytest.mark.parametrize("save_freq", [1, "epoch"])
@pytest.mark.parametrize("stop", [(1, 3), (2, 2)])
@pytest.mark.in_gate(1)
def test_an_optimizer_for_unfrozen_layers_is_restored(
    tmp_path: Path, stop: tuple[int, int], save_freq: str | int
) -> None:
    tiny.interrupt(tmp_path, *stop, save_freq, built=frozen_first(), callbacks=[AtEpoch(1, unfreezes)])
    resumed, expected, backup = frozen_first(), frozen_first(), kdc.BackupAndRestore(tmp_path, save_freq=save_freq)
    tiny.fit(resumed, None, [AtEpoch(1, unfreezes), backup])
    tiny.fit(expected, None, [AtEpoch(1, unfreezes)])
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    tiny.assert_same(resumed, expected)


def restored(directory: Path, *callbacks: Any) -> Restored:
    """The answer of a resume in the last epoch, where the second one has changed something."""
    tiny.interrupt(directory, 2, 2, built=tiny.model(), callbacks=callbacks)
    backup = kdc.BackupAndRestore(directory, strict=False)
    tiny.fit(tiny.model(), None, [*callbacks, backup])
    assert backup.restored is not None
    return backup.restored


class Quietly(keras.callbacks.Callback):
    """Changes something of the model without another trace."""

    def __init__(self, act: Action) -> None:
        super().__init__()
        self.act = act

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.act(self.model)


def test_a_new_optimizer_that_was_changed_after_its_trace_is_a_condition(tmp_path: Path) -> None:
    quietly = Quietly(lambda model: setattr(model.optimizer, "beta_1", 0.5))
    (condition,) = restored(tmp_path, AtEpoch(1, ACTIONS["of another class"]), quietly).conditions
    assert "no function that TensorFlow traced before the change uses beta_1 of the optimizer" in condition


@pytest.mark.in_gate(1)
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.parametrize("mode", ["run_eagerly", "jit_compile"])
def test_a_mode_that_the_train_function_has_not_is_not_an_exact_resume(tmp_path: Path, mode: str) -> None:
    quietly = Quietly(lambda model: setattr(model, mode, not getattr(model, mode)))
    assert "and the train function was not made again" in " ".join(restored(tmp_path, quietly).notes)


def test_an_optimizer_that_only_the_script_can_make_is_not_an_exact_resume(tmp_path: Path) -> None:
    callbacks = [AtEpoch(1, compiles(lambda: keras.optimizers.SGD(Halving(), momentum=0.5)))]
    tiny.interrupt(tmp_path, 2, 2, built=tiny.model(), callbacks=callbacks)
    model, backup = tiny.model(), [*callbacks, kdc.BackupAndRestore(tmp_path)]
    with pytest.raises(BackupMismatchError, match="if a callback compiles it again at an epoch"):
        tiny.fit(model, None, backup)


def test_only_classes_of_keras_are_made_from_a_backup() -> None:
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    config = model_parts.optimizer_config(optimizer)
    assert config is not None
    assert model_parts.can_make(config)
    config["config"]["learning_rate"]["module"] = "os"
    assert not model_parts.can_make(config)


def test_weights_without_decay_are_in_no_config() -> None:
    optimizer = keras.optimizers.AdamW(0.1)
    assert model_parts.optimizer_config(optimizer) is not None
    scaled = keras.optimizers.LossScaleOptimizer(optimizer)
    assert model_parts.optimizer_config(scaled) is not None
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert model_parts.optimizer_config(optimizer) is None
    assert model_parts.optimizer_config(scaled) is None


LOSSES: dict[str, dict[str, Any]] = {
    "another loss": {"loss": "mse"},
    "a loss of Keras'": {"loss": keras.losses.BinaryFocalCrossentropy(gamma=3.0), "metrics": ["accuracy"]},
    "a loss weight": {"loss": LOSS, "loss_weights": [3.0], "metrics": ["accuracy"]},
    "other metrics": {"loss": LOSS, "metrics": ["mae", keras.metrics.AUC(name="auc")]},
    "weighted metrics": {"loss": LOSS, "metrics": ["accuracy"], "weighted_metrics": ["mae"]},
    "no metrics": {"loss": LOSS, "metrics": []},
}


def compiles_with(arguments: dict[str, Any], optimizer: Any = None) -> Action:
    return lambda model: model.compile(optimizer() if optimizer else model.optimizer, **arguments)


WITHIN_AND_LATER = [("a loss of Keras'", (1, 3), 1), ("other metrics", (1, 3), 1), ("other metrics", (2, 2), "epoch")]


@pytest.mark.parametrize(("name", "stop", "save_freq"), [*((name, (2, 2), 1) for name in LOSSES), *WITHIN_AND_LATER])
@pytest.mark.in_gate(1)
def test_other_losses_and_metrics_are_restored(
    tmp_path: Path, name: str, stop: tuple[int, int], save_freq: str | int
) -> None:
    def compiles_again() -> AtEpoch:
        return AtEpoch(1, compiles_with(copy.deepcopy(LOSSES[name])))

    tiny.interrupt(tmp_path, *stop, save_freq, built=tiny.model(), callbacks=[compiles_again()])
    resumed, expected, backup = tiny.model(), tiny.model(), kdc.BackupAndRestore(tmp_path, save_freq=save_freq)
    history = tiny.fit(resumed, None, [compiles_again(), backup])
    assert history.history == tiny.fit(expected, None, [compiles_again()]).history
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    tiny.assert_same(resumed, expected)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("stop", [(1, 3), (2, 2)])
def test_another_loss_and_another_optimizer_are_restored(tmp_path: Path, stop: tuple[int, int]) -> None:
    act = compiles_with(LOSSES["another loss"], lambda: keras.optimizers.Adam(0.01, name="second"))
    tiny.interrupt(tmp_path, *stop, built=tiny.model(), callbacks=[AtEpoch(1, act)])
    resumed, expected, backup = tiny.model(), tiny.model(), kdc.BackupAndRestore(tmp_path)
    tiny.fit(resumed, None, [AtEpoch(1, act), backup])
    tiny.fit(expected, None, [AtEpoch(1, act)])
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    tiny.assert_same(resumed, expected)


class Steered(keras.callbacks.Callback):
    """Gives the model a metric that it was given, and sets the rate by its result."""

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.metric, self.is_used = metric, False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.is_used = True
            self.model.compile(self.model.optimizer, LOSS, metrics=[self.metric])
            self.model.make_train_function(force=True)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.is_used:
            self.model.optimizer.learning_rate = 0.1 * float(self.metric.result())


@pytest.mark.in_gate(1)
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.parametrize("metrics", [["accuracy"], [keras.metrics.MeanAbsoluteError(name="held")]], ids=str)
def test_a_metric_that_a_callback_compiles_and_holds_is_not_an_exact_resume(tmp_path: Path, metrics: list[Any]) -> None:
    def model() -> Any:
        built = tiny.model()
        built.compile(built.optimizer, LOSS, metrics=copy.deepcopy(metrics))
        return built

    def steered() -> Steered:
        return Steered(keras.metrics.MeanAbsoluteError(name="held"))

    tiny.interrupt(tmp_path, 2, 2, built=model(), callbacks=[steered()])
    backup = kdc.BackupAndRestore(tmp_path)
    tiny.fit(model(), None, [steered(), backup])
    assert backup.restored is not None
    assert "callback Steered is not restored: metric (training compiled it" in " ".join(backup.restored.notes)


class Watches(keras.callbacks.Callback):
    """Holds a metric with which the model was compiled, and compiles the model without it."""

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.metric = metric

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.compile(self.model.optimizer, LOSS, metrics=["accuracy"])
            self.model.make_train_function(force=True)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * float(self.metric.result())


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("stop", [(1, 3), (2, 2)])
def test_a_held_metric_that_the_model_no_longer_has_is_restored(tmp_path: Path, stop: tuple[int, int]) -> None:
    def model_and_callback() -> tuple[Any, Watches]:
        built, metric = tiny.model(), keras.metrics.MeanAbsoluteError(name="held")
        built.compile(built.optimizer, LOSS, metrics=[metric])
        return built, Watches(metric)

    interrupted, watches = model_and_callback()
    tiny.interrupt(tmp_path, *stop, built=interrupted, callbacks=[watches])
    (resumed, watches), backup = model_and_callback(), kdc.BackupAndRestore(tmp_path)
    tiny.fit(resumed, None, [watches, backup])
    expected, watches = model_and_callback()
    tiny.fit(expected, None, [watches])
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    tiny.assert_same(resumed, expected)


def own_loss(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


@pytest.mark.in_gate(1)
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"loss": own_loss}, "loss"), ({"loss": LOSS, "weighted_metrics": [own_loss]}, "weighted_metrics")],
)
def test_losses_and_metrics_that_only_the_script_can_make_are_no_exact_resume(
    tmp_path: Path, arguments: dict[str, Any], named: str
) -> None:
    notes = restored(tmp_path, AtEpoch(1, compiles_with({"metrics": ["accuracy"], **arguments}))).notes
    assert f"compile() was called again with other values of {named}, which only the script can make" in notes


def freezes_a_bias(model: Any) -> None:
    model.layers[0].bias.trainable = False


@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_trainable_of_a_single_variable_that_training_changes_is_not_an_exact_resume(tmp_path: Path) -> None:
    notes = restored(tmp_path, AtEpoch(1, freezes_a_bias)).notes
    expected = "training has changed trainable of single variables (Dense 1, frozen weight 1); set that of layers"
    assert expected in notes


def with_frozen_bias() -> Any:
    model = tiny.model()
    freezes_a_bias(model)
    return model


def test_a_variable_that_is_frozen_from_the_start_is_exact(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 1, 2, built=with_frozen_bias())
    backup = kdc.BackupAndRestore(tmp_path)
    tiny.fit(with_frozen_bias(), None, [backup])
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"


def test_a_variable_that_is_frozen_in_one_run_only_is_named(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 1, 2, built=tiny.model())
    with pytest.raises(BackupMismatchError, match=r"trainable of single variables is new: .*Dense 1, frozen weight 1"):
        tiny.fit(with_frozen_bias(), tmp_path)


class Switches(keras.callbacks.Callback):
    """Gives the model an optimizer that it was given when it was made."""

    def __init__(self, optimizer: Any, *, compiles_again: bool) -> None:
        super().__init__()
        self.optimizer, self.compiles_again = optimizer, compiles_again

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1 and self.compiles_again:
            self.model.compile(self.optimizer, LOSS, metrics=["accuracy"])
        elif epoch == 1:
            self.model.optimizer = self.optimizer
        if epoch == 1:
            self.model.make_train_function(force=True)
        elif epoch == 3:
            self.optimizer.learning_rate = 0.001


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("stop", [(1, 3), *(pytest.param(stop, marks=pytest.mark.chaos) for stop in [(2, 2), (4, 1)])])
@pytest.mark.parametrize("compiles_again", [True, False])
def test_an_optimizer_that_a_callback_holds_is_that_of_the_model_again(
    tmp_path: Path, compiles_again: bool, stop: tuple[int, int]
) -> None:
    def switches() -> Switches:
        return Switches(keras.optimizers.Adam(0.01, name="second"), compiles_again=compiles_again)

    tiny.interrupt(tmp_path, *stop, built=tiny.model(), callbacks=[switches()], epochs=5)
    resumed, expected, backup = tiny.model(), tiny.model(), kdc.BackupAndRestore(tmp_path)
    tiny.fit(resumed, None, [switches(), backup], epochs=5)
    tiny.fit(expected, None, [switches()], epochs=5)
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    tiny.assert_same(resumed, expected)


class UnfreezesOneByOne(keras.callbacks.Callback):
    """Counts for itself which layer is next, and a restart counts from the start until it is restored."""

    def __init__(self) -> None:
        super().__init__()
        self.unfrozen = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch and self.unfrozen < 2:
            self.unfrozen += 1
            dense = [layer for layer in self.model.layers if isinstance(layer, keras.layers.Dense)]
            dense[-1 - self.unfrozen].trainable = True
            optimizer = keras.optimizers.Adam(0.01 / self.unfrozen, name=f"number{self.unfrozen}")
            self.model.compile(optimizer, LOSS, metrics=["accuracy"])
            self.model.make_train_function(force=True)


@pytest.mark.chaos
def test_a_callback_that_counts_what_it_unfreezes_is_resumed_exactly(tmp_path: Path) -> None:
    def build() -> Any:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((6,)), *(keras.layers.Dense(n) for n in (5, 4)), keras.layers.Dense(1)])
        for layer in model.layers[:-1]:
            layer.trainable = False
        model.compile(keras.optimizers.Adam(0.01), LOSS, metrics=["accuracy"])
        return model

    tiny.interrupt(tmp_path, 2, 3, built=build(), callbacks=[UnfreezesOneByOne()])
    resumed, expected = build(), build()
    backup = kdc.BackupAndRestore(tmp_path)
    tiny.fit(resumed, None, [UnfreezesOneByOne(), backup], epochs=4)
    tiny.fit(expected, None, [UnfreezesOneByOne()], epochs=4)
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    tiny.assert_same(resumed, expected)

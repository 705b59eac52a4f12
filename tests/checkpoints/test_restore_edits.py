"""`make_or_restore_model` and `BackupAndRestore` with an edited `build_fn`: each edit is named, with both values."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from keras_dist_callbacks import BackupAndRestore, ModelCheckpoint, make_or_restore_model
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError
from tests.support import forget_runs

pytestmark = pytest.mark.slow  # complete fits

Adam = keras.optimizers.Adam
X = np.ones((8, 4), np.float32)


def build(
    width: int = 4,
    activation: str = "relu",
    rate: float = 0.01,
    dropout: float | None = 0.1,
    make_optimizer: Callable[[Any], Any] = Adam,
    *,
    extra: bool = False,
    swapped: bool = False,
    functional: bool = False,
    layer: dict[str, Any] | None = None,
    **compiled: Any,
) -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    layers: list[Any] = [keras.layers.Dense(width, activation, **(layer or {})), keras.layers.Dense(4, "tanh")]
    if swapped:
        layers.reverse()
    if dropout is not None:
        layers.append(keras.layers.Dropout(dropout, seed=1))
    layers += [keras.layers.Dense(4)] if extra else []
    layers.append(keras.layers.Dense(1))
    entry = keras.Input((4,))
    if functional:
        model = keras.Model(entry, functools.reduce(lambda value, layer: layer(value), layers, entry))
    else:
        model = keras.Sequential([entry, *layers])
    model.compile(make_optimizer(rate), **{"loss": "mse", "metrics": ["mae"], **compiled})
    return model


def train(
    model: keras.Model, directory: Path, epochs: int, *, backup: bool, checkpoint: bool
) -> BackupAndRestore | None:
    callbacks: list[Any] = []
    if checkpoint:
        callbacks.append(ModelCheckpoint(str(directory / "ckpt" / "{epoch}.keras")))
    ours = BackupAndRestore(directory / "backup", delete_checkpoint=False) if backup else None
    callbacks += [ours] if ours else []
    model.fit(X, X[:, :1], batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return ours


class Edit(NamedTuple):
    """One edit of `build_fn`, and what the message about it says: with a checkpoint, and with a backup alone."""

    name: str
    change: dict[str, Any]
    checkpoint: str
    backup: str
    checkpoint_loads: bool = True
    backup_loads: bool = True


def schedule(rate: float) -> Adam:
    return Adam(keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.5))


EDITS = [
    # structure
    Edit(
        "width",
        {"width": 5},
        "units was 4 and is 5 now",
        "units of the layer 'dense' changed from 4 to 5",
        False,
        False,
    ),
    Edit("layer added", {"extra": True}, "layers/5/class_name was absent and is Dense", "dense_3/kernel", False, False),
    Edit("layer removed", {"dropout": None}, "was Dropout and is Dense now", "seed_generator_state", True, False),
    Edit(
        "layers swapped",
        {"swapped": True},
        "was relu and is tanh now",
        "activation of the layer 'dense_1' changed from relu to tanh",
    ),
    Edit(
        "class",
        {"functional": True},
        "class was Sequential and is Functional now",
        "layers/0/name changed from absent to dense",
    ),
    # layers
    Edit("bias", {"layer": {"use_bias": False}}, "use_bias was True and is False now", "dense/bias", False, False),
    Edit(
        "activation",
        {"activation": "gelu"},
        "was relu and is gelu now",
        "activation of the layer 'dense' changed from relu to gelu",
    ),
    Edit(
        "dropout",
        {"dropout": 0.5},
        "rate was 0.1 and is 0.5 now",
        "rate of the layer 'dropout' changed from 0.1 to 0.5",
    ),
    Edit(
        "regularizer",
        {"layer": {"kernel_regularizer": keras.regularizers.L2(0.25)}},
        "kernel_regularizer was None and is L2(l2=0.25) now",
        "kernel_regularizer of the layer 'dense' changed from None to L2(l2=0.25)",
    ),
    Edit(
        "frozen",
        {"layer": {"trainable": False}},
        "trainable was True and is False now",
        "trainable of the layer 'dense' changed from True to False",
        False,
        False,
    ),
    Edit(
        "dtype policy",
        {"layer": {"dtype": "mixed_bfloat16"}},
        "dtype was float32 and is mixed_bfloat16 now",
        "dtype of the layer 'dense' changed from float32 to mixed_bfloat16",
    ),
    Edit("layer's name", {"layer": {"name": "mine"}}, "name was dense and is mine now", "mine/kernel", True, False),
    # optimizer
    Edit(
        "optimizer", {"make_optimizer": keras.optimizers.SGD}, "was Adam and is SGD now", "sgd/iteration", False, False
    ),
    Edit(
        "beta_1",
        {"make_optimizer": functools.partial(Adam, beta_1=0.5)},
        "beta_1 was 0.9 and is 0.5 now",
        "beta_1 changed from 0.9 to 0.5",
    ),
    Edit(
        "learning rate",
        {"rate": 0.5},
        "learning rate 0.01 as in the checkpoint, not 0.5 as in build_fn",
        "that the script sets before training changed from 0.01 to 0.5, and that of the backup, 0.01, stays in force",
    ),
    Edit(
        "schedule",
        {"make_optimizer": schedule},
        "learning_rate was a number and is ExponentialDecay(",
        "optimizer/learning_rate changed from a number to ExponentialDecay(",
        False,
        False,
    ),
    Edit(
        "moving average of weights",
        {"make_optimizer": functools.partial(Adam, use_ema=True)},
        "use_ema was False and is True now",
        "use_ema changed from False to True",
        False,
    ),
    Edit(
        "clipnorm",
        {"make_optimizer": functools.partial(Adam, clipnorm=1.0)},
        "clipnorm was None and is 1.0 now",
        "clipnorm changed from None to 1.0",
    ),
    Edit(
        "weight decay",
        {"make_optimizer": functools.partial(Adam, weight_decay=0.1)},
        "weight_decay was None and is 0.1 now",
        "weight_decay changed from None to 0.1",
    ),
    Edit(
        "gradient accumulation",
        {"make_optimizer": functools.partial(Adam, gradient_accumulation_steps=2)},
        "gradient_accumulation_steps was None and is 2 now",
        "gradient_accumulation_steps changed from None to 2",
        False,
    ),
    # loss, metrics, and how steps are run
    Edit("loss", {"loss": "mae"}, "loss was mse and is mae now", "loss changed from mse to mae"),
    Edit(
        "loss with arguments",
        {"loss": keras.losses.Huber(2.0)},
        "loss was mse and is Huber(",
        "loss changed from mse to Huber(delta=2.0,",
    ),
    Edit(
        "loss weights", {"loss_weights": [2.0]}, "loss_weights was None and is [2.0]", "loss_weights changed from None"
    ),
    Edit(
        "metric",
        {"metrics": ["mape"]},
        "metrics was ['mae'] and is ['mape'] now",
        "metrics changed from ['mae'] to ['mape']",
    ),
    Edit(
        "weighted metric",
        {"weighted_metrics": ["mae"]},
        "weighted_metrics was None and is ['mae'] now",
        "weighted_metrics changed from None to ['mae']",
    ),
    Edit(
        "jit_compile",
        {"jit_compile": True},
        "jit_compile was False and is True now",
        "jit_compile changed from False to True",
    ),
    Edit(
        "run_eagerly",
        {"run_eagerly": True},
        "run_eagerly was False and is True now",
        "run_eagerly changed from False to True",
    ),
]
QUICK = {"width", "activation", "learning rate", "regularizer", "metric", "schedule"}
edits = pytest.mark.parametrize(
    "edit", [pytest.param(e, id=e.name, marks=() if e.name in QUICK else pytest.mark.chaos) for e in EDITS]
)


def edited(edit: Edit, directory: Path, *, backup: bool, checkpoint: bool) -> tuple[str, str]:
    """Trains an epoch, edits, and trains one more; returns all that was said, and the verdict."""
    train(build(), directory, 1, backup=backup, checkpoint=checkpoint)
    forget_runs()
    verdict = "none"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            change = functools.partial(build, **edit.change)
            model = make_or_restore_model(change, directory / "ckpt") if checkpoint else change()
            ours = train(model, directory, 2, backup=backup, checkpoint=checkpoint)
            if ours is not None and ours.restored is not None:
                verdict = ours.restored.verdict
        except BackupMismatchError as error:
            return str(error), "error"
    return "\n".join(str(warning.message) for warning in caught), verdict


@edits
@pytest.mark.in_gate(1)
def test_with_a_checkpoint_the_edit_is_named(tmp_path: Path, edit: Edit, capsys: pytest.CaptureFixture[str]) -> None:
    text, verdict = edited(edit, tmp_path, backup=False, checkpoint=True)
    assert edit.checkpoint in text + capsys.readouterr().out
    assert verdict == ("none" if edit.checkpoint_loads else "error")
    assert ("not exact" in text) == (edit.checkpoint_loads and edit.name != "learning rate")


@edits
@pytest.mark.in_gate(1)
def test_with_a_backup_the_edit_is_named_and_not_exact(tmp_path: Path, edit: Edit) -> None:
    text, verdict = edited(edit, tmp_path, backup=True, checkpoint=False)
    assert edit.backup in text
    assert verdict == ("not exact" if edit.backup_loads else "error")


@edits
@pytest.mark.in_gate(1)
def test_with_both_the_edit_is_named_and_not_exact(
    tmp_path: Path, edit: Edit, capsys: pytest.CaptureFixture[str]
) -> None:
    text, verdict = edited(edit, tmp_path, backup=True, checkpoint=True)
    loads = edit.checkpoint_loads and edit.backup_loads
    assert (edit.backup if edit.checkpoint_loads else edit.checkpoint) in text
    assert edit.checkpoint in text + capsys.readouterr().out or not edit.backup_loads
    assert verdict == ("not exact" if loads else "error")


def test_without_an_edit_nothing_is_reported_and_the_state_is_equal(tmp_path: Path) -> None:
    trained = build()
    train(trained, tmp_path, 1, backup=True, checkpoint=True)
    forget_runs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_or_restore_model(build, tmp_path / "ckpt")
    for ours, theirs in zip(model.weights, trained.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(model.optimizer.variables, trained.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    callback = train(model, tmp_path, 2, backup=True, checkpoint=True)
    assert callback is not None
    assert callback.restored is not None
    assert callback.restored.verdict == "exact"


def test_a_rate_that_a_callback_moved_is_the_checkpoints_and_no_edit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build()
    save = ModelCheckpoint(str(tmp_path / "ckpt" / "{epoch}.keras"))
    backup = BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    model.fit(X, X[:, :1], epochs=1, verbose=0, callbacks=[halve, save, backup])
    forget_runs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        restored = make_or_restore_model(build, tmp_path / "ckpt")
        again = BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        same = [keras.callbacks.LearningRateScheduler(halve.schedule), ModelCheckpoint(save.filepath), again]
        restored.fit(X, X[:, :1], epochs=2, verbose=0, callbacks=same)
    assert again.restored is not None
    assert again.restored.verdict != "not exact"
    assert "learning rate 0.005 as in the checkpoint, not 0.01 as in build_fn" in capsys.readouterr().out


def test_a_model_instead_of_a_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pass the function that builds the model"):
        make_or_restore_model(build(), tmp_path)  # type: ignore[arg-type]


def test_a_finished_backup_of_other_labels_is_that_of_another_fit(tmp_path: Path) -> None:
    first = BackupAndRestore(tmp_path, delete_checkpoint=False)
    build().fit(X, X[:, :1], batch_size=4, verbose=0, callbacks=[first])
    forget_runs()  # as in another process
    with pytest.raises(BackupMismatchError, match="its input began with other rows"):
        build().fit(X, 5 * X[:, :1], batch_size=4, verbose=0, callbacks=[BackupAndRestore(tmp_path)])


def test_the_backup_callback_of_keras_in_the_same_list_is_refused(tmp_path: Path) -> None:
    theirs = keras.callbacks.BackupAndRestore(tmp_path / "theirs")
    with pytest.raises(ConfigError, match=r"keras\.callbacks\.BackupAndRestore"):
        build().fit(X, X[:, :1], verbose=0, callbacks=[theirs, BackupAndRestore(tmp_path / "ours")])


def test_an_error_that_a_restart_repeats_does_not_advise_a_restart(tmp_path: Path) -> None:
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - it is this test's own
        build().fit(X, X[:, :1], batch_size=4, verbose=0, callbacks=[Fail(), BackupAndRestore(tmp_path)])
    with pytest.raises(BackupMismatchError) as raised:
        build(width=5).fit(X, X[:, :1], batch_size=4, verbose=0, callbacks=[BackupAndRestore(tmp_path)])
    notes = " ".join(getattr(raised.value, "__notes__", []))
    assert "a restart alone raises this error again" in notes
    assert "loses no step" not in notes

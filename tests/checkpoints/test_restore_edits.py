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
from tests.support import forget_runs, tiny

pytestmark = pytest.mark.slow  # complete fits

Adam, Huber = keras.optimizers.Adam, keras.losses.Huber
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


def setting(name: str, change: dict[str, Any], what: str, was: Any, now: Any, *loads: bool, of: str = "") -> Edit:
    """One that is named alike in both, here of a layer."""
    where = f" of the layer '{of}'" if of else ""
    both = f"{what} was {was} and is {now} now", f"{what}{where} changed from {was} to {now}"
    return Edit(name, change, *both, *loads)


def optimizer(name: str, was: Any, now: Any, *loads: bool) -> Edit:
    return setting(name, {"make_optimizer": functools.partial(Adam, **{name: now})}, name, was, now, *loads)


def schedule(rate: float) -> Adam:
    return Adam(keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.5))


def layer(**options: Any) -> dict[str, Any]:
    return {"layer": options}


L2 = keras.regularizers.L2(0.25)
RATE = "that the script sets before training changed from 0.01 to 0.5, and that of the backup, 0.01, stays in force"
SCHEDULED = "learning_rate was a number and is ExponentialDecay("
SCHEDULED_LATER = "optimizer/learning_rate changed from a number to ExponentialDecay("
FUNCTIONAL = "class was Sequential and is Functional now"
NO = (False, False)
EDITS = [
    # structure
    setting("width", {"width": 5}, "units", 4, 5, *NO, of="dense"),
    Edit("layer added", {"extra": True}, "layers/5/class_name was absent and is Dense", "dense_3/kernel", *NO),
    Edit("layer removed", {"dropout": None}, "was Dropout and is Dense now", "seed_generator_state", True, False),
    setting("layers swapped", {"swapped": True}, "activation", "relu", "tanh", of="dense_1"),
    Edit("class", {"functional": True}, FUNCTIONAL, "layers/0/name changed from absent to dense"),
    # layers
    Edit("bias", layer(use_bias=False), "use_bias was True and is False now", "dense/bias", *NO),
    setting("activation", {"activation": "gelu"}, "activation", "relu", "gelu", of="dense"),
    setting("dropout", {"dropout": 0.5}, "rate", 0.1, 0.5, of="dropout"),
    setting("regularizer", layer(kernel_regularizer=L2), "kernel_regularizer", None, "L2(l2=0.25)", of="dense"),
    setting("frozen", layer(trainable=False), "trainable", True, False, *NO, of="dense"),
    setting("dtype policy", layer(dtype="mixed_bfloat16"), "dtype", "float32", "mixed_bfloat16", of="dense"),
    Edit("layer's name", layer(name="mine"), "name was dense and is mine now", "mine/kernel", True, False),
    # optimizer
    Edit("optimizer", {"make_optimizer": keras.optimizers.SGD}, "was Adam and is SGD now", "sgd/iteration", *NO),
    optimizer("beta_1", 0.9, 0.5),
    Edit("learning rate", {"rate": 0.5}, "learning rate 0.01 as in the checkpoint, not 0.5 as in build_fn", RATE),
    Edit("schedule", {"make_optimizer": schedule}, SCHEDULED, SCHEDULED_LATER, *NO),
    optimizer("use_ema", False, True, False),
    optimizer("clipnorm", None, 1.0),
    optimizer("weight_decay", None, 0.1),
    optimizer("gradient_accumulation_steps", None, 2, False),
    # loss, metrics, and how steps are run
    setting("loss", {"loss": "mae"}, "loss", "mse", "mae"),
    Edit("Huber", {"loss": Huber(2.0)}, "loss was mse and is Huber(", "loss changed from mse to Huber(delta=2.0,"),
    setting("loss weights", {"loss_weights": [2.0]}, "loss_weights", None, [2.0]),
    setting("metric", {"metrics": ["mape"]}, "metrics", ["mae"], ["mape"]),
    setting("weighted metric", {"weighted_metrics": ["mae"]}, "weighted_metrics", None, ["mae"]),
    setting("jit_compile", {"jit_compile": True}, "jit_compile", False, True),
    setting("run_eagerly", {"run_eagerly": True}, "run_eagerly", False, True),
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
    tiny.assert_same(tiny.values(model), tiny.values(trained))
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

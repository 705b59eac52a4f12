"""`make_or_restore_model` with an edited `build_fn`: the new code is in force, and each edit is named."""

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_dist_callbacks import BackupAndRestore, ModelCheckpoint, make_or_restore_model
from keras_dist_callbacks.errors import BackupMismatchError, ConfigError
from keras_dist_callbacks.training import continuing

Change = dict[str, Any]


def build(
    width: int = 4,
    activation: str = "relu",
    rate: float = 0.01,
    dropout: float = 0.1,
    optimizer: type = keras.optimizers.Adam,
    l2: float = 0.0,
    loss: Any = "mse",
    beta: float = 0.9,
    bias: bool = True,
) -> keras.Model:
    keras.utils.set_random_seed(1)
    regularizer = keras.regularizers.L2(l2) if l2 else None
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(width, activation, use_bias=bias, kernel_regularizer=regularizer),
            keras.layers.Dropout(dropout, seed=1),
            keras.layers.Dense(1),
        ]
    )
    options = {"beta_1": beta} if optimizer is keras.optimizers.Adam else {}
    model.compile(optimizer(rate, **options), loss=loss)
    return model


def train(
    model: keras.Model, directory: Path, epochs: int, *, backup: bool, checkpoint: bool
) -> BackupAndRestore | None:
    callbacks: list[Any] = []
    if checkpoint:
        callbacks.append(ModelCheckpoint(str(directory / "ckpt" / "{epoch}.keras")))
    ours = BackupAndRestore(directory / "backup", delete_checkpoint=False) if backup else None
    callbacks += [ours] if ours else []
    x = np.ones((8, 3), np.float32)
    model.fit(x, x[:, :1], batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return ours


LOADS: list[tuple[str, Change, str]] = [
    ("activation", {"activation": "tanh"}, "tanh"),
    ("dropout", {"dropout": 0.5}, "0.5"),
    ("rate", {"rate": 0.5}, "0.5"),
    ("l2", {"l2": 0.25}, "0.25"),
    ("loss", {"loss": "mae"}, "mae"),
    ("beta", {"beta": 0.5}, "0.5"),
]


@pytest.mark.parametrize(("_name", "change", "value"), LOADS, ids=[row[0] for row in LOADS])
def test_an_edit_that_loads_is_named_and_in_force(tmp_path: Path, _name: str, change: Change, value: str) -> None:
    train(build(), tmp_path, 1, backup=False, checkpoint=True)
    with pytest.warns(RuntimeWarning, match="not exact") as caught:
        model = make_or_restore_model(lambda: build(**change), tmp_path / "ckpt")
    assert any(value in str(warning.message) for warning in caught)
    if "activation" in change:
        assert model.layers[0].activation is keras.activations.tanh


@pytest.mark.parametrize(("change", "value"), [({"width": 5}, "5"), ({"bias": False}, "use_bias")])
def test_an_edit_that_does_not_load_is_an_error_that_names_it(tmp_path: Path, change: Change, value: str) -> None:
    train(build(), tmp_path, 1, backup=False, checkpoint=True)
    with pytest.raises(BackupMismatchError, match=value):
        make_or_restore_model(lambda: build(**change), tmp_path / "ckpt")


def test_another_optimizer_that_does_not_load_is_an_error_that_names_it(tmp_path: Path) -> None:
    train(build(), tmp_path, 1, backup=False, checkpoint=True)
    with pytest.raises(BackupMismatchError, match="SGD"):
        make_or_restore_model(lambda: build(optimizer=keras.optimizers.SGD), tmp_path / "ckpt")


def test_without_an_edit_nothing_is_reported_and_the_state_is_equal(tmp_path: Path) -> None:
    trained = build()
    train(trained, tmp_path, 1, backup=False, checkpoint=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_or_restore_model(build, tmp_path / "ckpt")
    for ours, theirs in zip(model.weights, trained.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(model.optimizer.variables, trained.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("change", "verdict"), [({}, "exact"), *((row[1], "not exact") for row in LOADS)])
@pytest.mark.filterwarnings("ignore:not exact", "ignore:the resume is not exact")
def test_with_checkpoint_and_backup_the_verdict_is_that_of_the_edit(
    tmp_path: Path, change: Change, verdict: str
) -> None:
    train(build(), tmp_path, 1, backup=True, checkpoint=True)
    model = make_or_restore_model(lambda: build(**change), tmp_path / "ckpt")
    ours = train(model, tmp_path, 2, backup=True, checkpoint=True)
    assert ours is not None
    assert ours.restored is not None
    assert ours.restored.verdict == verdict


def test_a_model_instead_of_a_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pass the function that builds the model"):
        make_or_restore_model(build(), tmp_path)  # type: ignore[arg-type]


def test_a_finished_backup_of_other_labels_is_reported_and_not_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones((8, 3), np.float32)
    first = BackupAndRestore(tmp_path, delete_checkpoint=False)
    build().fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[first])
    monkeypatch.setattr(continuing, "_trained", set())  # as in a process of its own
    second = BackupAndRestore(tmp_path, delete_checkpoint=False)
    with pytest.warns(RuntimeWarning, match="belongs to another training"):
        build().fit(x, 5 * x[:, :1], batch_size=4, verbose=0, callbacks=[second])
    assert second.restored is not None
    assert second.restored.verdict == "not exact"


def test_the_backup_callback_of_keras_in_the_same_list_is_refused(tmp_path: Path) -> None:
    x = np.ones((8, 3), np.float32)
    theirs = keras.callbacks.BackupAndRestore(tmp_path / "theirs")
    with pytest.raises(ConfigError, match=r"keras\.callbacks\.BackupAndRestore"):
        build().fit(x, x[:, :1], verbose=0, callbacks=[theirs, BackupAndRestore(tmp_path / "ours")])


def test_an_error_that_a_restart_repeats_does_not_advise_a_restart(tmp_path: Path) -> None:
    train(build(), tmp_path, 1, backup=True, checkpoint=False)
    with pytest.raises(BackupMismatchError) as raised:
        train(build(width=5), tmp_path, 2, backup=True, checkpoint=False)
    notes = " ".join(getattr(raised.value, "__notes__", []))
    assert "loses no step" not in notes

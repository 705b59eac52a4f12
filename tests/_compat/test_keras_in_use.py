"""Keras on another backend, and models of another Keras, are refused by all that would need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ConfigError
from tests.support import tiny

CALLBACKS = {
    "BackupAndRestore": lambda d: kdc.BackupAndRestore(d),
    "ModelCheckpoint": lambda d: kdc.ModelCheckpoint(d / "model.keras"),
    "TensorBoard": lambda d: kdc.TensorBoard(d),
    "PrintLR": lambda d: kdc.PrintLR(),
    "ChiefOnly": lambda d: kdc.ChiefOnly(keras.callbacks.Callback()),
    "EpochDataset": lambda d: kdc.EpochDataset(lambda epoch: tiny.shuffled()),
}
OTHERS = {
    "Checkpointer": lambda d, model: kdc.Checkpointer(d, model=model),
    "make_or_restore_model": lambda d, model: kdc.make_or_restore_model(lambda: model, d),
    "load_backup": lambda d, model: kdc.load_backup(d, model),
    "SidecarEvaluator": lambda d, model: kdc.SidecarEvaluator(model, tiny.shuffled(), d),
}


class Model:
    """As tf_keras' own: it has neither the class nor the methods of Keras 3's."""

    __module__ = "tf_keras.src.engine.training"


class Sequential(Model):
    """A model of a user's."""


@pytest.mark.parametrize("name", [*CALLBACKS, *OTHERS, "enable_multi_worker_fit"])
def test_another_backend_is_named_with_what_is_needed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model()
    calls = {
        **{other: lambda make=make: make(tmp_path) for other, make in CALLBACKS.items()},
        **{other: lambda make=make: make(tmp_path, model) for other, make in OTHERS.items()},
        "enable_multi_worker_fit": kdc.advanced.enable_multi_worker_fit,
    }
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(
        ConfigError, match="Keras runs on 'jax', and this package needs 'tensorflow': set KERAS_BACKEND"
    ):
        calls[name]()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_in_the_fit_of_another_keras_names_it(tmp_path: Path, name: str) -> None:
    callback = CALLBACKS[name](tmp_path)
    with pytest.raises(ConfigError, match="a model of tf_keras, which is Keras 2, and this package needs Keras 3"):
        callback.set_model(Sequential())


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_of_another_keras_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "commits").mkdir()
    with pytest.raises(ConfigError, match="a model of tf_keras"):
        OTHERS[name](tmp_path, Sequential())


def test_a_model_of_ones_own_that_is_no_other_kerass_is_left_to_the_caller(tmp_path: Path) -> None:
    class Model:
        stop_training = False

    callback = kdc.PrintLR()
    made: Any = Model()
    callback.set_model(made)
    assert callback.model is made

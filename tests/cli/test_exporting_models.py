"""`kdc export` makes models of Keras' of a backup, with the architecture that it holds or a given one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError
from keras_dist_callbacks.run import model_export
from tests.support import cli_backups
from tests.support.callback_helpers import fit, ignore_keras_warnings
from tests.support.cli_backups import begin, commit
from tests.support.grouped import grouped

pytestmark = [ignore_keras_warnings, pytest.mark.slow]

LAYERS = """
import keras

@keras.saving.register_keras_serializable("of the user")
class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x
"""


def trained(directory: Path, *layers: keras.layers.Layer, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    fit(model, kdc.BackupAndRestore(directory, delete_checkpoint=False, **grouped(**options)), epochs=2)
    return model


def export(directory: Path, out: Path, **others: Any) -> None:
    """What the process that `kdc export` starts does."""
    asked = {"storage_options": None, "commit": None, "model": None, "import": [], **others}
    model_export.export({"directory": str(directory), "out": str(out), **asked})


def assert_same(model: keras.Model, other: keras.Model) -> None:
    for found, wanted in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for found, wanted in zip(model.optimizer.variables, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())


@pytest.mark.process
def test_a_backup_of_fit_becomes_a_model_without_its_code(tmp_path: Path) -> None:
    model = trained(tmp_path / "d")
    result = cli_backups.kdc("export", tmp_path / "d", tmp_path / "out.keras")
    assert result.exit_code == 0, result.stderr
    assert_same(keras.models.load_model(tmp_path / "out.keras"), model)


def test_weights_alone_go_into_a_file_of_weights(tmp_path: Path) -> None:
    model = trained(tmp_path / "d")
    export(tmp_path / "d", tmp_path / "out.weights.h5")
    other = trained(tmp_path / "other")
    other.load_weights(tmp_path / "out.weights.h5")
    assert_same(other, model)


@pytest.mark.process
def test_layers_of_the_user_come_with_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_layers_of_a_test.py").write_text(LAYERS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    import my_layers_of_a_test

    model = trained(tmp_path / "d", my_layers_of_a_test.Doubled())
    result = cli_backups.kdc("export", tmp_path / "d", tmp_path / "out.keras")
    assert result.exit_code == 2
    assert "Keras cannot build a model from the architecture in the backup" in result.stderr
    assert "--import" in result.stderr
    result = cli_backups.kdc("export", tmp_path / "d", tmp_path / "out.keras", "--import", "my_layers_of_a_test")
    assert result.exit_code == 0, result.stderr
    assert_same(keras.models.load_model(tmp_path / "out.keras"), model)
    sys.modules.pop("my_layers_of_a_test")


def test_code_is_neither_kept_nor_run(tmp_path: Path) -> None:
    model = trained(tmp_path / "d", keras.layers.Lambda(lambda x: 2 * x, output_shape=(3,)))
    with pytest.raises(ConfigError, match=r"the backup holds no architecture.*Give a model file with --model"):
        export(tmp_path / "d", tmp_path / "out.keras")
    model.save(tmp_path / "model.keras")
    with pytest.raises(ConfigError, match="Lambda"):
        export(tmp_path / "d", tmp_path / "out.keras", model=str(tmp_path / "model.keras"))
    assert not (tmp_path / "out.keras").exists()


def test_the_architecture_may_come_from_a_file(tmp_path: Path) -> None:
    model = trained(tmp_path / "d")
    (tmp_path / "model.json").write_text(model.to_json(), encoding="utf-8")
    export(tmp_path / "d", tmp_path / "out.keras", model=str(tmp_path / "model.json"))
    assert_same(keras.models.load_model(tmp_path / "out.keras"), model)


def test_a_model_that_is_another_one_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "d")
    other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    other.save(tmp_path / "other.keras")
    with pytest.raises(BackupMismatchError, match="this model does not match the backup"):
        export(tmp_path / "d", tmp_path / "out.keras", model=str(tmp_path / "other.keras"))


def test_a_backup_without_an_architecture_says_what_to_give(tmp_path: Path) -> None:
    commit(begin(tmp_path / "d"), 1)
    with pytest.raises(ConfigError, match="Give a model file with --model"):
        export(tmp_path / "d", tmp_path / "out.keras")


def test_the_architecture_is_written_once(tmp_path: Path) -> None:
    model = trained(tmp_path / "d", save_freq=1, when_busy="wait")
    blobs = [path.read_bytes() for path in (tmp_path / "d" / "blobs").rglob("*.*")]
    assert sum(blob.count(model.to_json().encode()) for blob in blobs) == 1


def test_a_model_that_is_compiled_again_is_written_again(tmp_path: Path) -> None:
    model = trained(tmp_path / "d")
    model.compile(keras.optimizers.SGD(0.01), "mae")
    fit(model, kdc.BackupAndRestore(tmp_path / "second", delete_checkpoint=False), epochs=1)
    export(tmp_path / "second", tmp_path / "out.keras")
    exported = keras.models.load_model(tmp_path / "out.keras")
    assert isinstance(exported.optimizer, keras.optimizers.SGD)
    assert exported.loss == "mae"


@pytest.mark.chaos
@pytest.mark.process
@pytest.mark.parametrize("is_named", [True, False])
def test_damage_that_only_the_other_process_meets_is_reported_as_damage(tmp_path: Path, is_named: bool) -> None:
    trained(tmp_path / "d")
    *_, newest = sorted(path.name for path in (tmp_path / "d" / "commits").iterdir())
    named = ["--commit", newest] if is_named else []
    for blob in (tmp_path / "d" / "blobs").rglob("*.*"):
        content = bytearray(blob.read_bytes())
        content[-1] ^= 1
        blob.write_bytes(content)
    result = cli_backups.kdc("export", tmp_path / "d", tmp_path / "out.keras", *named)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "differs from its hash" in result.stderr
    assert ("none of the 2 backups" in result.stderr) == (not is_named)
    assert "Traceback" not in result.stderr


@pytest.mark.process
def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    trained(tmp_path / "d")
    result = cli_backups.kdc("export", tmp_path / "d", tmp_path / "out.keras", "--import", "no_such_module")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "kdc: --import no_such_module: ModuleNotFoundError: No module named 'no_such_module'"
    ]

import dataclasses
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_dist_callbacks import ModelCheckpoint, latest_checkpoint, make_or_restore_model, restored_from
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError, DamagedBackupError
from keras_dist_callbacks.cluster.cluster import Cluster
from tests.support import tiny
from tests.support.callback_helpers import fit, ignore_keras_warnings, memory_url, tiny_model
from tests.support.checkpoints import listed
from tests.support.cli_backups import flip

pytestmark = ignore_keras_warnings


def rebuilt() -> Any:
    return tiny_model(keras.optimizers.Adam(0.01))


def trained(directory: object, name: str = "ckpt-{epoch}.keras", epochs: int = 2, **kwargs: Any) -> keras.Model:
    model = tiny_model(keras.optimizers.Adam(0.01))
    fit(model, ModelCheckpoint(f"{directory}/{name}", **kwargs), epochs=epochs)
    return model


def test_without_a_checkpoint_the_model_is_built_and_said_to_be_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_or_restore_model(tiny_model, tmp_path / "none")
    assert model.count_params() == 4
    assert restored_from(model) is None
    assert "new model" in capsys.readouterr().out
    assert latest_checkpoint(tmp_path / "none") is None


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", "memory"])
def test_the_newest_model_is_restored_with_its_optimizer_and_its_place(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path if place == "local" else memory_url()
    original = trained(directory)
    model = make_or_restore_model(rebuilt, directory)
    tiny.assert_same(tiny.values(model), tiny.values(original))
    path = f"{directory}/ckpt-2.keras"
    assert restored_from(model) == Restored(path, 2, 6, (Finding("checkpoint"),))
    assert restored_from(model).initial_epoch == 2
    assert latest_checkpoint(directory) == path
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "2 epochs finished, step 6); without BackupAndRestore, give fit() initial_epoch=2" in out


@pytest.mark.slow
def test_weights_go_into_a_built_model_with_the_optimizer_state(tmp_path: Path) -> None:
    original = trained(tmp_path, "w.weights.h5", save_weights_only=True)
    model = make_or_restore_model(lambda: tiny_model(keras.optimizers.Adam(0.01)), tmp_path)
    tiny.assert_same(tiny.values(model), tiny.values(original))
    assert restored_from(model).step == 6


@pytest.mark.slow
def test_a_restored_model_continues_training(tmp_path: Path) -> None:
    trained(tmp_path)
    model = make_or_restore_model(rebuilt, tmp_path)
    fit(model, ModelCheckpoint(f"{tmp_path}/ckpt-{{epoch}}.keras"), initial_epoch=2, epochs=3)
    newest = listed(tmp_path).checkpoints[0]
    record = newest.record
    assert (newest.name, record.generation, record.epoch, record.step) == ("ckpt-3.keras", 2, 3, 9)


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_restored(tmp_path: Path) -> None:
    trained(tmp_path)
    content = bytearray((tmp_path / "ckpt-2.keras").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "ckpt-2.keras").write_bytes(content)
    with pytest.warns(UserWarning, match=r"ckpt-2\.keras: its content differs"):
        assert latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-1.keras")
    with pytest.warns(UserWarning, match=r"ckpt-2\.keras: its content differs"):
        model = make_or_restore_model(rebuilt, tmp_path)
    assert restored_from(model).epoch == 1


def test_when_every_checkpoint_is_damaged_training_does_not_start_over_silently(tmp_path: Path) -> None:
    trained(tmp_path, epochs=1)
    flip(tmp_path, "ckpt-1.keras", 40)
    with pytest.raises(DamagedBackupError, match=r"no checkpoint .* is intact: .*ckpt-1\.keras: its content differs"):
        make_or_restore_model(tiny_model, tmp_path)
    with pytest.raises(DamagedBackupError):
        latest_checkpoint(tmp_path)


@pytest.mark.slow
def test_newest_is_the_last_saved_not_the_one_with_the_latest_time_or_name(tmp_path: Path) -> None:
    trained(tmp_path, "z.keras", epochs=1)
    trained(tmp_path, "a.keras", epochs=1)
    (tmp_path / "z.keras").touch()
    assert latest_checkpoint(tmp_path) == str(tmp_path / "a.keras")


@pytest.mark.slow
def test_a_template_stands_for_its_own_files(tmp_path: Path) -> None:
    trained(tmp_path, "ckpt-{epoch}.keras")
    trained(tmp_path, "best.keras", epochs=1)
    assert latest_checkpoint(tmp_path) == str(tmp_path / "best.keras")
    assert latest_checkpoint(tmp_path / "ckpt-{epoch}.keras") == str(tmp_path / "ckpt-2.keras")
    assert latest_checkpoint(tmp_path / "ckpt-1.keras") == str(tmp_path / "ckpt-1.keras")
    assert latest_checkpoint(tmp_path / "other.keras") is None
    assert restored_from(make_or_restore_model(rebuilt, tmp_path / "ckpt-{epoch}.keras")).epoch == 2


def test_files_of_other_tools_are_reported_and_not_taken(tmp_path: Path) -> None:
    tiny_model().save(tmp_path / "theirs.keras")
    with pytest.warns(UserWarning, match=r"theirs\.keras without a record: .*adopt=True"):
        assert latest_checkpoint(tmp_path) is None
    with pytest.warns(UserWarning, match="theirs"):
        make_or_restore_model(tiny_model, tmp_path)


@pytest.mark.slow
def test_weights_for_a_model_that_is_not_built_are_a_clear_error(tmp_path: Path) -> None:
    trained(tmp_path, "w.weights.h5", save_weights_only=True)
    with pytest.raises(ConfigError, match="not built"):
        make_or_restore_model(lambda: keras.Sequential([keras.layers.Dense(1)]), tmp_path)


def test_weights_of_another_model_are_a_clear_error(tmp_path: Path) -> None:
    trained(tmp_path, "w.weights.h5", save_weights_only=True)

    def other() -> keras.Model:
        return keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])

    with pytest.raises(BackupMismatchError, match=r"w\.weights\.h5 does not fit"):
        make_or_restore_model(other, tmp_path)


def test_a_model_left_uncompiled_is_compiled_as_the_checkpoint_was(tmp_path: Path) -> None:
    class Unregistered(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return 2 * x

    def build(optimizer: str | None = None) -> Any:
        model = keras.Sequential([keras.Input((3,)), Unregistered(), keras.layers.Dense(1)])
        if optimizer is not None:
            model.compile(optimizer, "mse")
        return model

    fit(build("sgd"), ModelCheckpoint(tmp_path / "m.keras"))
    restored = make_or_restore_model(build, tmp_path)
    assert isinstance(restored.layers[0], Unregistered)
    assert restored.compiled
    assert isinstance(restored.optimizer, keras.optimizers.SGD)
    assert not make_or_restore_model(build, tmp_path, compile=False).compiled


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    def build() -> Any:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x * 2), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    fit(build(), ModelCheckpoint(tmp_path / "m.keras"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.layers.Lambda, "from_config", None)
        make_or_restore_model(build, tmp_path)


@pytest.mark.slow
def test_it_loads_under_the_current_strategy(tmp_path: Path) -> None:
    trained(tmp_path)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = make_or_restore_model(rebuilt, tmp_path)
    assert model.distribute_strategy is strategy


def test_a_cluster_without_its_strategy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = Cluster("worker", 0, 0, ("localhost:1", "localhost:2"))
    monkeypatch.setattr(Cluster, "detect", classmethod(lambda cls: two))
    with pytest.raises(ConfigError, match="make_strategy"):
        make_or_restore_model(tiny_model, tmp_path)


@pytest.mark.slow
def test_the_evaluator_decides_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path)
    evaluator = Cluster("evaluator", 0, -1, ("localhost:1", "localhost:2"))
    monkeypatch.setattr(Cluster, "detect", classmethod(lambda cls: evaluator))
    assert restored_from(make_or_restore_model(rebuilt, tmp_path)).epoch == 2


@pytest.mark.slow
def test_every_worker_gets_and_verifies_what_the_chief_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path)
    older = listed(tmp_path).checkpoints[1]

    class Worker(Cluster):
        def broadcast(self, value: Any, tag: str, timeout: float = 0.0, kind: Any = None) -> Any:
            return dataclasses.asdict(older)

    monkeypatch.setattr(Cluster, "detect", classmethod(lambda cls: Worker("worker", 1, 1)))
    assert restored_from(make_or_restore_model(rebuilt, tmp_path)).epoch == 1
    (tmp_path / "ckpt-1.keras").write_bytes(b"damaged here")
    with pytest.raises(DamagedBackupError, match="has no record"):
        make_or_restore_model(rebuilt, tmp_path)


def test_unknown_protocols_are_clear_errors() -> None:
    with pytest.raises(ConfigError, match="unknown protocol 'gss'"):
        latest_checkpoint("gss://bucket/run")
    with pytest.raises(ConfigError, match="unknown protocol 'gss'"):
        make_or_restore_model(tiny_model, "gss://bucket/run")

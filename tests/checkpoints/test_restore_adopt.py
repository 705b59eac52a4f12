"""A directory that another tool filled: what is taken with `adopt=True`, and what is said."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks import BackupAndRestore, Checkpointer, ModelCheckpoint, make_or_restore_model, restored_from
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError
from tests.support import tiny
from tests.support.callback_helpers import fit, ignore_keras_warnings, tiny_model
from tests.support.processes import worker_processes

pytestmark = [ignore_keras_warnings, pytest.mark.slow]


def built() -> keras.Model:
    return tiny_model(keras.optimizers.Adam(0.01))


@pytest.fixture(scope="module")
def theirs() -> keras.Model:
    """A model of Keras alone, after 3 steps in each of 2 epochs."""
    model = built()
    fit(model, epochs=2)
    return model


def save_keras(model: keras.Model, directory: Path) -> None:
    model.save(directory / "theirs.keras")


def save_weights(model: keras.Model, directory: Path) -> None:
    model.save_weights(directory / "theirs.weights.h5")


def save_root(model: keras.Model, directory: Path) -> None:
    tf.train.Checkpoint(model).save(f"{directory}/theirs")


def save_parts(model: keras.Model, directory: Path) -> None:
    parts = {"model": model, "optimizer": model.optimizer, "epoch": tf.Variable(2)}
    tf.train.CheckpointManager(tf.train.Checkpoint(**parts), directory, 1, checkpoint_name="theirs").save()


def save_net(model: keras.Model, directory: Path) -> None:
    tf.train.Checkpoint(net=model).save(f"{directory}/theirs")


def save_legacy(model: keras.Model, directory: Path) -> None:
    another = built()  # Keras takes the configuration of compile() from a model that it saves so
    another.set_weights(model.get_weights())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        another.save(directory / "theirs.h5")


@pytest.mark.finds("new-optimizer")
@pytest.mark.parametrize("save", [save_keras, save_weights, save_legacy, save_root, save_parts, save_net])
def test_of_what_another_tool_left_the_weights_alone_are_taken_if_asked_for(
    theirs: keras.Model,
    tmp_path: Path,
    save: Callable[[keras.Model, Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(theirs, tmp_path)
    model = make_or_restore_model(built, tmp_path, adopt=True, weights_only=True)
    tiny.assert_same(model.get_weights(), theirs.get_weights())
    assert [float(np.sum(v)) for v in model.optimizer.variables[2:]] == [0.0] * len(model.optimizer.variables[2:])
    assert int(model.optimizer.iterations) == 0
    said = f"the optimizer starts from its initial state; weights adopted from {tmp_path}/theirs"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("save", [save_keras, save_weights, save_root, save_parts, save_net])
def test_what_another_tool_left_is_taken_with_its_optimizer_and_said(
    theirs: keras.Model,
    tmp_path: Path,
    save: Callable[[keras.Model, Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(theirs, tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    model = make_or_restore_model(built, tmp_path, adopt=True)
    tiny.assert_same(tiny.values(model), tiny.values(theirs))
    out = capsys.readouterr().out
    assert f"model adopted from {tmp_path}/theirs" in out
    assert "which another tool wrote (its epoch is not known, step 6); give fit() initial_epoch=..." in out
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "nothing is written into their directory"


def test_a_legacy_file_is_taken_as_far_as_keras_loads_it(tmp_path: Path) -> None:
    model = built()
    model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError())  # Keras cannot load "mse" from there
    fit(model)
    model.save(tmp_path / "theirs.h5")
    adopted = make_or_restore_model(built, tmp_path, adopt=True)
    tiny.assert_same(adopted.get_weights(), model.get_weights())
    assert restored_from(adopted).step == 3


def test_from_then_on_our_own_are_taken(theirs: keras.Model, tmp_path: Path) -> None:
    save_keras(theirs, tmp_path)
    model = make_or_restore_model(built, tmp_path, adopt=True)
    fit(model, ModelCheckpoint(tmp_path / "ours-{epoch}.keras"), epochs=1)
    theirs.save(tmp_path / "later.keras")
    with pytest.warns(UserWarning, match=r"later\.keras without a record: another program wrote or rewrote it"):
        model = make_or_restore_model(built, tmp_path, adopt=True)
    assert restored_from(model).path == f"{tmp_path}/ours-1.keras"


@pytest.mark.finds("checkpoint")
def test_the_newest_that_loads_is_taken_and_the_others_named(theirs: keras.Model, tmp_path: Path) -> None:
    for age, name in enumerate(["whole.keras", "older.keras"]):
        theirs.save(tmp_path / name)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / "torn.keras").write_bytes((tmp_path / "whole.keras").read_bytes()[:900])
    with pytest.warns(UserWarning, match=r"could not be loaded and are skipped: .*torn\.keras: "):
        model = make_or_restore_model(built, tmp_path, adopt=True)
    assert restored_from(model) == Restored(f"{tmp_path}/whole.keras", 0, 6, (Finding("checkpoint"),))


def test_the_backup_of_keras_own_callback_tells_its_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = built()
    fit(model, keras.callbacks.BackupAndRestore(tmp_path / "keras", delete_checkpoint=False), epochs=2)
    adopted = make_or_restore_model(built, tmp_path / "keras", adopt=True)
    tiny.assert_same(tiny.values(adopted), tiny.values(model))
    assert restored_from(adopted).initial_epoch == 2
    assert "2 epochs finished, step 6); give fit() initial_epoch=2" in capsys.readouterr().out


def test_training_with_our_backups_continues_from_what_was_adopted(tmp_path: Path) -> None:
    fit(built(), keras.callbacks.BackupAndRestore(tmp_path / "keras", delete_checkpoint=False), epochs=2)
    adopted = make_or_restore_model(built, tmp_path / "keras", adopt=True)
    history = fit(adopted, BackupAndRestore(tmp_path / "ours"), epochs=3)
    assert history.epoch == [2]
    assert int(adopted.optimizer.iterations.numpy()) == 9


def test_where_none_loads_each_is_named_with_its_reason(tmp_path: Path) -> None:
    other = keras.Sequential([keras.Input((9,)), keras.layers.Dense(7)])
    tf.train.Checkpoint(model=other).save(f"{tmp_path}/other")
    other.save_weights(tmp_path / "other.weights.h5")
    with pytest.raises(BackupMismatchError, match="no checkpoint of another tool") as caught:
        make_or_restore_model(built, tmp_path, adopt=True)
    assert f"{tmp_path}/other-1: ValueError: no part of it holds the model" in str(caught.value)
    assert f"{tmp_path}/other.weights.h5: BackupMismatchError: the state of" in str(caught.value)
    assert "remove adopt=True to start with a new model" in str(caught.value)


def test_a_template_stands_for_its_own_files_there_too(theirs: keras.Model, tmp_path: Path) -> None:
    save_keras(theirs, tmp_path)
    theirs.save(tmp_path / "ckpt-07.keras")
    os.utime(tmp_path / "ckpt-07.keras", (1e9, 1e9))
    model = make_or_restore_model(built, tmp_path / "ckpt-{epoch:02d}.keras", adopt=True)
    assert restored_from(model).path == f"{tmp_path}/ckpt-07.keras"


@pytest.mark.finds("model-differs")
def test_code_in_a_file_of_another_tool_is_not_run(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)])
    model.save(tmp_path / "theirs.keras")
    model.save(tmp_path / "theirs.h5")
    with pytest.raises(BackupMismatchError) as caught:
        make_or_restore_model(built, tmp_path, adopt=True)
    assert str(caught.value).count("Lambda") >= 2


def test_an_empty_directory_begins_with_a_new_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert restored_from(make_or_restore_model(built, tmp_path, adopt=True)) is None
    assert "starting with a new model" in capsys.readouterr().out


def test_a_model_that_is_not_built_is_a_clear_error(theirs: keras.Model, tmp_path: Path) -> None:
    save_root(theirs, tmp_path)
    with pytest.raises(ConfigError, match="not built"):
        make_or_restore_model(lambda: keras.Sequential([keras.layers.Dense(1)]), tmp_path, adopt=True)


ADOPTS = """
import sys
import keras_dist_callbacks as kdc

strategy = kdc.make_strategy("multi_worker")
import keras, numpy as np
from tests.support import tiny
from tests.support.callback_helpers import tiny_model

with strategy.scope():
    model = kdc.make_or_restore_model(lambda: tiny_model(keras.optimizers.Adam(0.01)), sys.argv[1], adopt=True)
np.savez(f"{sys.argv[1]}-{kdc.advanced.Cluster.detect().worker_index}.npz", *model.get_weights())
kdc.advanced.Cluster.detect().leave("the end")  # the chief's process serves the others, so it ends last
"""


@pytest.mark.cluster
def test_all_workers_take_the_same_one_and_pass_over_the_same(theirs: keras.Model, tmp_path: Path) -> None:
    directory = tmp_path / "theirs"
    save_root(theirs, directory)
    theirs.save(tmp_path / "whole.keras")
    (directory / "torn.keras").write_bytes((tmp_path / "whole.keras").read_bytes()[:900])
    (tmp_path / "adopts.py").write_text(ADOPTS, encoding="utf-8")
    with worker_processes(
        [sys.executable, str(tmp_path / "adopts.py"), str(directory)], 2, tmp_path / "logs"
    ) as cluster:
        cluster.start()
        assert cluster.wait(120) == [0, 0], cluster.tails()
        assert "are skipped" in cluster.log(0)
        assert "adopted from" in cluster.log(0)
    for worker in range(2):
        with np.load(f"{directory}-{worker}.npz") as weights:
            tiny.assert_same([*weights.values()], theirs.get_weights())


class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise KeyboardInterrupt


def test_the_backup_of_keras_in_the_same_directory_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(built(), keras.callbacks.BackupAndRestore(tmp_path), Interrupt(), epochs=2)
    with pytest.warns(RuntimeWarning, match=r"keras\.callbacks\.BackupAndRestore wrote.*adopt=True.*initial_epoch=1"):
        fit(built(), BackupAndRestore(tmp_path), epochs=2)


def test_a_checkpoint_of_tensorflow_in_the_directory_of_a_loop_is_named(tmp_path: Path) -> None:
    model = built()
    model.optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
    with pytest.warns(RuntimeWarning, match=r"ckpt-1, which tf\.train\.Checkpoint wrote.*adopt=True"):
        Checkpointer(tmp_path, model=model, optimizer=model.optimizer).restore()


def test_a_model_that_was_adopted_is_trained_without_a_warning(theirs: keras.Model, tmp_path: Path) -> None:
    save_root(theirs, tmp_path)
    model = make_or_restore_model(built, tmp_path, adopt=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fit(model, BackupAndRestore(tmp_path))

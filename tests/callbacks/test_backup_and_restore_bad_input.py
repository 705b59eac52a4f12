"""Each bad input is a clear error before the first step, and what was saved stays."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import sys
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from fsspec.registry import _registry

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups import manifest
from keras_dist_callbacks.base.errors import BackupMismatchError, ConfigError, DamagedBackupError, StorageError
from tests.support import files, tiny
from tests.support.grouped import grouped

pytestmark = pytest.mark.slow  # complete fits


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("interrupted")
    tiny.interrupt(directory, 1, 1, built=tiny.rich_model())
    return directory


@pytest.fixture
def backup(interrupted: Path, tmp_path: Path) -> Path:
    """A backup of an interrupted run."""
    return Path(shutil.copytree(interrupted, tmp_path / "backup"))


def assert_refused_and_untouched(backup: Path, model: keras.Model, error: type[Exception], match: str) -> None:
    before, steps = files(backup), tiny.CountSteps()
    with pytest.raises(error, match=match):
        tiny.fit(model, backup, [steps])
    assert steps.trained == []
    after = files(backup)
    assert {name: content for name, content in after.items() if name in before} == before


@pytest.mark.parametrize("save_freq", [0, -1, True, 1.5, "batch", None, datetime.timedelta(0)])
def test_save_freq_that_is_not_a_frequency_is_refused(save_freq: Any) -> None:
    with pytest.raises(ConfigError, match=r"save_freq must be 'epoch' or a number of batches .* got"):
        kdc.BackupAndRestore("somewhere", save_freq=save_freq)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"backup_dir": ""}, "Empty `backup_dir`"),
        ({"backup_dir": "x", "when_busy": "drop"}, "when_busy"),
        ({"backup_dir": "x", "max_failed_saves": 0}, "max_failed_saves"),
        ({"backup_dir": "gss://bucket/x"}, "unknown protocol 'gss'"),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        kdc.BackupAndRestore(**grouped(**arguments))


def test_a_protocol_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(_registry, "gs", raising=False)  # it remembers what was imported before
    with pytest.raises(ConfigError, match=r'pip install "keras-dist-callbacks\[gcs\]"'):
        kdc.BackupAndRestore("gs://bucket/backup")


@pytest.mark.parametrize("where", ["file", "below a file", "/proc/backup"])
def test_a_directory_that_cannot_be_written_is_an_error_before_training(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("a user's file")
    directory = {"file": tmp_path / "file", "below a file": tmp_path / "file" / "backup"}.get(where, Path(where))
    steps = tiny.CountSteps()
    with pytest.raises(StorageError, match=r"cannot (write|create) .*(backup|file)"):
        tiny.fit(tiny.model(), directory, [steps])
    assert steps.trained == []
    assert (tmp_path / "file").read_text() == "a user's file"


def test_a_backup_of_another_architecture_names_the_first_variables(backup: Path) -> None:
    def make() -> keras.Model:
        return tiny.sequential(keras.layers.Dense(7), keras.layers.Dense(1, name="head"))

    model = tiny.compiled(make, "adam", "binary_crossentropy", metrics=["accuracy", "AUC"])
    match = (
        "does not match the backup. Only in the model: sequential/head/kernel, .* only in the backup: seed_generator/"
    )
    assert_refused_and_untouched(backup, model, BackupMismatchError, match)


def test_a_backup_with_other_shapes_names_the_variable(backup: Path) -> None:
    match = r"sequential/dense/kernel was float32\[6, 7\] in the backup and is float32\[6, 9\] now"
    assert_refused_and_untouched(backup, tiny.rich_model(9), BackupMismatchError, match)


def test_a_backup_with_another_optimizer_is_refused(backup: Path) -> None:
    model = tiny.rich_model()
    model.compile(keras.optimizers.SGD(0.01), "binary_crossentropy", metrics=["accuracy", "AUC"])
    assert_refused_and_untouched(backup, model, BackupMismatchError, "only in the backup: adam/")


def test_a_newer_format_is_refused_with_advice(backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = max(backup.glob("commits/*.json"))
    decoded = manifest.decode_manifest(newest.read_bytes(), "here")
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "MANIFEST", dataclasses.replace(manifest.MANIFEST, version=2))
        newest.write_bytes(manifest.encode_manifest(decoded))
    assert_refused_and_untouched(
        backup, tiny.rich_model(), BackupMismatchError, "format version 2 is not supported.*Install a newer"
    )


def test_two_backup_callbacks_in_one_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two BackupAndRestore callbacks"):
        tiny.fit(tiny.model(), tmp_path / "a", [kdc.BackupAndRestore(tmp_path / "a")])


def test_a_dataset_that_ends_before_the_resumed_step_is_an_error(backup: Path) -> None:
    tiny.interrupt(backup, 1, 4, built=tiny.rich_model())
    steps, before = tiny.CountSteps(), files(backup)
    with pytest.raises(kdc.BackupError, match="the input ended before the 4 batches"):
        tiny.fit(tiny.rich_model(), backup, [steps], x=tiny.shuffled().take(2))
    assert steps.trained == []
    assert before.items() <= files(backup).items()


@pytest.mark.finds("loose-order")
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_an_input_that_is_another_one_in_each_run_may_end_before_the_resumed_step(tmp_path: Path) -> None:
    loose = tf.data.Options()
    loose.deterministic = False
    several = tiny.shuffled().map(lambda x, y: (x, y), num_parallel_calls=2)
    dataset = several.filter(lambda x, y: True).with_options(loose)  # of unknown length
    given: dict[str, Any] = {"x": dataset, "then": {"x": dataset.take(2)}, "expects": "not exact"}
    said = r"Dataset.map\(.* with deterministic=False"
    ended = tiny.resumes(
        tmp_path, tiny.rich_model, at=(1, 4), callbacks=lambda: [tiny.CountSteps()], saying=said, **given
    )
    assert ended.callbacks[0].trained == [(2, 0), (2, 1)]


def test_a_manifest_that_names_a_path_outside_of_the_directory_is_refused(backup: Path) -> None:
    for path in backup.glob("commits/*.json"):
        decoded = manifest.decode_manifest(path.read_bytes(), "here")
        for named in (*decoded.blobs, *decoded.workers[0].tensors.values()):
            for field in {"path", "blob"} & vars(named).keys():
                object.__setattr__(named, field, "blobs/../../../" + getattr(named, field))
        path.write_bytes(manifest.encode_manifest(decoded))
    assert_refused_and_untouched(backup, tiny.rich_model(), DamagedBackupError, "is not valid")


def test_the_callback_outside_of_fit_says_so(tmp_path: Path) -> None:
    callback = kdc.BackupAndRestore(tmp_path)
    callback.set_model(tiny.model())
    with pytest.raises(ConfigError, match=r"within model\.fit"):
        callback.on_train_begin()


def test_evaluate_with_the_callback_changes_nothing(tmp_path: Path) -> None:
    x, y = tiny.data()
    tiny.model().evaluate(x, y, verbose=0, callbacks=[kdc.BackupAndRestore(tmp_path / "backup")])
    assert not (tmp_path / "backup").exists()


@pytest.mark.finds("steps_per_epoch")
def test_a_changed_batch_size_is_labelled_not_exact(backup: Path) -> None:
    dataset = tf.data.Dataset.from_tensor_slices(tiny.data()).batch(tiny.BATCH // 2)
    with pytest.warns(RuntimeWarning, match=r"(?s)not exact:.*the batches per epoch changed from 5 to 10; use"):
        tiny.fit(tiny.rich_model(), backup, x=dataset)


def test_another_seed_is_another_fit(backup: Path) -> None:
    model = tiny.rich_model()
    keras.utils.set_random_seed(8)
    with pytest.raises(BackupMismatchError, match=r"belongs to another fit.*: the global seed was 7 then and is 8 now"):
        tiny.fit(model, backup)


def test_a_callback_that_is_new_or_gone_is_named(backup: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"EarlyStopping\(monitor=loss\) was not in the interrupted run"):
        tiny.fit(tiny.rich_model(), backup, [keras.callbacks.EarlyStopping("loss")])


@pytest.mark.finds("metrics-new", "metrics-gone")
def test_a_renamed_metric_is_labelled_and_everything_else_restored(backup: Path) -> None:
    model, steps = tiny.rich_model(), tiny.CountSteps()
    renamed = [keras.metrics.BinaryAccuracy(name="renamed"), keras.metrics.AUC(name="auc")]
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=renamed)
    match = r"metrics that the backup does not hold are not restored \(renamed/total, renamed/count\)"
    with pytest.warns(RuntimeWarning, match=match):
        tiny.fit(model, backup, [steps])
    assert steps.trained[0] == (1, 1)

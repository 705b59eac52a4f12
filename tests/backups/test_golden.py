"""A backup of the first version of the format, kept forever: every later version reads it.

It was written by a `BackupAndRestore` in a `fit()` of one step: `Dense(1)` on two features, SGD. When a later version
adds a field with a default, a backup of that version is added next to this one.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.journal import RECORD as JOURNAL
from keras_dist_callbacks.backups.journal import AttemptRecord
from keras_dist_callbacks.backups.manifest import MANIFEST
from keras_dist_callbacks.backups.owner_records import OWNER, read_owner
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.checkpoints.end_note import END_NOTE
from keras_dist_callbacks.checkpoints.record import CHECKPOINT
from keras_dist_callbacks.evaluation.results import RESULT
from keras_dist_callbacks.storage.storage import Storage
from tests.support import ROOT

GOLDEN = ROOT / "tests" / "golden"
BACKUP = GOLDEN / "backup-v1"
WEIGHTS = [np.float32([[9.229320526123047], [10.872385025024414]]), np.float32([3.7255947589874268])]


def test_a_backup_of_version_1_is_read_and_restored_into_a_model() -> None:
    arrays = kdc.load_backup(BACKUP)
    assert sum(np.array_equal(value, WEIGHTS[0]) for value in arrays.values()) == 1
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")], name="golden")
    kdc.load_backup(BACKUP, model)
    for ours, expected in zip(model.get_weights(), WEIGHTS, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.slow
def test_a_run_continues_from_a_backup_of_version_1(tmp_path: Path) -> None:
    shutil.copytree(BACKUP, tmp_path / "backup")
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")], name="golden")
    model.compile(keras.optimizers.SGD(0.5), "mse")
    x, y = np.float32([[1, 2], [3, 4]]), np.float32([[1], [2]])
    backup = kdc.BackupAndRestore(tmp_path / "backup")
    history = model.fit(x, y, epochs=2, batch_size=2, shuffle=False, verbose=0, callbacks=[backup])
    assert backup.restored is not None
    assert (backup.restored.position.epoch, backup.restored.position.step) == (1, 1)
    assert len(history.history["loss"]) == 2


def test_an_owner_record_of_version_1_is_read() -> None:
    owner = read_owner(Storage.open(BACKUP), 1)
    assert owner is not None
    assert (owner.by, owner.made_directory, owner.info["strategy"]) == (
        "BackupAndRestore",
        True,
        "_DefaultDistributionStrategy",
    )
    assert (owner.namespace, owner.began, owner.has_ended) == (None, None, False)  # records had not these fields first
    assert BackupStore(Storage.open(BACKUP)).newest_generation() == 1


def test_an_owner_record_with_the_identity_of_its_process_is_read() -> None:
    owner = OWNER.decode((GOLDEN / "owner-v1/record.json").read_bytes(), "record.json")
    assert owner.namespace == "0f1e2d3c-4b5a-4697-8877-665544332211 pid:[4026531836] time:[4026531834]"
    assert (owner.pid, owner.began) == (4711, 44444)
    assert not owner.has_ended  # it was of another machine


def test_a_new_version_of_a_format_comes_with_a_golden_file_of_its_own() -> None:
    assert (GOLDEN / f"backup-v{MANIFEST.version}").is_dir()
    assert OWNER.version == 1, "add a backup with an owner record of the new version"


def fields_of(schema: Any) -> str:
    is_struct = isinstance(schema, type) and issubclass(schema, msgspec.Struct)
    return " ".join(schema.__struct_fields__ if is_struct else (field.name for field in dataclasses.fields(schema)))


OWNER_FIELDS = (
    "claimed token made_directory by script host pid info namespace began rolled_back_to rolled_back_from undoes"
)
CHECKPOINT_FIELDS = (
    "template published_name run_token generation sequence epoch step monitor value best_only size digest "
    "mode max_to_keep keep_best keep_every finite"
)
EVALUATION_FIELDS = "name step epoch plot_step metrics weights_digest checkpoints evaluated_at"


@pytest.mark.parametrize(
    ("version", "schema", "fields"),
    [
        (MANIFEST.version, MANIFEST.schema, "id position blobs workers info"),
        (
            OWNER.version,
            OWNER.schema,
            OWNER_FIELDS,
        ),
        (CHECKPOINT.version, CHECKPOINT.schema, CHECKPOINT_FIELDS),
        (END_NOTE.version, END_NOTE.schema, "template generation is_ended last token"),
        (RESULT.version, RESULT.schema, EVALUATION_FIELDS),
        (JOURNAL.version, JOURNAL.schema, "attempts older began seconds repeated"),
        (JOURNAL.version, AttemptRecord, "generation began first step seconds end after after_step"),
    ],
)
def test_the_fields_of_a_version_do_not_change(version: int, schema: Any, fields: str) -> None:
    """A reader without a new field would call the record damaged; with a new version, it says that it is too old."""
    assert (version, fields_of(schema)) == (1, fields)

"""Files of the first version of the checkpoint record and the end note, kept forever: every later version reads them.

They were written once with `files.publish` and `END_NOTE.encode` from a `Dense(1)` on two features with the weights
1, 2 and 3. When a later version adds a field with a default, files of that version are added next to these.
`2.keras` is of the same version and has the fields that are left out where they are None.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.end_note import END_NOTE, EndNote
from keras_dist_callbacks.checkpoints.record import CHECKPOINT, CheckpointRecord
from tests.support import KERAS, ROOT, tiny
from tests.support.checkpoints import opened

GOLDEN = ROOT / "tests" / "golden"
WEIGHTS = [np.array([[1.0], [2.0]]), np.array([3.0])]


@pytest.mark.parametrize("name", ["1.keras", "1.weights.h5"])
def test_a_checkpoint_of_version_1_is_read_and_loaded(name: str, tmp_path: Path) -> None:
    found = files.fetch(opened(GOLDEN / "checkpoint-v1"), name, tmp_path).record
    assert found == CheckpointRecord(
        template=f"{{epoch}}{name[1:]}",
        published_name=name,
        run_token="0123456789ab",  # noqa: S106 - not a secret
        generation=1,
        sequence=1,
        epoch=1,
        step=10,
        monitor="val_loss",
        value=0.25,
        best_only=True,
        size=found.size,
        digest=found.digest,
    )
    if name.endswith(".keras"):
        if KERAS < (3, 15):
            pytest.skip("Keras 3.15 has written the file")
        model = keras.models.load_model(tmp_path / name)
    else:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.load_weights(tmp_path / name)
    tiny.assert_same(model.get_weights(), WEIGHTS)


def test_a_record_with_the_rules_of_its_run_is_read(tmp_path: Path) -> None:
    """The fields that are left out where they are None."""
    record = files.fetch(opened(GOLDEN / "checkpoint-v1"), "2.keras", tmp_path).record
    assert record.rules == Rules(max_to_keep=3, keep_best=2, keep_every=10, monitor="val_auc", mode="max")
    assert (record.epoch, record.value) == (2, 0.75)


def test_an_end_note_of_version_1_is_read() -> None:
    content = (GOLDEN / "training-end-v1" / "note.json").read_bytes()
    assert END_NOTE.decode(content, "note.json") == EndNote("{epoch}.keras", 1, True, "1.keras", "0123456789ab")


def test_a_new_version_of_a_format_comes_with_a_golden_file_of_its_own() -> None:
    assert (GOLDEN / f"checkpoint-v{CHECKPOINT.version}").is_dir()
    assert (GOLDEN / f"training-end-v{END_NOTE.version}").is_dir()

"""A complete fit() in a directory where someone has planted links, and with the links that users make."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_dist_callbacks import ModelCheckpoint, latest_checkpoint
from keras_dist_callbacks.base.errors import DamagedBackupError, StorageError
from keras_dist_callbacks.checkpoints import taken_back
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny
from tests.support.callback_helpers import fit, ignore_keras_warnings, tiny_model
from tests.support.cli_backups import publish

pytestmark = ignore_keras_warnings


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Someone's directory, with files that look like this package's."""
    directory = tmp_path / "outside"
    (directory / "000001").mkdir(parents=True)
    for name in (
        "thesis.txt",
        "x.safetensors",
        ".notes.tmp-backup",
        f".000001-00000001-ab.json.tmp-{'0' * 32}",
        "000001/data.safetensors",
    ):
        (directory / name).write_text("theirs")
    return directory


def files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


def plant_owner(backup: Path) -> None:
    (backup / "owners").mkdir(parents=True, exist_ok=True)
    (backup / "owners/000001.json").write_text(json.dumps({"token": "0" * 32, "claimed": 0}))


@pytest.mark.in_gate(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "directory_is_a_link"),
    [("blobs/000001", False), ("blobs/000001", True), ("blobs", False), ("commits", False), ("damaged", False)],
)
def test_a_planted_link_ends_fit_before_training_and_nothing_it_points_to_is_lost(
    link: str, directory_is_a_link: bool, outside: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    if directory_is_a_link:
        (tmp_path / "real").mkdir()
        backup.symlink_to(tmp_path / "real")
    (backup / link).parent.mkdir(parents=True, exist_ok=True)
    (backup / link).symlink_to(outside)
    plant_owner(backup)
    before, steps = files(outside), tiny.CountSteps()
    with pytest.raises(StorageError) as caught:
        tiny.fit(tiny.model(), backup, [steps], epochs=1)
    assert f"{backup / link} is a symbolic link" in str(caught.value)
    assert "remove it" in str(caught.value)
    assert steps.trained == []
    assert files(outside) == before
    (backup / link).unlink()
    tiny.fit(tiny.model(), backup, [steps], epochs=1)
    assert len(steps.trained) == tiny.STEPS, "as the message says"


@pytest.mark.slow
def test_a_link_that_is_planted_while_training_continues_is_named_and_leads_nowhere(
    outside: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"

    class Plant(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            if batch == 1:
                assert shared_writer().wait(30), "a save while the directory is moved away fails in another way"
                (backup / "blobs").mkdir(exist_ok=True)
                (backup / "blobs/000001").rename(backup / "elsewhere") if (backup / "blobs/000001").exists() else None
                (backup / "blobs/000001").symlink_to(outside)

    before = files(outside)
    with pytest.warns(RuntimeWarning, match=r"failed( and training continues)?: .*blobs/000001 is a symbolic link"):
        tiny.fit(tiny.model(), backup, [Plant()], epochs=1, options={"delete_checkpoint": False})
    assert files(outside) == before


def test_checkpoints_that_are_moved_aside_follow_no_planted_link(outside: Path, tmp_path: Path) -> None:
    place, before = tmp_path / "checkpoints", files(outside)
    place.mkdir()
    publish(place, "ckpt-1.keras", 1, tmp_path)
    (place / "rolled-back").symlink_to(outside)
    with pytest.raises(StorageError, match="symbolic link"):
        taken_back.move_aside(Storage.open(place), ["ckpt-1.keras"])
    assert files(outside) == before
    assert (place / "ckpt-1.keras").exists()


@pytest.mark.slow
def test_users_files_that_resemble_unfinished_ones_outlive_a_resume(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    tiny.interrupt(backup, 0, 3)
    mine = backup / "commits/.notes.tmp-backup"
    mine.write_text("mine")
    left = backup / f"commits/.000001-00000009-{'ab' * 6}.json.tmp-{'0' * 32}"
    left.write_text("half")
    tiny.interrupt(backup, 1, 1)
    assert mine.read_text() == "mine"
    assert not left.exists()


@pytest.mark.slow
def test_a_users_link_to_the_latest_model_is_replaced_and_what_it_shows_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / "run1"
    directory.mkdir()
    (tmp_path / "precious.keras").write_text("precious")
    (directory / "latest.keras").symlink_to(tmp_path / "precious.keras")
    (directory / "shortcut").symlink_to(tmp_path)
    model = tiny_model()
    fit(model, ModelCheckpoint(directory / "latest.keras"))
    assert (tmp_path / "precious.keras").read_text() == "precious"
    assert not (directory / "latest.keras").is_symlink()
    loaded = keras.models.load_model(directory / "latest.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


@pytest.mark.slow
def test_checkpoints_lie_below_directories_that_are_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    monkeypatch.chdir(tmp_path)
    fit(tiny_model(), ModelCheckpoint("runs/run1/model.keras"))
    assert (tmp_path / "disk/run1/model.keras").is_file()
    (tmp_path / "here").symlink_to(tmp_path / "disk/run1")
    fit(tiny_model(), ModelCheckpoint("here/model.keras"))
    found = latest_checkpoint(tmp_path / "here")
    assert found is not None
    assert found.endswith("here/model.keras")


@pytest.mark.slow
def test_a_checkpoint_that_was_replaced_by_a_link_is_named(tmp_path: Path) -> None:
    fit(tiny_model(), ModelCheckpoint(tmp_path / "model.keras"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "model.keras").rename(tmp_path / "elsewhere/model.keras")
    (tmp_path / "model.keras").symlink_to("elsewhere/model.keras")
    with pytest.raises(DamagedBackupError, match=r"model\.keras is a symbolic link, which is not followed"):
        latest_checkpoint(tmp_path)


def test_a_users_shortcut_to_a_checkpoint_of_the_directory_is_ignored(tmp_path: Path) -> None:
    fit(tiny_model(), ModelCheckpoint(tmp_path / "{epoch}.keras"), epochs=2)
    (tmp_path / "latest.keras").symlink_to("2.keras")
    assert latest_checkpoint(tmp_path) == str(tmp_path / "2.keras")

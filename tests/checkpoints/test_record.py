"""The record in a checkpoint file: written once, loaded by Keras and h5py, and every damaged byte is noticed."""

from __future__ import annotations

import dataclasses
import shutil
import struct
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from keras_dist_callbacks.base.errors import BackupMismatchError, DamagedBackupError
from keras_dist_callbacks.checkpoints.record import (
    TAIL_BYTES,
    Checkpoint,
    CheckpointRecord,
    append_record,
    parse_tail,
    read_local,
)
from tests.support import tiny
from tests.support.checkpoints import read_model, record, write_model

NAMES = ("1.keras", "1.weights.h5")


def tail(path: Path) -> CheckpointRecord | None:
    return parse_tail(path.read_bytes()[-TAIL_BYTES:], path.name)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_is_read_back_with_size_and_digest_of_the_bytes_before_it(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / name)
    size = path.stat().st_size
    written = append_record(path, record(name, monitor="val_loss", value=0.5, best_only=True))
    assert written.size == size
    assert written.digest != "0" * 32
    assert tail(path) == read_local(path, name) == written
    assert path.stat().st_size == Checkpoint(name, written).file_size


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_keras_and_h5py_load_a_file_with_a_record(tmp_path: Path, name: str) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    path = tmp_path / name
    model.save_weights(path) if name.endswith(".h5") else model.save(path)
    append_record(path, record(name))
    if name.endswith(".h5"):
        with h5py.File(path) as file:
            assert "layers" in file
        loaded = keras.models.clone_model(model)
        loaded.load_weights(path)
    else:
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
        loaded = keras.models.load_model(path)
    tiny.assert_same(loaded.get_weights(), model.get_weights())


def test_h5py_that_changes_a_file_drops_the_record(tmp_path: Path) -> None:
    path = tmp_path / "1.weights.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
    append_record(path, record(path.name))
    with h5py.File(path, "r+") as file:
        file["y"] = np.arange(4)
    assert tail(path) is None
    with pytest.raises(DamagedBackupError, match="no record: it is incomplete, or another program rewrote it"):
        read_local(path, path.name)


def test_a_zip_archive_that_another_program_extended_is_damaged(tmp_path: Path) -> None:
    path = write_model(tmp_path / "1.keras")
    append_record(path, record())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("more", b"x")
    with pytest.raises(DamagedBackupError, match=r"has \d+ bytes, but its record has \d+"):
        read_local(path, path.name)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_record_takes_the_place_of_the_first(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / name)
    first = append_record(path, record(name, monitor="a long name of a metric", value=1.0))
    second = append_record(path, record(name, generation=2))
    assert (second.size, second.generation) == (first.size, 2)
    assert read_local(path, name) == second
    if name.endswith(".keras"):
        assert read_model(path) == b"content"


@pytest.mark.parametrize("name", NAMES)
def test_every_changed_byte_of_content_record_length_and_magic_is_noticed(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / name)
    written = append_record(path, record(name))
    content = path.read_bytes()
    for position in range(len(content)):
        for bit in (1, 128):
            path.write_bytes(content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :])
            with pytest.raises(DamagedBackupError, match=name):
                read_local(path, name)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedBackupError, match=name):
            read_local(path, name)
    path.write_bytes(content + b"\0")
    with pytest.raises(DamagedBackupError, match="no record"):
        read_local(path, name)
    path.write_bytes(content)
    assert read_local(path, name) == written


@pytest.mark.parametrize("length", [0, 4097, 2**32, 2**63, 2**64 - 1])
def test_a_length_that_no_record_has_is_damage(length: int) -> None:
    with pytest.raises(DamagedBackupError, match="the length of its record is damaged"):
        parse_tail(b"x" * 100 + struct.pack("<Q", length) + b"KDCREC01", "a.keras")


def test_a_record_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "1.keras")
    with monkeypatch.context() as patch:
        from keras_dist_callbacks.checkpoints import record as module

        patch.setattr(module, "CHECKPOINT", dataclasses.replace(module.CHECKPOINT, version=7))
        append_record(path, record())
    with pytest.raises(BackupMismatchError, match=r"1\.keras: format version 7 is not supported \(known: 1 to 1\)"):
        tail(path)


def test_a_keras_file_that_is_not_a_zip_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1.keras"
    path.write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="does not end like a zip archive"):
        append_record(path, record())


def test_an_archive_of_more_than_four_gibibytes_of_directory_has_the_same_end(tmp_path: Path) -> None:
    """With zip64 records the last structure is the same 22 bytes."""
    path = tmp_path / "1.keras"
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(70_000):  # more members than fit into the old format
            archive.writestr(zipfile.ZipInfo(str(index)), b"")
    append_record(path, record())
    read_local(path, path.name)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 70_000


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_json_does_not_have_is_not_recorded(value: float) -> None:
    assert record(value=value).value is None


def test_texts_of_any_language_are_recorded(tmp_path: Path) -> None:
    path = write_model(tmp_path / "größe-中文-1.keras")
    written = append_record(path, record(path.name, template="größe-中文-{epoch}.keras", monitor="\x1b\u202e"))
    assert read_local(path, path.name) == written


def test_a_copy_is_not_the_original_and_comes_after_it(tmp_path: Path) -> None:
    path = write_model(tmp_path / "1.keras")
    written = append_record(path, record())
    shutil.copy(path, tmp_path / "release.keras")
    copy = Checkpoint("release.keras", read_local(tmp_path / "release.keras", "it"))
    original = Checkpoint("1.keras", written)
    assert (original.is_original, copy.is_original) == (True, False)
    assert original.order > copy.order

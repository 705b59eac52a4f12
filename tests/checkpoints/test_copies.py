"""Checkpoints that other programs copied, moved, renamed, mounted or uploaded: a job continues from each."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import keras
import numpy as np
import pytest

from keras_dist_callbacks import ModelCheckpoint, make_or_restore_model, restored_from
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.storage.storage import Storage
from tests.support.callback_helpers import fit, ignore_keras_warnings, tiny_model
from tests.support.stores.fixtures import Place

pytestmark = [pytest.mark.process, pytest.mark.slow, ignore_keras_warnings]
EPOCHS = 5
TEMPLATE = "ckpt-{epoch:04d}.keras"


def model() -> keras.Model:
    return tiny_model(keras.optimizers.Adam(0.1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a job that was interrupted after three epochs."""
    directory = tmp_path_factory.mktemp("trained") / "checkpoints"
    fit(model(), ModelCheckpoint(directory / TEMPLATE), epochs=3)
    return directory


@pytest.fixture(scope="module")
def uninterrupted() -> list[np.ndarray[Any, Any]]:
    reference = model()
    fit(reference, epochs=EPOCHS)
    return [np.asarray(value) for value in reference.get_weights()]


def continue_in(url: str | Path, options: dict[str, Any] | None = None) -> list[np.ndarray[Any, Any]]:
    """Restarts the job, with another place for its checkpoints."""
    restored = make_or_restore_model(model, url, storage_options=options)
    epoch = restored_from(restored).epoch
    assert epoch == 3
    checkpoint = ModelCheckpoint(f"{url}/{TEMPLATE}", max_to_keep=2, storage_options=options)
    fit(restored, checkpoint, initial_epoch=epoch, epochs=EPOCHS)
    return [np.asarray(value) for value in restored.get_weights()]


def names(url: str | Path, options: dict[str, Any] | None = None) -> list[str]:
    return [info.name for info in Storage.open(url, options).files() if not info.name.startswith(".")]


def assert_equal(ours: list[np.ndarray[Any, Any]], theirs: list[np.ndarray[Any, Any]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@contextlib.contextmanager
def bind_mounted(source: Path, target: Path) -> Iterator[None]:
    target.mkdir()
    if subprocess.run(["mount", "--bind", source, target], check=False, capture_output=True).returncode:
        pytest.skip("this account must not mount")
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


@pytest.mark.parametrize("command", [["cp", "-r"], ["cp", "-a"], ["mv"]], ids=" ".join)
def test_a_job_continues_from_a_directory_that_was_copied_or_moved(
    trained: Path, tmp_path: Path, command: list[str], uninterrupted: Any
) -> None:
    shutil.copytree(trained, tmp_path / "before")
    subprocess.run([*command, tmp_path / "before", tmp_path / "after"], check=True)
    assert_equal(continue_in(tmp_path / "after"), uninterrupted)
    assert names(tmp_path / "after") == ["ckpt-0004.keras", "ckpt-0005.keras"]


def test_a_job_continues_in_a_bind_mount_and_both_sides_see_it(
    trained: Path, tmp_path: Path, uninterrupted: Any
) -> None:
    shutil.copytree(trained, tmp_path / "volume")
    with bind_mounted(tmp_path / "volume", tmp_path / "mount"):
        assert_equal(continue_in(tmp_path / "mount"), uninterrupted)
    assert names(tmp_path / "volume") == ["ckpt-0004.keras", "ckpt-0005.keras"]


def test_a_job_continues_from_a_renamed_file_which_stays(trained: Path, tmp_path: Path, uninterrupted: Any) -> None:
    (tmp_path / "d").mkdir()
    shutil.copy(trained / "ckpt-0003.keras", tmp_path / "d" / "interrupted run.keras")
    assert_equal(continue_in(tmp_path / "d"), uninterrupted)
    assert names(tmp_path / "d") == ["ckpt-0004.keras", "ckpt-0005.keras", "interrupted run.keras"]


def test_a_users_copy_next_to_the_originals_survives_max_to_keep(
    trained: Path, tmp_path: Path, uninterrupted: Any
) -> None:
    directory = tmp_path / "d"
    shutil.copytree(trained, directory)
    subprocess.run(["cp", "ckpt-0002.keras", "release.keras"], cwd=directory, check=True)
    assert_equal(continue_in(directory), uninterrupted)
    assert names(directory) == ["ckpt-0004.keras", "ckpt-0005.keras", "release.keras"]
    copy = files.verify(Storage.open(directory), "release.keras")
    assert (copy.record.published_name, copy.record.epoch) == ("ckpt-0002.keras", 2)


class Bucket:
    """The bucket of the tests, with boto3: the store's own client."""

    def __init__(self, place: Place) -> None:
        options = place.options
        self.client = boto3.client(
            "s3",
            endpoint_url=options["endpoint_url"],
            aws_access_key_id=options["key"],
            aws_secret_access_key=options["secret"],
        )
        parts = urlsplit(place.url)
        self.name, self.prefix = parts.netloc, parts.path.strip("/")

    def upload(self, directory: Path) -> None:
        for path in directory.iterdir():
            self.client.upload_file(str(path), self.name, f"{self.prefix}/{path.name}")

    def copy(self, name: str, other: str) -> None:
        source = {"Bucket": self.name, "Key": f"{self.prefix}/{name}"}
        self.client.copy(source, self.name, f"{self.prefix}/{other}")

    def delete(self, name: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=f"{self.prefix}/{name}")

    def download(self, directory: Path, names: list[str]) -> None:
        directory.mkdir()
        for name in names:
            self.client.download_file(self.name, f"{self.prefix}/{name}", str(directory / name))


def upload(bucket: Bucket, trained: Path) -> None:
    bucket.upload(trained)


def upload_and_rename(bucket: Bucket, trained: Path) -> None:
    bucket.upload(trained)
    for number in (1, 2, 3):
        bucket.copy(f"ckpt-{number:04d}.keras", f"moved-{number}.keras")
        bucket.delete(f"ckpt-{number:04d}.keras")


def upload_and_copy_one(bucket: Bucket, trained: Path) -> None:
    bucket.upload(trained)
    bucket.copy("ckpt-0001.keras", "release.keras")


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("remote", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("transfer", "expected"),
    [
        (upload, ["ckpt-0004.keras", "ckpt-0005.keras"]),
        (
            upload_and_rename,
            ["ckpt-0004.keras", "ckpt-0005.keras", "moved-1.keras", "moved-2.keras", "moved-3.keras"],
        ),
        (upload_and_copy_one, ["ckpt-0004.keras", "ckpt-0005.keras", "release.keras"]),
    ],
)
def test_a_job_continues_from_what_the_stores_own_client_uploaded_copied_or_downloaded(
    remote: Place,
    trained: Path,
    tmp_path: Path,
    transfer: Callable[[Bucket, Path], None],
    expected: list[str],
    uninterrupted: Any,
) -> None:
    place = remote.sub("run/checkpoints")
    bucket = Bucket(place)
    transfer(bucket, trained)
    uploaded = names(place.url, place.options)
    bucket.download(tmp_path / "downloaded", uploaded)
    assert_equal(continue_in(place.url, place.options), uninterrupted)
    assert names(place.url, place.options) == expected
    assert_equal(continue_in(tmp_path / "downloaded"), uninterrupted)
    assert names(tmp_path / "downloaded") == expected

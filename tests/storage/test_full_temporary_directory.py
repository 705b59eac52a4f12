"""A temporary directory that takes nothing is an error that names it, what was to be written, and the way out."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups import record_io
from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.launch import launcher
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage
from tests.support import cli_backups


def use(place: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("TMPDIR", str(place))
    patch.setattr("tempfile.tempdir", str(place))
    patch.setattr(shared(temporary.Directories), "own", {})


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary directory, with a megabyte of space."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a file system")
    try:
        with monkeypatch.context() as patch:
            use(place, patch)
            yield place
            temporary.delete_own()
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def refuse_with(number: int) -> Any:
    def refuse(**options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


def large_model() -> Any:
    model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(500)])
    model.compile("sgd", "mse")
    return model


def fit(model: Any, *callbacks: Any) -> None:
    model.fit(np.ones((2, 1000), "float32"), np.ones((2, 500), "float32"), verbose=0, callbacks=list(callbacks))


@pytest.mark.process
def test_a_record_and_a_copy_that_do_not_fit_are_errors_of_the_temporary_directory(tmp_path: Path, small: Path) -> None:
    storage = Storage.open(tmp_path / "d")
    storage.create("large", [bytes(2**21)])
    with temporary.directory("copies") as copies, pytest.raises(StorageError) as caught:
        storage.download("large", copies / "large")
    assert str(caught.value) == (
        f"cannot write a copy of {tmp_path}/d/large (2.0 MiB): the temporary directory {small} cannot be written (No "
        "space left on device; 0 B are free). Free some space, or set TMPDIR to a directory that has more"
    )
    with pytest.raises(
        StorageError, match=f"the content of {tmp_path}/d/record [(]2.0 MiB[)]: the temporary directory"
    ):
        record_io.write(storage, "record", bytes(2**21))
    assert [path.name for path in next(small.iterdir()).iterdir()] == ["lock"]


@pytest.mark.slow
@pytest.mark.process
def test_checkpoints_of_models_that_do_not_fit(tmp_path: Path, small: Path) -> None:
    file = tmp_path / "checkpoints" / "m.keras"  # not `.weights.h5`: HDF5 ends a process that could not close its file
    told = f"the temporary directory {small} cannot be written .No space left on device"
    with pytest.raises(StorageError, match=f"cannot write the file for {file}: {told}"):
        fit(large_model(), kdc.ModelCheckpoint(file))
    with pytest.MonkeyPatch.context() as patch:
        use(tmp_path, patch)
        fit(large_model(), kdc.ModelCheckpoint(file))
    with pytest.raises(StorageError, match=f"cannot write a copy of {file} [(]1.9 MiB[)]: {told}"):
        kdc.make_or_restore_model(large_model, file)


def test_an_export_whose_file_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli_backups.commit(cli_backups.begin(tmp_path / "backup"), 1)
    use(tmp_path, monkeypatch)

    def fill(command: Any, **options: Any) -> Any:
        monkeypatch.setattr(tempfile, "TemporaryFile", refuse_with(errno.ENOSPC))
        return subprocess.CompletedProcess(command, 1, "", "OSError: [Errno 28] No space left on device")

    monkeypatch.setattr(subprocess, "run", fill)
    result = cli_backups.kdc("export", tmp_path / "backup", tmp_path / "m.keras")
    said = " ".join(result.stderr.split())
    assert result.exit_code == 2
    told = f"cannot write the model: the temporary directory {tmp_path} cannot be written (No space left on device"
    assert told in said
    assert not (tmp_path / "m.keras").exists()


BY_NUMBER: list[tuple[int, str | None, bool]] = [
    (errno.ENOSPC, None, True),
    (errno.EDQUOT, None, True),
    (errno.ENOSPC, "{tmp}/a", True),
    (errno.EROFS, "{tmp}/a", True),
    (errno.EACCES, "{tmp}/a", True),
    (errno.ENOSPC, "/elsewhere/a", False),
    (errno.EACCES, "/elsewhere/a", False),
    (errno.EACCES, None, False),  # as clients of stores say it
    (errno.EIO, "{tmp}/a", False),
]


@pytest.mark.parametrize(("number", "file", "is_blamed"), BY_NUMBER)
def test_what_fails_is_the_fault_of_the_temporary_directory_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, file: str | None, is_blamed: bool
) -> None:
    use(tmp_path, monkeypatch)
    error = OSError(number, os.strerror(number), file and file.format(tmp=tmp_path))
    with pytest.raises(OSError) as caught, temporary.writing("a thing"):  # noqa: PT011 - it is told apart below
        raise error
    assert isinstance(caught.value, StorageError) is is_blamed
    if is_blamed:
        assert f"cannot write a thing: the temporary directory {tmp_path} cannot be written" in str(caught.value)
        assert "TMPDIR" in str(caught.value)
        assert caught.value.full is False  # else old backups would be deleted in the store
    else:
        assert caught.value is error


def test_an_error_without_a_number_is_judged_by_whether_the_directory_takes_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="of a library"), temporary.writing("a thing"):
        raise ValueError("of a library")
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse_with(errno.EROFS))
    found = pytest.raises(StorageError, match="Read-only file system.. Set TMPDIR to another directory")  # noqa: RUF043
    with found as caught, temporary.writing("a thing"):
        raise ValueError("of a library")
    assert "of a library" in str(caught.value.__cause__)


@pytest.mark.parametrize("make", ["make_directory", "directory", "file"])
def test_a_directory_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: str) -> None:
    use(tmp_path / "gone", monkeypatch)
    told = f"the temporary directory {tmp_path}/gone cannot be written .No such file"
    with pytest.raises(StorageError, match=told), getattr(temporary, make)("x"):
        pass


def test_a_launcher_without_a_temporary_directory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(tmp_path / "gone", monkeypatch)
    options: Any = type("Options", (), {"log_dir": None})
    with pytest.raises(StorageError, match=f"cannot write the pipes to the workers: .*{tmp_path}/gone"):
        launcher.launch(options)

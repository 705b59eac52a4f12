"""The storage seam: atomic, exclusive, confined to its directory; the same on every file system."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from keras_dist_callbacks.base.errors import ConfigError, StorageError
from keras_dist_callbacks.storage.remote_files import _Progress
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage, redact
from keras_dist_callbacks.storage.transfer import RateLimiter


@pytest.fixture(params=["local", "file-url", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    urls = {"local": tmp_path / "d", "file-url": f"file://{tmp_path}/d", "memory": f"memory://{uuid.uuid4().hex}/d"}
    return Storage.open(urls[request.param])


def test_what_is_created_can_be_read_listed_and_deleted(storage: Storage) -> None:
    assert storage.files() == []
    assert storage.size("a/b.bin") is None
    storage.create("a/b.bin", [b"abc", memoryview(b"defg")])
    assert storage.read("a/b.bin") == b"abcdefg"
    assert storage.read("a/b.bin", 1, 3) == b"bc"
    assert [(f.name, f.size) for f in storage.files("a")] == [("b.bin", 7)]
    assert storage.size("a/b.bin") == 7
    storage.delete("a/b.bin")
    storage.delete("a/b.bin")
    assert storage.files("a") == []
    with pytest.raises(FileNotFoundError):
        storage.read("a/b.bin")


def test_a_buffer_is_filled_from_the_middle_of_an_object(storage: Storage) -> None:
    storage.create("x", [b"0123456789"])
    buffer = bytearray(4)
    storage.read_into("x", 3, memoryview(buffer))
    assert buffer == b"3456"
    halves = np.zeros(2, "<u2")
    storage.read_into("x", 6, memoryview(halves))
    assert halves.tobytes() == b"6789"
    storage.read_into("x", 10, memoryview(bytearray()))


def test_replace_overwrites(storage: Storage, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for content in (b"first", b"second"):
        source.write_bytes(content)
        storage.replace("x", source)
        assert storage.read("x") == content
    assert [f.name for f in storage.files()] == ["x"]
    storage.download("x", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"second"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "", "a\\..\\x"])
def test_names_that_leave_the_directory_are_refused(storage: Storage, name: str) -> None:
    for operation in (storage.read, storage.delete, storage.size, lambda n: storage.create(n, [b""])):
        with pytest.raises(StorageError, match="is outside of the directory"):
            operation(name)


def test_the_probe_leaves_nothing(storage: Storage) -> None:
    storage.probe()
    assert storage.files() == []


def test_an_interrupted_write_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(tmp_path)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: full(descriptor, data))
    with pytest.raises(
        StorageError,
        match=r"cannot create .*/x: No space left on device; it needs 7 B and .* are free.*: free some space",
    ):
        storage.create("x", [b"content"])
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_without_hard_links_create_still_never_overwrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str, **directories: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    storage = Storage.open(tmp_path)
    storage.create("x", [b"first"])
    with pytest.raises(FileExistsError):
        storage.create("x", [b"second"])
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"first"


def test_a_lost_response_is_not_taken_for_a_foreign_write(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(f"memory://{uuid.uuid4().hex}", retry=RetryPolicy(5, 0.01, 0.01))
    real, calls = MemoryFileSystem.pipe_file, []

    def lose_first_response(fs: MemoryFileSystem, path: str, content: bytes, mode: str) -> None:
        calls.append(path)
        real(fs, path, content, mode=mode)
        if len(calls) == 1:
            raise ConnectionResetError("response lost")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lose_first_response)
    storage.create("x", [b"mine"])
    assert len(calls) == 2
    assert storage.read("x") == b"mine"


def test_passing_faults_are_retried_and_lasting_ones_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(f"memory://{uuid.uuid4().hex}", retry=RetryPolicy(0.3, 0.01, 0.05))
    storage.create("x", [b"content"])
    real, calls = MemoryFileSystem.cat_file, []

    def flaky(fs: MemoryFileSystem, path: str, **options: object) -> bytes:
        calls.append(path)
        if len(calls) < 3:
            raise OSError("503 Service Unavailable")
        return real(fs, path, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(MemoryFileSystem, "cat_file", flaky)
    assert storage.read("x") == b"content"
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda *a, **k: (_ for _ in ()).throw(OSError("503 for good")))
    with pytest.raises(StorageError, match=r"cannot read memory://.*/x: 503 for good"):
        storage.read("x")


def test_permission_errors_are_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(f"memory://{uuid.uuid4().hex}", retry=RetryPolicy(30, 1, 1))
    calls = []

    def forbidden(fs: MemoryFileSystem, path: str, **options: object) -> bytes:
        calls.append(path)
        raise PermissionError("denied")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", forbidden)
    with pytest.raises(StorageError, match="check the permissions or credentials"):
        storage.read("x")
    assert len(calls) == 1


def test_messages_show_no_credentials() -> None:
    assert redact("ftp://user:secret@host/dir?sig=abc") == "ftp://host/dir"
    assert redact("/plain/path") == "/plain/path"


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty path"):
        Storage.open("")


def test_what_a_repeated_upload_sends_again_is_not_progress() -> None:
    traffic, counted = RateLimiter(), []
    progress = _Progress(traffic)
    with traffic.reporting(counted.append):
        progress.set_size(10)
        progress.relative_update(4)
        progress.relative_update(4)
        progress.set_size(10)  # the client begins again
        progress.absolute_update(4)
        progress.absolute_update(10)
    assert counted == [4, 4, 2]

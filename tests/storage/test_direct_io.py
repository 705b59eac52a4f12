"""Large local files are written around the page cache, where the file system lets them; no one sees a difference."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.storage import direct_io
from keras_dist_callbacks.storage.storage import Storage

pytestmark = pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this platform has no such writes")

MIB = 2**20


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.delenv(direct_io.VARIABLE, raising=False)
    return Storage.open(tmp_path / "d")


@pytest.fixture
def direct(storage: Storage) -> Storage:
    """Where the file system of the tests takes such writes."""
    storage.create("first", [bytes(MIB)])
    if not storage.writes_directly:
        pytest.skip("the file system here takes none")
    return storage


def content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def left(storage: Storage) -> list[str]:
    return [path.name for path in sorted(Path(storage.root).iterdir()) if path.name != "first"]


@pytest.mark.parametrize("size", [MIB - 1, MIB, MIB + 1, 4 * MIB - 4096, 4 * MIB, 4 * MIB + 1, 9 * MIB + 4095])
def test_what_was_written_is_what_is_read_whatever_its_length(storage: Storage, size: int) -> None:
    wanted = content(size)
    storage.create("whole", [wanted])
    cuts = [0, 1, 70, 5000, 5001, size // 2, size - 3, size]
    storage.create("cut", [memoryview(wanted)[a:b] for a, b in itertools.pairwise(cuts)])
    assert storage.read("whole") == storage.read("cut") == wanted
    assert left(storage) == ["cut", "whole"]


def test_a_name_that_is_taken_stays_as_it_is(direct: Storage) -> None:
    with pytest.raises(FileExistsError):
        direct.create("first", [content(MIB)])
    assert direct.read("first") == bytes(MIB)
    assert left(direct) == []


def pages_in_cache(path: Path) -> int:
    """Asked of the kernel about a mapping: a read, even one that must not wait, brings in what it does not find."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        found = np.zeros(-(-len(mapping) // mmap.PAGESIZE), np.uint8)
        address = ctypes.c_void_p(np.frombuffer(mapping, np.uint8).ctypes.data)
        size, into = ctypes.c_size_t(len(mapping)), ctypes.c_void_p(found.ctypes.data)
        assert ctypes.CDLL(None).mincore(address, size, into) == 0
    return int((found & 1).sum())


def test_large_files_leave_the_page_cache_alone_and_small_ones_go_through_it(direct: Storage) -> None:
    direct.create("small", [content(MIB - 1)])
    direct.create("large", [content(8 * MIB)])
    assert pages_in_cache(Path(direct.root) / "small") == MIB // mmap.PAGESIZE
    assert pages_in_cache(Path(direct.root) / "large") == 0


def refusing(monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[..., bool], code: int) -> list[str]:
    """Lets one of the operating system's functions fail; returns where its calls are noted."""
    original, struck = getattr(os, name), []

    def call(*given: Any, **options: Any) -> Any:
        if when(*given, **options):
            struck.append(name)
            raise OSError(code, os.strerror(code))
        return original(*given, **options)

    monkeypatch.setattr(os, name, call)
    return struck


@pytest.mark.parametrize("at", ["open", "pwrite"])
def test_a_file_system_that_refuses_is_asked_once(storage: Storage, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    if at == "open":
        struck = refusing(monkeypatch, at, lambda path, flags, *rest, **more: bool(flags & os.O_DIRECT), errno.EINVAL)
    else:
        struck = refusing(monkeypatch, at, lambda *given: True, errno.EINVAL)
    for name in ("a", "b"):
        storage.create(name, [content(2 * MIB)])
        assert storage.read(name) == content(2 * MIB)
    assert struck == [at]
    assert not storage.writes_directly
    assert left(storage) == ["a", "b"]


def test_a_refusal_in_the_midst_of_a_file_begins_it_again(direct: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    refusing(monkeypatch, "pwrite", lambda *given: calls.append(1) or len(calls) == 2, errno.EINVAL)
    direct.create("a", [content(9 * MIB)])
    assert direct.read("a") == content(9 * MIB)
    assert not direct.writes_directly


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_in_the_midst_of_a_file_is_an_error_that_leaves_nothing(
    direct: Storage, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    calls: list[int] = []
    with monkeypatch.context() as patch:
        refusing(patch, "pwrite", lambda *given: calls.append(1) or len(calls) == 2, code)
        with pytest.raises(StorageError, match=os.strerror(code)):
            direct.create("a", [content(9 * MIB)])
    assert left(direct) == []
    direct.create("a", [content(9 * MIB)])
    assert direct.read("a") == content(9 * MIB)
    assert direct.writes_directly


@pytest.mark.parametrize("at_once", [4096, 12288, 4608])
def test_a_disk_may_take_less_than_it_is_given(direct: Storage, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    original = os.pwrite
    calls: list[int] = []

    def pwrite(file: int, view: memoryview, offset: int) -> int:
        calls.append(offset)
        assert offset % 4096 == 0
        blocks = -(-at_once // 4096) * 4096
        return min(at_once, original(file, view[:blocks], offset))

    monkeypatch.setattr(os, "pwrite", pwrite)
    direct.create("a", [content(5 * MIB + 77)])
    assert direct.read("a") == content(5 * MIB + 77)
    assert len(calls) > 5
    assert direct.writes_directly


def test_a_disk_that_takes_less_than_a_block_gets_the_old_way(direct: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda file, view, offset: 512)
    direct.create("a", [content(2 * MIB)])
    assert direct.read("a") == content(2 * MIB)
    assert not direct.writes_directly


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8 * MIB, 20 * MIB, 200 * MIB])
def test_the_cap_on_the_rate_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    monkeypatch.delenv(direct_io.VARIABLE, raising=False)
    storage = Storage.open(tmp_path / "d", fsync=False, max_bytes_per_second=rate)
    told: list[int] = []
    began = time.monotonic()
    with storage.reporting(told.append):
        storage.create("a", [content(12 * MIB + 5)])
    assert time.monotonic() - began >= (12 * MIB) / rate * 0.9
    assert sum(told) == 12 * MIB + 5
    assert max(told) <= max(4096, min(4 * MIB, rate // 20))


@pytest.mark.process
def test_a_disk_that_is_really_full_is_reported_and_keeps_nothing_of_the_file(
    small_disk: Callable[[int], Path],
) -> None:
    disk = small_disk(6)
    storage = Storage.open(disk)
    with pytest.raises(StorageError, match=r"No space left on device; it needs 9.0 MiB and \d.\d MiB are free"):
        storage.create("a", [content(9 * MIB)])
    assert list(disk.iterdir()) == []
    storage.create("b", [content(3 * MIB)])
    assert storage.read("b") == content(3 * MIB)


def test_threads_that_write_at_once_do_not_share_the_buffer(direct: Storage) -> None:
    def write(number: int) -> bool:
        direct.create(f"{number}", [content(5 * MIB + number)])
        return direct.read(f"{number}") == content(5 * MIB + number)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(write, range(8)))
    assert len(shared(direct_io.Buffers).free) == 1


def test_it_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(direct_io.VARIABLE, "0")
    storage = Storage.open(tmp_path)
    storage.create("a", [content(2 * MIB)])
    assert not storage.writes_directly
    monkeypatch.setenv(direct_io.VARIABLE, "all")
    other = Storage.open(tmp_path)
    other.create("b", [b"tiny"])
    assert other.read("b") == b"tiny"

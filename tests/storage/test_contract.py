"""One contract for every store: local files, memory, Google Cloud Storage, S3 and Azure, on real servers."""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.storage import remote_files, transfer
from keras_dist_callbacks.storage.storage import Storage
from tests.support.leftovers import leftovers
from tests.support.stores.fixtures import Place, Stores
from tests.support.stores.proxy import FaultProxy, Request

# aiohttp would like the clients to hand it files; they hand it bytes.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")


@pytest.fixture
def storage(place: Place) -> Storage:
    return place.open()


def test_what_is_written_can_be_read_listed_measured_and_deleted(storage: Storage) -> None:
    content = os.urandom(100_000)
    assert (storage.files(), storage.files("a"), storage.size("a/b.bin")) == ([], [], None)
    storage.create("a/b.bin", [content[:10], memoryview(content)[10:]])
    assert storage.read("a/b.bin") == content
    assert [(f.name, f.size) for f in storage.files("a")] == [("b.bin", 100_000)]
    assert (storage.files(), storage.size("a/b.bin"), storage.exists("a/b.bin")) == ([], 100_000, True)
    storage.delete("a/b.bin")
    assert (storage.files("a"), storage.size("a/b.bin"), storage.exists("a/b.bin")) == ([], None, False)
    storage.delete("a/b.bin")
    with pytest.raises(FileNotFoundError):
        storage.read("a/b.bin")


@pytest.mark.slow
def test_any_range_can_be_read(storage: Storage) -> None:
    storage.create("x", [b"0123456789"])
    for start, end in itertools.combinations_with_replacement(range(13), 2):
        assert storage.read("x", start, end) == b"0123456789"[start:end]
    assert storage.read("x", 4) == b"456789"
    assert storage.read("x", 12) == b""


def test_threads_fill_their_buffers_at_once(storage: Storage) -> None:
    content = os.urandom(800_000)
    storage.create("x", [content])
    buffer = bytearray(len(content))

    def fill(start: int) -> None:
        storage.read_into("x", start, memoryview(buffer)[start : start + 100_000])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fill, range(0, len(content), 100_000)))
    assert buffer == content


def test_a_buffer_that_the_object_cannot_fill_is_an_error(storage: Storage) -> None:
    storage.create("x", [b"0123456789"])
    for start, found in ((3, 10), (10, 10), (30, 30)):
        with pytest.raises(StorageError, match=rf"/x: it ends after {found} of {start + 8} bytes"):
            storage.read_into("x", start, memoryview(bytearray(8)))
    with pytest.raises(FileNotFoundError):
        storage.read_into("missing", 0, memoryview(bytearray(8)))


def test_create_never_overwrites(storage: Storage) -> None:
    storage.create("x", [b"first"])
    with pytest.raises(FileExistsError):
        storage.create("x", [b"other"])
    assert storage.read("x") == b"first"
    assert [f.name for f in storage.files()] == ["x"]


def test_of_sixteen_racing_threads_one_creates(place: Place) -> None:
    clients = [place.open() for _ in range(16)]
    start = threading.Barrier(16)

    def race(number: int) -> bool:
        start.wait()
        try:
            clients[number].create("x", [f"{number}".encode()])
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = [number for number, success in enumerate(pool.map(race, range(16))) if success]
    assert won == [int(clients[0].read("x"))]


def test_creating_again_with_the_same_content_is_not_an_error_remotely(remote: Place) -> None:
    """What a repeated request looks like after a lost answer."""
    storage = remote.open()
    storage.create("x", [b"mine"])
    storage.create("x", [b"mi", b"ne"])
    for longer_or_shorter in (b"mine, longer", b"mi"):
        with pytest.raises(FileExistsError):
            storage.create("x", [longer_or_shorter])
    with pytest.raises(FileExistsError):
        storage.create("x", [b"yours"[:4]])


def test_an_object_too_large_for_memory_goes_through_a_file_just_as_exclusively(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spool))
    monkeypatch.setattr(remote_files, "JOINED_LIMIT", 3_000_000)
    storage, content = place.open(), os.urandom(7_000_000)
    sent: list[int] = []
    with storage.reporting(sent.append):
        storage.create("large", [content[:1_000_000], content[1_000_000:]])
    assert sum(sent) == len(content)
    assert storage.read("large") == content
    with pytest.raises(FileExistsError):
        storage.create("large", [content[1:], b"x"])
    assert storage.read("large", 0, 10) == content[:10]
    assert leftovers(spool) == []


@pytest.mark.in_gate(1)
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gs", "s3", "az"])
def test_an_object_of_several_parts_is_created_exclusively(stores: Stores, tmp_path: Path, kind: str) -> None:
    """Above 100 MiB every client sends parts, and the condition must hold for the last of its requests."""
    storage = stores.place(kind, tmp_path).open()
    part = os.urandom(26 * 2**20)
    began = time.monotonic()
    storage.create("large", [part] * 4)
    assert storage.size("large") == 4 * len(part)
    assert storage.read("large", 3 * len(part), 4 * len(part)) == part
    with pytest.raises(FileExistsError):
        storage.create("large", [part, part, part, part[1:], b"x"])
    assert storage.read("large", 4 * len(part) - 5) == part[-5:]
    assert time.monotonic() - began < 60
    storage.delete("large")


def test_replace_shows_readers_the_old_object_or_the_new_one(place: Place, tmp_path: Path) -> None:
    writer, reader = place.open(), place.open()
    versions = [bytes([n]) * 300_000 for n in range(6)]
    source, done, seen = tmp_path / "source", threading.Event(), set()
    source.write_bytes(versions[0])
    writer.replace("x", source)

    def look() -> None:
        while not done.is_set():
            seen.add(reader.read("x"))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for version in versions[1:]:
            source.write_bytes(version)
            writer.replace("x", source)
    finally:
        done.set()
        watcher.join()
    assert seen
    assert seen <= set(versions)
    assert reader.read("x") == versions[-1]
    reader.download("x", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == versions[-1]
    assert reader.size("x") == 300_000


def test_a_file_that_grows_holds_all_that_was_given_also_after_it_was_deleted(storage: Storage) -> None:
    storage.extend("a/log", b"one", 0)
    storage.extend("a/log", b"one two", 3)
    storage.extend("a/log", b"one two", 3)  # tried again
    assert storage.read("a/log") == b"one two"
    storage.delete("a/log")
    storage.extend("a/log", b"one two three", 7)
    assert storage.read("a/log") == b"one two three"


def test_what_another_client_writes_and_deletes_is_seen_at_once(place: Place) -> None:
    ours, theirs = place.open(), place.open().child("sub")
    for round_ in range(3):
        name = f"{round_}.bin"
        assert (ours.size(f"sub/{name}"), ours.files("sub")) == (None, [])
        theirs.create(name, [b"abc"])
        assert (ours.size(f"sub/{name}"), [f.name for f in ours.files("sub")]) == (3, [name])
        theirs.delete(name)
        with pytest.raises(FileNotFoundError):
            ours.read(f"sub/{name}")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "", "a\\..\\x"])
def test_names_that_leave_the_directory_are_refused(storage: Storage, name: str) -> None:
    for operation in (storage.read, storage.delete, storage.size, lambda n: storage.create(n, [b""])):
        with pytest.raises(StorageError, match="is outside of the directory"):
            operation(name)


@pytest.mark.parametrize(
    "name", ["two words.bin", "größe-中文-✓.bin", "a+b=c&d,e.bin", "100%25.bin", "deep/er/x", "~x'(1)!"]
)
def test_unusual_names_are_kept(storage: Storage, name: str) -> None:
    storage.create(name, [name.encode()])
    directory, _, last = name.rpartition("/")
    assert [f.name for f in storage.files(directory)] == [last]
    assert storage.read(name) == name.encode()
    assert storage.size(name) == len(name.encode())
    storage.delete(name)
    assert not storage.exists(name)


def test_an_empty_object_is_an_object(storage: Storage) -> None:
    storage.create("empty", [])
    assert (storage.size("empty"), storage.read("empty"), storage.exists("empty")) == (0, b"", True)
    assert [(f.name, f.size) for f in storage.files()] == [("empty", 0)]
    with pytest.raises(FileExistsError):
        storage.create("empty", [b"x"])


def test_a_directory_is_not_an_object(storage: Storage) -> None:
    storage.create("d/x", [b"1"])
    assert [f.name for f in storage.files()] == []
    assert [f.name for f in storage.files("d")] == ["x"]


def test_the_probe_leaves_nothing(storage: Storage) -> None:
    storage.probe()
    assert storage.files() == []


def test_a_cap_holds_back_writes_here_and_in_children(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(transfer, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    storage = place.open(max_bytes_per_second=1_000_000, fsync=False)
    (tmp_path / "source").write_bytes(bytes(200_000))
    sent: list[int] = []
    began = time.monotonic()
    with storage.reporting(sent.append):
        storage.create("x", [bytes(200_000)])
        storage.child("sub").replace("y", tmp_path / "source")
    assert time.monotonic() - began >= 0.4
    assert sum(pauses) <= 0.4, "no more than the cap asks for, however slow the store"
    assert sum(sent) == 400_000


def test_a_forked_process_has_a_connection_of_its_own(remote: Place) -> None:
    storage = remote.open()
    storage.create("x", [b"parent"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork next to threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if storage.read("x") == b"parent" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.read("x") == b"parent"


def test_requests_of_the_same_kind_do_not_grow_in_number(remote: Place, proxy: FaultProxy) -> None:
    """A read is one request, a creation one, whatever the client would like to look up first."""
    storage = remote.through(proxy).open()
    storage.create("x", [b"0123456789"])
    before: list[Request] = list(proxy.requests)
    assert len(before) <= 1
    storage.read("x", 2, 5)
    assert len(proxy.requests) - len(before) == 1

"""One contract for every store: local files, memory, Google Cloud Storage, S3 and Azure, on real servers."""

from __future__ import annotations

import itertools
import os
import threading
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks import remote_files
from keras_dist_callbacks.errors import ConfigError, StorageError
from keras_dist_callbacks.retry import RetryPolicy
from keras_dist_callbacks.storage import Storage
from tests.stores import servers
from tests.stores.fixtures import Place, Stores
from tests.stores.proxy import FaultProxy, Request, anything, uploads

# aiohttp would like the clients to hand it files; they hand it bytes.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")
QUICK = RetryPolicy(total_seconds=20, initial_wait=0.05, max_wait=0.2, request_seconds=3)


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


def test_creating_again_with_the_same_content_is_no_error_remotely(remote: Place) -> None:
    """What a repeated request looks like after a lost answer."""
    storage = remote.open()
    storage.create("x", [b"mine"])
    storage.create("x", [b"mi", b"ne"])
    with pytest.raises(FileExistsError):
        storage.create("x", [b"mine, longer"])
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
    assert list(spool.iterdir()) == []


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
    assert storage.unfinished_uploads() == []
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
        with pytest.raises(StorageError, match="leads out of the directory"):
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


def test_a_cap_holds_back_writes_here_and_in_children(place: Place, tmp_path: Path) -> None:
    storage = place.open(max_bytes_per_second=1_000_000, fsync=False)
    (tmp_path / "source").write_bytes(bytes(200_000))
    sent: list[int] = []
    began = time.monotonic()
    with storage.reporting(sent.append):
        storage.create("x", [bytes(200_000)])
        storage.child("sub").replace("y", tmp_path / "source")
    assert 0.4 <= time.monotonic() - began < 2.5
    assert sum(sent) == 400_000


# --- trouble that lasts


def test_a_missing_bucket_is_named_quickly(remote: Place) -> None:
    storage = remote.elsewhere("kdc-no-such-bucket").open()
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot create .*kdc-no-such-bucket.*container does not exist"):
        storage.probe()
    assert time.monotonic() - began < 5
    assert storage.files() == []
    assert storage.size("x") is None


BODIES = {
    "gs": lambda status: (
        b'{"error": {"code": %d, "message": "caller does not have storage.objects.create access"}}' % status
    ),
    "s3": lambda status: (
        b"<Error><Code>%s</Code><Message>The key you gave is not known.</Message></Error>"
        % (b"InvalidAccessKeyId" if status == 403 else b"InvalidToken")
    ),
    "az": lambda status: b"<Error><Code>AuthenticationFailed</Code><Message>Not authenticated.</Message></Error>",
}


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_an_error_before_the_first_step(remote: Place, proxy: FaultProxy, status: int) -> None:
    fault = proxy.arm("status", anything, times=1000, status=status, body=BODIES[remote.kind](status))
    storage = remote.through(proxy).open()
    began = time.monotonic()
    with pytest.raises(StorageError, match="credentials"):
        storage.probe()
    assert time.monotonic() - began < 5
    assert len(fault.struck) <= 4  # the attempt and its tidying up, not a series of retries


def test_a_wrong_azure_key_is_refused_by_the_server(stores: Stores, tmp_path: Path) -> None:
    place = stores.place("az", tmp_path)
    wrong = place.options["connection_string"].replace(servers.ACCOUNT_KEY, "d3JvbmcgYWNjb3VudCBrZXk=")
    with pytest.raises(StorageError, match=r"cannot create az://.*credentials") as caught:
        Storage.open(place.url, {"connection_string": wrong}).probe()
    assert "d3JvbmcgYWNjb3VudCBrZXk" not in "".join(traceback.format_exception(caught.value))


def test_a_client_without_credentials_is_told_where_to_put_them(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = stores.place("s3", tmp_path)
    for name in [n for n in os.environ if n.startswith("AWS_") and n not in {"AWS_DEFAULT_REGION"}]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    began = time.monotonic()
    with pytest.raises(StorageError, match="no valid credentials: give them in storage_options"):
        Storage.open(place.url, {"endpoint_url": place.options["endpoint_url"]}).probe()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("az://container/x", {"connection_string": "AccountName=a;AccountKey=not base64, but secret;"}),
        ("s3://bucket/x", {"nonsense_option": 1}),
        ("gs://bucket/x", {"token": "/no/such/file-secret.json", "endpoint_url": "http://127.0.0.1:9"}),
    ],
)
def test_options_that_a_client_does_not_take_are_clear_errors(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # gcsfs asks Google what a token is worth
    with pytest.raises((ConfigError, StorageError), match=url.partition("://")[0]) as caught:
        Storage.open(url, options, retry=RetryPolicy(0.1, 0.01, 0.01, 3)).probe()
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_secrets_are_not_shown_even_if_the_store_repeats_them(remote: Place, proxy: FaultProxy) -> None:
    signed = b"https://host/b/o?X-Amz-Signature=abcdef&sig=c2VjcmV0 AccountKey=c2VjcmV0; Bearer ya29.c2VjcmV0"
    bodies = {
        "gs": b'{"error": {"code": 403, "message": "%s"}}' % signed,
        "s3": b"<Error><Code>AccessDenied</Code><Message>%s</Message></Error>" % signed.replace(b"&", b"&amp;"),
        "az": b"<Error><Code>Denied</Code><Message>%s</Message></Error>" % signed.replace(b"&", b"&amp;"),
    }
    proxy.arm("status", anything, times=1000, status=403, body=bodies[remote.kind])
    storage = remote.through(proxy).open()
    with pytest.raises(StorageError) as caught:
        storage.probe()
    shown = "".join(traceback.format_exception(caught.value))
    assert "c2VjcmV0" not in shown
    assert "abcdef" not in shown
    secret = {"gs": "anon", "s3": "testing-secret-value", "az": servers.ACCOUNT_KEY}[remote.kind]
    assert secret not in shown.replace("anonymous", "")


def test_a_store_that_overwrites_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if place.kind == "file":
        pytest.skip("local files cannot lack exclusive create")
    storage = place.open()
    real = storage._remote.fs.pipe_file
    monkeypatch.setattr(storage._remote.fs, "pipe_file", lambda path, data, mode="", **o: real(path, data, **o))
    with pytest.raises(StorageError, match=r"overwrote an object .* conditional writes"):
        storage.probe()
    assert storage.files() == []


def test_a_store_that_keeps_everything_is_usable_with_a_warning(remote: Place, proxy: FaultProxy) -> None:
    proxy.arm("status", lambda r: r.method == "DELETE", status=403, body=BODIES[remote.kind](403))
    storage = remote.through(proxy).open()
    with pytest.warns(RuntimeWarning, match="old files will stay: cannot delete .*permissions or credentials"):
        storage.probe()
    assert len(storage.files()) == 1


# --- faults that pass


def test_a_lost_answer_is_not_taken_for_a_foreign_writer(remote: Place, proxy: FaultProxy) -> None:
    storage = remote.through(proxy).open(QUICK)
    fault = proxy.arm("lose")
    storage.create("x", [b"mine"])
    assert len(fault.struck) == 1
    assert storage.read("x") == b"mine"
    proxy.arm("lose")
    with pytest.raises(FileExistsError):
        storage.create("x", [b"other"])


@pytest.mark.parametrize("request_number", range(5))
def test_any_lost_answer_of_an_upload_in_parts_is_survived(
    remote: Place, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, request_number: int
) -> None:
    """Among them the last one, which completed the object on the server."""
    monkeypatch.setattr(remote_files, "JOINED_LIMIT", 1_000_000)
    storage = remote.through(proxy).open(QUICK)
    content = os.urandom(11_000_000)
    if remote.kind != "az":  # which has no such argument; its parts are larger than what is quick to test
        real = storage._remote.fs.put_file
        monkeypatch.setattr(storage._remote.fs, "put_file", lambda *a, **o: real(*a, chunksize=5 * 2**20, **o))
    fault = proxy.arm("lose", lambda r: r.method in {"PUT", "POST"}, after=request_number)
    storage.create("x", [content])
    proxy.heal()
    assert storage.read("x") == content
    sent = sum(r.method in {"PUT", "POST"} for r in proxy.requests)
    assert len(fault.struck) == (sent > request_number)


@pytest.mark.parametrize("kind", ["status", "reset", "lose", "hang", "down"])
@pytest.mark.parametrize("of", ["upload", "download", "listing", "deletion"])
def test_a_passing_fault_is_invisible(remote: Place, proxy: FaultProxy, kind: str, of: str) -> None:
    policy = RetryPolicy(20, 0.05, 0.2, request_seconds=1 if kind == "hang" else 5)
    storage, content = remote.through(proxy).open(policy), os.urandom(200_000)
    storage.create("a/x", [content])
    predicates = {
        "upload": uploads,
        "download": lambda r: r.method == "GET",
        "listing": lambda r: r.method == "GET",
        "deletion": lambda r: r.method == "DELETE",
    }
    fault = proxy.arm(kind, predicates[of], seconds=3600 if kind == "hang" else 0.7)
    if of == "upload":
        storage.create("a/y", [content])
        assert storage.read("a/y") == content
    elif of == "download":
        assert storage.read("a/x") == content
    elif of == "listing":
        assert [f.name for f in storage.files("a")] == ["x"]
    else:
        storage.delete("a/x")
        assert storage.files("a") == []
    assert len(fault.struck) == 1


def test_throttling_is_waited_out(remote: Place, proxy: FaultProxy) -> None:
    """One of the clients gives up at the first 429."""
    storage = remote.through(proxy).open(QUICK)
    fault = proxy.arm("status", status=429, times=3)
    storage.create("x", [b"content"])
    assert len(fault.struck) == 3


def test_a_store_that_stays_away_is_an_error_within_the_time_given(remote: Place, proxy: FaultProxy) -> None:
    storage = remote.through(proxy).open(RetryPolicy(2, 0.1, 0.5, request_seconds=1))
    proxy.take_down()
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot create .*\(tried for \d+ s\); if this lasts, check the network"):
        storage.create("x", [b"content"])
    assert time.monotonic() - began < 6
    proxy.heal()
    storage.create("x", [b"content"])


def test_a_slow_link_gets_the_time_that_its_size_needs(remote: Place, proxy: FaultProxy) -> None:
    proxy.bytes_per_second = 1_000_000
    storage = remote.through(proxy).open(RetryPolicy(3, 0.1, 0.1, request_seconds=0.8, min_bytes_per_second=250_000))
    content = os.urandom(1_500_000)
    storage.create("x", [content])
    assert storage.read("x", 0, len(content)) == content
    assert sum(r.is_upload for r in proxy.requests) <= 2  # not begun again and again


def test_parts_of_an_interrupted_upload_are_found(stores: Stores, tmp_path: Path) -> None:
    storage = stores.place("s3", tmp_path).open()
    bucket, _, key = storage.root.partition("/")
    for number in range(2):
        storage._remote.fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{key}/deep/x{number}")
    storage._remote.fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{key}-neighbour/x")
    found = storage.unfinished_uploads()
    assert {upload.name for upload in found} == {"deep/x0", "deep/x1"}
    assert all(upload.age >= 0 for upload in found)  # this server gives all of them one old date


def test_stores_without_such_leftovers_report_none(place: Place) -> None:
    assert place.open().unfinished_uploads() == []


def test_a_forked_process_has_a_connection_of_its_own(remote: Place) -> None:
    storage = remote.open()
    storage.create("x", [b"parent"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
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

"""What goes wrong between a client and a store: what passes is not noticed, what lasts is reported well and soon."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.base.errors import ConfigError, StorageError
from keras_dist_callbacks.storage import remote_files
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from tests.support.stores import servers
from tests.support.stores.fixtures import Place, Stores
from tests.support.stores.proxy import FaultProxy, anything, uploads

# aiohttp would like the clients to hand it files; they hand it bytes.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")
QUICK = RetryPolicy(total_seconds=20, initial_wait=0.05, max_wait=0.2, request_seconds=3)


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
    assert len(fault.struck) <= 2  # one of the clients asks twice


@pytest.mark.process
def test_a_wrong_azure_key_is_refused_by_the_server(stores: Stores, tmp_path: Path) -> None:
    place = stores.place("az", tmp_path)
    wrong = place.options["connection_string"].replace(servers.ACCOUNT_KEY, "d3JvbmcgYWNjb3VudCBrZXk=")
    with pytest.raises(StorageError, match=r"cannot create az://.*credentials") as caught:
        Storage.open(place.url, {"connection_string": wrong}).probe()
    assert "d3JvbmcgYWNjb3VudCBrZXk" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.process
def test_the_error_of_a_client_without_credentials_says_where_to_give_them(
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
        ("az://container/x", {"connection_string": "AccountName=a;AccountKey=not base64, but s3cr3t;"}),
        ("s3://bucket/x", {"nonsense_option": 1}),
        ("gs://bucket/x", {"token": "/no/such/file-s3cr3t.json", "endpoint_url": "http://127.0.0.1:9"}),
    ],
)
def test_options_that_a_client_does_not_take_are_clear_errors(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # gcsfs asks Google what a token is worth
    with pytest.raises((ConfigError, StorageError), match=url.partition("://")[0]) as caught:
        Storage.open(url, options, retry=RetryPolicy(0.1, 0.01, 0.01, 3)).probe()
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


def test_secrets_are_not_shown_even_if_the_store_repeats_them(remote: Place, proxy: FaultProxy) -> None:
    signed = b"https://host/b/o?X-Amz-Signature=abcdef&sig=c2VjcmV0 Authorization: Bearer ya29.c2VjcmV0"
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
    with pytest.warns(RuntimeWarning, match="old files cannot be deleted: cannot delete .*permissions or credentials"):
        storage.probe()
    assert len(storage.files()) == 1


# --- faults that pass

DEFAULT_CELLS = {("reset", "download"), ("hang", "listing"), ("lose", "deletion")}
CELLS = [
    pytest.param(kind, of, marks=() if of == "upload" or (kind, of) in DEFAULT_CELLS else pytest.mark.chaos)
    for kind in ("status", "reset", "lose", "hang", "down")
    for of in ("upload", "download", "listing", "deletion")
]


@pytest.mark.in_gate(1)
@pytest.mark.slow
def test_a_lost_answer_is_not_taken_for_a_foreign_writer(remote: Place, proxy: FaultProxy) -> None:
    storage = remote.through(proxy).open(QUICK)
    fault = proxy.arm("lose")
    storage.create("x", [b"mine"])
    assert len(fault.struck) == 1
    assert storage.read("x") == b"mine"
    proxy.arm("lose")
    with pytest.raises(FileExistsError):
        storage.create("x", [b"other"])


@pytest.mark.in_gate(3)
@pytest.mark.slow
@pytest.mark.parametrize("request_number", [*(pytest.param(n, marks=pytest.mark.chaos) for n in range(3)), 3, 4])
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
    counted: list[int] = []
    with storage.reporting(counted.append):
        storage.create("x", [content])
    assert sum(counted) == len(content)  # what was sent twice counts once
    assert min(counted) >= 0
    proxy.heal()
    assert storage.read("x") == content
    sent = sum(r.method in {"PUT", "POST"} for r in proxy.requests)
    assert len(fault.struck) == (sent > request_number)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "of"), CELLS)
@pytest.mark.in_gate(2)
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


@pytest.mark.in_gate(1)
@pytest.mark.slow
def test_throttling_is_waited_out(remote: Place, proxy: FaultProxy) -> None:
    """One of the clients gives up at the first 429."""
    storage = remote.through(proxy).open(QUICK)
    fault = proxy.arm("status", status=429, times=3)
    storage.create("x", [b"content"])
    assert len(fault.struck) == 3


@pytest.mark.in_gate(1)
@pytest.mark.slow
def test_a_store_that_stays_away_is_an_error_within_the_time_given(remote: Place, proxy: FaultProxy) -> None:
    storage = remote.through(proxy).open(RetryPolicy(2, 0.1, 0.5, request_seconds=1))
    proxy.take_down()
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot create .*\(tried for \d+ s\); check the network"):
        storage.create("x", [b"content"])
    assert time.monotonic() - began < 6
    proxy.heal()
    storage.create("x", [b"content"])


@pytest.mark.in_gate(1)
@pytest.mark.slow
def test_a_slow_link_gets_the_time_that_its_size_needs(remote: Place, proxy: FaultProxy) -> None:
    proxy.bytes_per_second = 1_000_000
    storage = remote.through(proxy).open(RetryPolicy(3, 0.1, 0.1, request_seconds=0.8, min_bytes_per_second=250_000))
    content = os.urandom(1_500_000)
    storage.create("x", [content])
    assert storage.read("x", 0, len(content)) == content
    assert sum(r.is_upload for r in proxy.requests) <= 2  # not begun again and again


@pytest.mark.process
def test_a_name_that_is_taken_is_known_from_the_status_alone(stores: Stores, tmp_path: Path) -> None:
    """Some servers of S3 omit the field by which s3fs distinguishes this error from others."""
    place = stores.place("s3", tmp_path)
    assert place.server is not None
    place.open().create("x", [b"theirs"])
    proxy = FaultProxy(place.server.port)
    try:
        body = b"<Error><Code>PreconditionFailed</Code><Message>no</Message></Error>"
        proxy.arm("status", status=412, body=body, times=5)
        with pytest.raises(FileExistsError):
            place.through(proxy).open(QUICK).create("x", [b"mine"])
    finally:
        proxy.close()

"""What cannot change is an error at once and no reason to start again; the clients and their words are real."""

from __future__ import annotations

import datetime
import errno
import os
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from botocore.exceptions import ClientError
from fsspec.implementations.memory import MemoryFileSystem
from s3fs.errors import translate_boto_error

from keras_dist_callbacks.base.errors import ConfigError, StorageError
from keras_dist_callbacks.storage.redaction import Redactor
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.storage.store_errors import is_retryable, translate_error
from tests.support.quoting_store import quoting
from tests.support.stores import servers
from tests.support.stores.fixtures import Stores

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")
PATIENT = RetryPolicy(total_seconds=60, initial_wait=1, max_wait=5, request_seconds=20)
OPERATIONS: dict[str, Callable[[Storage], object]] = {
    "create": lambda storage: storage.create("x", [b"1"]),
    "probe": lambda storage: storage.probe(),
    "files": lambda storage: storage.files(),
    "read": lambda storage: storage.read("x"),
    "size": lambda storage: storage.size("x"),
    "delete": lambda storage: storage.delete("x"),
}


def refused(storage: Storage, operations: list[str], reason: str) -> None:
    """Each is an error at once, with the client's reason, and starting again is not said to help."""
    for name in operations:
        began = time.monotonic()
        with pytest.raises((ConfigError, StorageError), match=reason) as caught:
            OPERATIONS[name](storage)
        assert time.monotonic() - began < 10, name
        assert not getattr(caught.value, "unavailable", False), name


@pytest.mark.process
@pytest.mark.parametrize("bucket", ["UPPER_case!", "two words", "b" * 300, "bü"])
def test_a_bucket_name_that_boto_refuses(stores: Stores, tmp_path: Path, bucket: str) -> None:
    place = stores.place("s3", tmp_path).elsewhere(bucket)
    refused(place.open(PATIENT), list(OPERATIONS), "Invalid bucket name")


@pytest.mark.process
@pytest.mark.parametrize("container", ["UPPER_case!", "two words", "x", "-bad-"])
def test_a_container_name_that_azure_refuses(stores: Stores, tmp_path: Path, container: str) -> None:
    place = stores.place("az", tmp_path).elsewhere(container)
    refused(place.open(PATIENT), ["create", "probe", "files"], "specified resource name")


@pytest.mark.parametrize("message", ["Invalid bucket name: 'a b'", "The name is invalid"])
def test_a_bucket_name_that_google_refuses(message: str) -> None:
    with quoting(f'{{"error": {{"code": 400, "message": "{message}"}}}}', status=400) as port:
        options = {"token": "anon", "endpoint_url": f"http://127.0.0.1:{port}"}
        refused(Storage.open("gs://a b/x", options, retry=PATIENT), list(OPERATIONS), "(?i)invalid")


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_a_name_that_no_request_can_carry(kind: str) -> None:
    storage = Storage.open(f"{kind}://bucket/x", servers.OPTIONS[kind]("http://127.0.0.1:9"), retry=PATIENT)
    began = time.monotonic()
    with pytest.raises(StorageError, match="surrogates not allowed") as caught:
        storage.size("half a pair \udcff")
    assert time.monotonic() - began < 10
    assert not caught.value.unavailable


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/x", {"key": "k", "secret": "s", "endpoint_url": "no url"}),
        ("s3://bucket/x", {"key": "k", "secret": "s", "endpoint_url": "http://" + "a" * 70 + ".test:80"}),
        ("s3://bucket/x", {"key": "k", "secret": "s", "client_kwargs": {"region_name": "no region!"}}),
        ("s3://bucket/x", {"key": "k", "secret": "s", "endpoint_url": "http://u:p@127.0.0.1:9"}),
        ("s3://bucket/x", {"profile": "no-such-profile"}),
        ("s3://bucket/x", {"key": "k", "secret": "s", "config_kwargs": {"signature_version": "none of these"}}),
        ("gs://bucket/x", {"token": "anon", "endpoint_url": "http://" + "a" * 70 + ".test:80"}),
        ("az://bucket/x", {"connection_string": "no connection string"}),
    ],
)
def test_options_that_no_request_can_be_made_with(url: str, options: dict[str, Any]) -> None:
    began = time.monotonic()
    with pytest.raises((ConfigError, StorageError)) as caught:
        Storage.open(url, options, retry=PATIENT).create("x", [b"1"])
    assert time.monotonic() - began < 15
    assert not getattr(caught.value, "unavailable", False)


def _certificate(directory: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    signed = made.sign(key, hashes.SHA256())
    paths = directory / "certificate.pem", directory / "key.pem"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[int]:
    """A server with a certificate that no one has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_certificate(tmp_path))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the test is over
            connection.settimeout(10)
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


@pytest.mark.in_gate(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3", "az"])
def test_a_certificate_that_is_not_trusted(untrusted: int, kind: str) -> None:
    options = servers.OPTIONS[kind](f"https://127.0.0.1:{untrusted}")
    if kind == "az":
        options["connection_string"] = options["connection_string"].replace("Protocol=http;", "Protocol=https;")
    with pytest.raises(
        StorageError, match="certificate is not trusted: give the client its certificate authority"
    ) as caught:
        Storage.open(f"{kind}://bucket/x", options, retry=RetryPolicy(60, 1, 5, 30)).create("x", [b"1"])
    assert not caught.value.unavailable


LASTING = ["ENAMETOOLONG", "EINVAL", "ENOTDIR", "EISDIR", "ELOOP", "EROFS", "EACCES", "EPERM", "ENOSPC", "EDQUOT",
           "EFBIG", "ENOENT", "EEXIST", "ENOTSUP", "ENODEV", "ENXIO", "EXDEV", "ENOTEMPTY", "EILSEQ"]  # fmt: skip
PASSING = ["EIO", "EAGAIN", "EINTR", "ETIMEDOUT", "ECONNREFUSED", "ECONNRESET", "EPIPE", "EHOSTUNREACH", "ENETUNREACH",
           "ENETDOWN", "ESTALE", "EBUSY", "EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "EREMOTEIO"]  # fmt: skip


@pytest.mark.parametrize("name", LASTING + PASSING)
@pytest.mark.in_gate(12)
def test_errors_of_the_system_pass_or_last(name: str) -> None:
    code = getattr(errno, name)
    assert is_retryable(OSError(code, os.strerror(code))) is (name in PASSING)
    assert is_retryable(OSError("of no number"))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("EIO", "; check the disk, or what is mounted there"),
        ("EACCES", "; check the permissions for this path"),
        ("ENOENT", ""),
    ],
)
def test_of_a_local_directory_no_url_no_bucket_and_no_credentials_are_spoken(name: str, advice: str) -> None:
    code = getattr(errno, name)
    failure = translate_error(OSError(code, os.strerror(code)), "write", "/mnt/run", Redactor.of("/mnt/run", {}), None)
    assert str(failure).endswith(os.strerror(code) + advice)


def test_a_lasting_error_of_a_client_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(f"memory://{uuid.uuid4().hex}", retry=PATIENT)
    calls = []

    def fail(fs: MemoryFileSystem, path: str, **options: object) -> bytes:
        calls.append(path)
        raise OSError(errno.ENAMETOOLONG, "File name too long")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    refused(storage, ["read"], "File name too long")
    assert len(calls) == 1


def test_local_trouble_that_lasts_is_not_a_reason_to_start_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    for place, reason in (("file/d", "Not a directory"), ("loop/d", "symbolic links")):
        storage = Storage.open(tmp_path / place)
        refused(storage, ["create", "probe"], reason)


@pytest.mark.parametrize("status", [400, 403, 405, 411, 412, 414, 501])
def test_an_answer_that_will_be_the_same_again_is_final(status: int) -> None:
    with quoting("no", status=status) as port:
        options = servers.s3_options(f"http://127.0.0.1:{port}")
        refused(Storage.open("s3://bucket/x", options, retry=PATIENT), ["files"], "cannot list")


@pytest.mark.parametrize(
    ("code", "status", "passes"),
    [("PermanentRedirect", 301, False), ("NoSuchUpload", 404, False), ("InvalidBucketName", 400, False),
     ("SlowDown", 503, True), ("RequestTimeout", 400, True), ("OperationAborted", 409, True)],
)  # fmt: skip
def test_answers_of_s3_pass_or_last(code: str, status: int, passes: bool) -> None:
    answer = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert is_retryable(translate_boto_error(ClientError(answer, "PutObject"))) is passes


def test_what_boto_raises_without_an_answer_passes_only_if_it_is_about_the_network() -> None:
    names = ("HTTPClientError", "ConnectionError", "IncompleteReadError", "MetadataRetrievalError")
    network = tuple(getattr(botocore.exceptions, n) for n in (*names, "CredentialRetrievalError"))
    network += (botocore.exceptions.ChecksumError, botocore.exceptions.FlexibleChecksumError)
    kinds = [kind for kind in vars(botocore.exceptions).values() if isinstance(kind, type)]
    own = [kind for kind in kinds if issubclass(kind, botocore.exceptions.BotoCoreError)]
    assert len(own) > 50
    assert {kind for kind in own if is_retryable(kind.__new__(kind))} == {
        kind for kind in own if issubclass(kind, network)
    }

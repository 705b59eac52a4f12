"""No text that leaves shows a credential, however it was given and quoted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.storage.redaction import Redactor, redact, redact_text
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from tests.support.quoting_store import quoting
from tests.support.secrets_table import (
    ENCODED,
    REFUSED,
    SECRET,
    TAKEN,
    USER,
    Given,
    found_in,
    said_about,
    spellings,
    texts_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")
QUICK = RetryPolicy(total_seconds=0.5, initial_wait=0.05, max_wait=0.1, request_seconds=5)
OPERATIONS: dict[str, Callable[[Storage], object]] = {
    "create": lambda storage: storage.create("x", [b"1"]),
    "files": lambda storage: storage.files(),
    "size": lambda storage: storage.size("x"),
    "read": lambda storage: storage.read("missing"),
    "read_into": lambda storage: storage.read_into("missing", 0, memoryview(bytearray(4))),
    "delete": lambda storage: storage.delete("x"),
    "probe": lambda storage: storage.probe(),
    "outside": lambda storage: storage.read("../x"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_credentials_in_the_url_of_a_bucket_are_refused_without_showing_them(name: str) -> None:
    with pytest.raises(ConfigError, match="give them in storage_options, or in the environment") as caught:
        Storage.open(REFUSED[name])
    assert [found_in(text) for text in texts_of(caught.value) if found_in(text)] == []
    assert found_in(redact(REFUSED[name])) == []


@pytest.mark.parametrize(
    "url",
    [
        "abfs://container@account.dfs.core.windows.net/x",
        "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/name/x",
        "s3://bucket/a@b:c/x",
        "s3://bucket/x?versionId=abc",
        "gs://bucket/odd #name",
    ],
)
def test_what_only_looks_like_credentials_is_a_place(url: str) -> None:
    Redactor.of(url, {})
    assert redact(url) == url.partition("?")[0]
    assert redact_text(f"no {url.split(' ')[0]} here").startswith(f"no {url.split(' ')[0].partition('?')[0]}")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TAKEN))
@pytest.mark.in_gate(6)
def test_no_error_warning_or_repr_shows_a_secret(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # gcsfs asks Google what a token is worth
    with quoting(*said_about(name)) as port, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shown = list(_shown(TAKEN[name].at(port)))
    shown += [str(warning.message) for warning in caught]
    assert shown
    assert [text for text in shown if found_in(text)] == []


def _shown(given: Given) -> Iterator[str]:
    try:
        storage = Storage.open(given.url, given.options, retry=QUICK)
    except ConfigError as error:
        yield from texts_of(error)
        return
    yield from (repr(storage), repr(storage.child("c")), storage.display("x"), *_kept(storage))
    for operation in OPERATIONS.values():
        yield from _texts(storage, operation)


def _kept(storage: Storage) -> Iterator[str]:
    """What a debugger shows of it; `root` alone is the path with all that the client needs."""
    return (repr(value) for name, value in vars(storage).items() if name != "root")


def _texts(storage: Storage, operation: Callable[[Storage], object]) -> Iterator[str]:
    try:
        operation(storage)
    except Exception as error:  # noqa: BLE001 - of whatever type
        yield from texts_of(error)


@pytest.mark.parametrize("spelling", range(len(spellings())))
@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"ftp://{USER}:{ENCODED}@host/x", {}),
        (f"chained::ftp://{USER}:{SECRET}@host/x", {}),
        ("s3://bucket", {"key": USER, "secret": SECRET}),
        ("s3://bucket", {"client_kwargs": {"config": [{"unheard_of": f"{USER}:{SECRET}"}]}, "x": (SECRET, USER)}),
    ],
)
def test_a_known_secret_is_found_in_every_spelling(url: str, options: dict[str, Any], spelling: int) -> None:
    redactor = Redactor.of(url, options)
    text = f"denied ({spellings()[spelling]}) for {USER}"
    if spelling in (5, 6) and "client_kwargs" in options:
        pytest.skip("nobody knows that these two belong together")
    assert found_in(text)
    assert found_in(redactor.clean(text)) == []
    assert found_in(repr(redactor)) == []
    assert not redactor.is_clean(RuntimeError(text))


def test_errors_are_looked_through_with_all_that_hangs_on_them() -> None:
    redactor = Redactor.of("s3://b", {"secret": SECRET})
    noted, grouped = RuntimeError("x"), ExceptionGroup("x", [ValueError(SECRET)])
    noted.add_note(SECRET)
    silent = _SilentError(SECRET)
    for error in (noted, grouped, silent):
        assert not redactor.is_clean(error)
        assert redactor.caused(ConfigError("y"), error).__cause__ is None
    assert redactor.caused(ConfigError("y"), noted.__class__("plain")).__cause__ is not None


class _SilentError(Exception):
    """Its text shows nothing, its repr everything, as with an answer's headers."""

    def __str__(self) -> str:
        return "refused"


@pytest.mark.parametrize(
    "text",
    [
        f"GET https://{USER}:m4rkA@host/x?sig=s3cr3tB failed",
        "see gs://m4rkA@bucket/x, please",
        f"headers: {{'Authorization': 'Basic {spellings()[5]}'}}",
    ],
)
def test_credentials_in_urls_and_headers_are_hidden_in_texts_of_unknown_origin(text: str) -> None:
    assert found_in(text)
    assert found_in(redact_text(text)) == []


def test_texts_without_secrets_stay_as_they_are() -> None:
    redactor = Redactor.of(
        "s3://bucket/x", {"key": "test", "secret": "test", "anon": "false", "endpoint_url": "http://127.0.0.1:9000"}
    )
    for text in ("the latest one at http://127.0.0.1:9000/bucket/a@b", "anonymous contest", "/data/x@y:z", ""):
        assert redactor.clean(text) == text
    assert redactor.clean("access key test is unknown") == "access key *** is unknown"

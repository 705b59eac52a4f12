"""A store that does not answer is reported while it is still being tried; one that answers soon is not."""

from __future__ import annotations

from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.storage import store_errors
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage

IMPATIENT = RetryPolicy(total_seconds=1.5, initial_wait=0.05, max_wait=0.2, request_seconds=1)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """So many requests fail."""
    left: list[None] = []

    def ls(fs: MemoryFileSystem, *given: Any, **options: Any) -> list[Any]:
        if left:
            left.pop()
            raise ConnectionRefusedError("not there, said http://user:hunter22@host")
        return []

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    return left


def storage() -> Storage:
    return Storage.open("memory://user:hunter22@host/run", retry=IMPATIENT)


@pytest.mark.chaos
def test_what_fails_for_long_is_printed_once_before_the_error(
    failing: list[None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store_errors, "QUICK_SECONDS", 0.3)
    failing += [None] * 10**6
    away = storage()
    for _ in range(2):
        with pytest.raises(StorageError):
            away.files()
    captured = capsys.readouterr()
    assert captured.out == ""
    failed, silent = sorted(captured.err.splitlines())
    assert ": a request has failed for 0 s; retrying for about 1.5 s in all: " in failed
    assert "not there" in failed
    assert ": no answer for 0 s; retrying for about 1.5 s in all: " in silent
    assert "check the network, the URL of the store" in silent
    assert "hunter22" not in captured.err


def test_what_passes_within_seconds_is_not_mentioned(failing: list[None], capsys: pytest.CaptureFixture[str]) -> None:
    failing += [None] * 3
    assert storage().files() == []
    assert failing == []
    assert capsys.readouterr().err == ""


def test_what_fails_for_long_after_the_store_has_answered_once_is_printed_with_the_reason(
    failing: list[None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store_errors, "QUICK_SECONDS", 0.3)
    away = storage()
    assert away.files() == []
    failing += [None] * 10**6
    with pytest.raises(StorageError):
        away.files()
    (line,) = capsys.readouterr().err.splitlines()
    assert "a request has failed for 0 s; retrying for about 1.5 s in all: " in line
    assert "not there" in line
    assert "hunter22" not in line


@pytest.mark.slow
def test_a_wrong_endpoint_is_reported_while_it_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("s3fs")
    monkeypatch.setattr(store_errors, "QUICK_SECONDS", 0.5)
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(StorageError, match="check the network"):
        Storage.open("s3://bucket/run", options, retry=RetryPolicy(total_seconds=4, request_seconds=2)).probe()
    line = capsys.readouterr().err.splitlines()[0]
    assert "s3://bucket/run: no answer for" in line
    assert "its endpoint_url" in line

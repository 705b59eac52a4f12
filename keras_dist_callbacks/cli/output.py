"""Where results and errors go, and what never does: secrets and, for errors that are expected, tracebacks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cli.inventory import MOST_BYTES
from keras_dist_callbacks.errors import ConfigError, DamagedBackupError, FencedError, KdcError
from keras_dist_callbacks.storage.redaction import redact
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage

OK, PROBLEM, CANNOT = 0, 1, 2
_HIDDEN = "***"
_SHORTEST_SECRET = 4
_PIPE_WIDTH = 160
_PATIENCE = RetryPolicy(total_seconds=10.0, max_wait=5.0, request_seconds=20.0)
"""Somebody sits in front of the terminal: shorter than in a job that has hours."""


@dataclass(frozen=True)
class Target:
    """The directory that a command was given."""

    storage: Storage
    store: BackupStore
    secrets: tuple[str, ...] = ()

    def scrub(self, text: str) -> str:
        """A message of a client without what it may repeat of the credentials."""
        return _scrub(text, self.secrets)

    @property
    def url(self) -> str:
        """The directory, without credentials."""
        return self.storage.display()


@contextlib.contextmanager
def opened(url: str, options: str | None) -> Iterator[Target]:
    """Opens a directory; expected errors become one line and an exit code.

    Args:
        url: A path or URL.
        options: JSON for the file system.
    """
    secrets = _secrets_in_url(url)
    try:
        parsed = _parse_options(options)
        secrets += _strings(parsed)
        storage = _open(url, parsed)
        yield Target(storage, BackupStore(storage, max_manifest_bytes=MOST_BYTES), tuple(secrets))
    except BrokenPipeError:
        raise  # whoever read our output has left; not an error of the store
    except (KdcError, OSError) as error:
        print(f"kdc: {_scrub(str(error), secrets)}", file=sys.stderr)
        found_problem = isinstance(error, DamagedBackupError | FencedError)
        raise typer.Exit(PROBLEM if found_problem else CANNOT) from None


def fail(message: str, code: int) -> typer.Exit:
    """Prints one line to the standard error; to be raised."""
    print(f"kdc: {message}", file=sys.stderr)
    return typer.Exit(code)


def print_json(result: Any, **conclusions: bool) -> None:
    """A dataclass and what follows from it as JSON, and nothing else, to the standard output."""
    print(json.dumps({**conclusions, **dataclasses.asdict(result)}, indent=2))


def console() -> Console:
    """The standard output; names in what is printed are never taken for markup."""
    wanted = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else int(wanted) if wanted.isdigit() else _PIPE_WIDTH
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False, width=width)


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Any]:
    """A bar on the standard error, if that is a terminal; yields a function that is told of bytes."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


def _open(url: str, options: Mapping[str, Any]) -> Storage:
    try:
        return Storage.open(url, options, retry=_PATIENCE)
    except KdcError:
        raise
    except Exception as error:  # clients check their own options, each with exceptions of its own
        raise ConfigError(f"{redact(url)!r} cannot be opened with these options: {error}") from error


def _parse_options(options: str | None) -> dict[str, Any]:
    try:
        parsed = json.loads(options) if options else {}
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigError('the storage options are no JSON object such as {"anon": true}')
    return parsed


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if len(value) >= _SHORTEST_SECRET else []
    if isinstance(value, dict):
        value = list(value.values())
    return [text for item in value for text in _strings(item)] if isinstance(value, list) else []


def _secrets_in_url(url: str) -> list[str]:
    """What `redact` takes away, for messages of clients that repeat it."""
    if "://" not in url:
        return []
    parts = urllib.parse.urlsplit(url)
    found = [*parts.netloc.rpartition("@")[0].split(":"), parts.query]
    return [text for text in found if len(text) >= _SHORTEST_SECRET]


def _scrub(text: str, secrets: Sequence[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text

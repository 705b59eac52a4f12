"""What `kdc` writes: tables, JSON, errors."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from keras_dist_callbacks.backups.names import COMMITS, JOURNALS, OWNERS
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import ConfigError, DamagedBackupError, FencedError, KdcError
from keras_dist_callbacks.base.terminal import escape_controls, stderr_is_terminal, write_line
from keras_dist_callbacks.base.validation import convert
from keras_dist_callbacks.checkpoints.record import EXTENSIONS
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.storage import google_cloud
from keras_dist_callbacks.storage.redaction import Redactor
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage

_USUAL = ["backup", "backups", "checkpoints"]
"""Directories that are looked for in stores, which list files only."""
_MOST_DIRECTORIES = 1000


def require_no_file(storage: Storage) -> None:
    """Makes sure that a local path is not that of a file.

    Raises:
        ConfigError: It is.
    """
    path = Path(storage.root)
    if storage.is_local and path.is_file():
        advice = f"`kdc show {path}` shows a checkpoint" if path.name.endswith(EXTENSIONS) else "see `kdc --help`"
        raise ConfigError(f"{storage.display()} is a file: give its directory, {path.parent}; {advice}")


def _empty_directory_hint(storage: Storage, what: str) -> str:
    """One sentence about a directory that holds nothing to show."""
    url = storage.display()
    if storage.is_local and not Path(storage.root).exists():
        finished = "a finished run has deleted its backup, unless it has delete_checkpoint=False"
        return f"{url}: this directory does not exist; check the path ({finished})"
    if url.endswith(EXTENSIONS) and not storage.is_local:
        return f"{url} has the name of a checkpoint: `kdc show` shows one, and other commands take its directory"
    if storage.files(JOURNALS):
        return f"{url}: no {what} is here: a finished run has deleted its backup. `kdc watch` and `kdc report` show it"
    found = [name for name in _subdirectories(storage) if _holds_something(storage.child(name))]
    if found:
        places = ", ".join(storage.display(name) for name in found[:5])
        return f"{url}: no {what} is in this directory itself, but in a directory below it: use {places}"
    return f"{url}: no {what} is in this directory itself; give the backup_dir or the directory of checkpoints"


def _subdirectories(storage: Storage) -> list[str]:
    if not storage.is_local:
        return _USUAL
    entries = itertools.islice(Path(storage.root).iterdir(), _MOST_DIRECTORIES)
    return sorted(path.name for path in entries if path.is_dir() and not path.is_symlink())


def _holds_something(storage: Storage) -> bool:
    has_backups = storage.files(COMMITS) or storage.files(OWNERS)
    return bool(has_backups) or any(file.name.endswith(EXTENSIONS) for file in storage.files())


PROBLEM, CANNOT = 1, 2
_R = TypeVar("_R")
_PATIENCE = RetryPolicy(total_seconds=10.0, max_wait=5.0, request_seconds=20.0)
"""A user waits at the terminal: shorter than in a job that has hours."""


@dataclass(frozen=True)
class Target:
    """The directory that a command was given.

    Attributes:
        url: The directory, without credentials.
        storage: The directory.
        store: The backups in it.
        options: Of its file system.
        redactor: Knows the credentials in what the command was given.
        as_json: Print results as JSON, and nothing else.
    """

    url: str
    storage: Storage
    store: BackupStore
    options: Mapping[str, Any]
    redactor: Redactor
    as_json: bool

    def report(self, result: _R, show: Callable[[Page, _R], None], problem: bool = False, **conclusions: bool) -> None:
        """Prints a result without credentials, also where texts of a store contain some.

        Args:
            result: A dataclass.
            show: Prints it for people; what a terminal would interpret in the texts of a store reaches it as escapes.
            problem: Whether the command ends with an exit code that says that there is one.
            **conclusions: What follows from the result, for JSON.

        Raises:
            typer.Exit: There is a problem.
        """
        if self.as_json:
            plain = _changed(msgspec.to_builtins(result), self.redactor.clean)
            text = json.dumps({**conclusions, **plain}, indent=2)
            print(text.replace("\x7f", "\\u007f"))  # the one control character that JSON leaves as it is
        else:
            show(Page(), self.cleaned(result))
        if problem:
            raise typer.Exit(PROBLEM)

    def cleaned(self, result: _R) -> _R:
        """A result that can be shown: without credentials, and with escapes for what a terminal would interpret."""
        plain = _changed(msgspec.to_builtins(result), lambda text: escape_controls(self.redactor.clean(text)))
        found: _R = convert(plain, type(result))
        return found


@contextlib.contextmanager
def opened(url: str, options: str | None, as_json: bool) -> Iterator[Target]:
    """Opens a directory; expected errors become one line and an exit code, and others show no credentials either.

    Args:
        url: A path or URL.
        options: JSON for the file system.
        as_json: Print results as JSON.
    """
    redactor = Redactor.of(url, {})
    try:
        parsed = _parse_options(options)
        redactor = Redactor.of(url, parsed)
        with contextlib.ExitStack() as stack:
            handler = _CleanHandler(redactor)
            logging.getLogger().addHandler(handler)
            stack.callback(logging.getLogger().removeHandler, handler)
            google_cloud.require_credentials(url, parsed)
            storage = Storage.open(url, parsed, retry=_PATIENCE)
            require_no_file(storage)
            store = BackupStore(storage)
            yield Target(storage.display(), storage, store, parsed, redactor, as_json)
    except (BrokenPipeError, typer.Exit, typer.Abort):
        raise  # the reader of the output has ended, or the command has reported everything
    except (KdcError, OSError) as error:
        found_problem = isinstance(error, DamagedBackupError | FencedError)
        raise fail(redactor.clean(str(error)), PROBLEM if found_problem else CANNOT) from None
    except Exception as error:  # noqa: BLE001 - a mistake of this package, to be reported with all but the secrets
        for line in redactor.clean("".join(traceback.format_exception(error))).splitlines():
            write_line(line, to_stderr=True)
        raise typer.Exit(CANNOT) from None


def fail(message: str, code: int) -> typer.Exit:
    """Prints one line to the standard error; to be raised."""
    write_line(f"kdc: {message}", to_stderr=True)
    return typer.Exit(code)


def nothing_in(target: Target, what: str = "backup and no checkpoint") -> typer.Exit:
    """Prints why a command found nothing to show; to be raised.

    Args:
        target: The directory.
        what: What was looked for, to be read after "no".
    """
    return fail(target.redactor.clean(_empty_directory_hint(target.storage, what)), CANNOT)


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the standard error, if that is a terminal; yields a function that is given how much more was done."""
    with Progress(console=Console(stderr=True), transient=True, disable=not stderr_is_terminal()) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


class _CleanHandler(logging.StreamHandler[Any]):
    """Clients write warnings to a log, which goes to the standard error unless a handler takes it.

    What this package logs was printed already.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__(sys.stderr)
        self.setLevel(logging.WARNING)
        self.addFilter(lambda record: not getattr(record, "is_printed", False))
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(self._redactor.clean(f"{record.name}: {super().format(record)}"), keep="\n")


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a value that JSON can hold, with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_changed(key, change): _changed(content, change) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, change) for item in value]
    return value


def _parse_options(options: str | None) -> dict[str, Any]:
    """What `--storage-options` holds."""
    try:
        parsed = json.loads(options) if options else {}
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigError('the storage options are not a JSON object such as {"anon": true}')
    return parsed

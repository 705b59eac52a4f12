"""What `kdc` writes: tables, JSON, errors."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from keras_dist_callbacks.backups.names import COMMITS, OWNERS
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.checkpoints.record import EXTENSIONS
from keras_dist_callbacks.cli.inventory import MOST_BYTES
from keras_dist_callbacks.errors import ConfigError, DamagedBackupError, FencedError, KdcError
from keras_dist_callbacks.storage.redaction import Redactor, redact
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.terminal import escape_controls, stderr_is_terminal, write_line

_USUAL = ("backup", "backups", "checkpoints")
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


def empty_directory_hint(storage: Storage, what: str = "backup and no checkpoint") -> str:
    """One sentence about a directory that holds nothing to show.

    Args:
        storage: The directory.
        what: What was looked for, to be read after "no".
    """
    url = storage.display()
    if storage.is_local and not Path(storage.root).exists():
        return f"{url}: this directory does not exist; check the path"
    if url.endswith(EXTENSIONS) and not storage.is_local:
        return f"{url} has the name of a checkpoint: `kdc show` shows one, and other commands take its directory"
    found = [name for name in _subdirectories(storage) if _holds_something(storage.child(name))]
    if found:
        places = ", ".join(storage.display(name) for name in found[:5])
        return f"{url}: no {what} is in this directory itself, but in a directory below it: use {places}"
    return f"{url}: no {what} is in this directory itself; give the backup_dir or the directory of checkpoints"


def _subdirectories(storage: Storage) -> Iterator[str]:
    if not storage.is_local:
        yield from _USUAL
        return
    entries = itertools.islice(Path(storage.root).iterdir(), _MOST_DIRECTORIES)
    yield from sorted(path.name for path in entries if path.is_dir() and not path.is_symlink())


def _holds_something(storage: Storage) -> bool:
    if storage.files(COMMITS) or storage.files(OWNERS):
        return True
    return any(file.name.endswith(EXTENSIONS) for file in storage.files())


OK, PROBLEM, CANNOT = 0, 1, 2
_R = TypeVar("_R")
_PIPE_WIDTH = 160
_PATIENCE = RetryPolicy(total_seconds=10.0, max_wait=5.0, request_seconds=20.0)
"""Somebody sits in front of the terminal: shorter than in a job that has hours."""


@dataclass(frozen=True)
class Target:
    """The directory that a command was given."""

    storage: Storage
    store: BackupStore
    redactor: Redactor

    def shown(self, result: _R) -> _R:
        """A result as it may leave: the texts in it without credentials, whoever wrote them."""
        return cast(_R, _changed(result, self.redactor.clean))

    @property
    def url(self) -> str:
        """The directory, without credentials."""
        return self.storage.display()


@contextlib.contextmanager
def opened(url: str, options: str | None) -> Iterator[Target]:
    """Opens a directory; expected errors become one line and an exit code, and others show no credentials either.

    Args:
        url: A path or URL.
        options: JSON for the file system.
    """
    redactor = Redactor.of(url, {})
    try:
        parsed = parse_options(options)
        redactor = Redactor.of(url, parsed)
        with _clean_logs(redactor):
            storage = _open(url, parsed, redactor)
            require_no_file(storage)
            yield Target(storage, BackupStore(storage, max_manifest_bytes=MOST_BYTES), redactor)
    except (BrokenPipeError, typer.Exit, typer.Abort):
        raise  # whoever read our output has left, or the command has told what there is to tell
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
    """Prints why a command found nothing to show; to be raised."""
    return fail(target.redactor.clean(empty_directory_hint(target.storage, what)), CANNOT)


def print_json(result: Any, **conclusions: bool) -> None:
    """A dataclass and what follows from it as JSON, and nothing else, to the standard output."""
    text = json.dumps({**conclusions, **dataclasses.asdict(result)}, indent=2)
    print(text.replace("\x7f", "\\u007f"))  # the one control character that JSON leaves as it is


def escape_result(result: _R) -> _R:
    """A result for people: what a terminal would obey in the texts of a store is shown as escapes."""
    return cast(_R, _changed(result, escape_controls))


def console() -> Console:
    """The standard output; names in what is printed are never taken for markup."""
    wanted = os.environ.get("COLUMNS", "")
    stream = io.StringIO() if sys.stdout is None else sys.stdout  # None: the shell has closed it
    width = None if stream.isatty() else int(wanted) if wanted.isdigit() else _PIPE_WIDTH
    return Console(file=stream, markup=False, emoji=False, highlight=False, width=width)


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Any]:
    """A bar on the standard error, if that is a terminal; yields a function that is told of bytes."""
    what = TextColumn("{task.description}", markup=False)
    columns = (what, BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not stderr_is_terminal()) as bar:
        task = bar.add_task(escape_controls(description), total=total)
        yield lambda count: bar.advance(task, count)


class RedactingGroup(TyperGroup):
    """Commands whose usage errors, which repeat what was typed, show no credentials."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            message = getattr(error, "message", None)
            if isinstance(message, str):  # an error of click's, of which some versions of typer have their own copy
                vars(error)["message"] = escape_controls(Redactor.of(message, {}).clean(message))
            raise


class _CleanFormatter(logging.Formatter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(name)s: %(message)s")
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(self._redactor.clean(super().format(record)), keep="\n")


@contextlib.contextmanager
def _clean_logs(redactor: Redactor) -> Iterator[None]:
    """Clients write warnings to a log, which goes to the standard error unless somebody takes it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_CleanFormatter(redactor))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a result with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _changed(getattr(value, f.name), change) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, Mapping):
        return {_changed(key, change): _changed(content, change) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_changed(item, change) for item in value)
    return value


def _open(url: str, options: Mapping[str, Any], redactor: Redactor) -> Storage:
    try:
        return Storage.open(url, options, retry=_PATIENCE)
    except KdcError:
        raise
    except Exception as error:  # noqa: BLE001 - clients check their own options, each with exceptions of its own
        why = f"{redact(url)!r} cannot be opened with these options: {redactor.reason(error)}"
        failure = redactor.caused(ConfigError(why), error)
    raise failure


def parse_options(options: str | None) -> dict[str, Any]:
    """What `--storage-options` holds.

    Raises:
        ConfigError: It is no JSON object.
    """
    try:
        parsed = json.loads(options) if options else {}
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ConfigError('the storage options are no JSON object such as {"anon": true}')
    return parsed

"""`kdc rehearse`: checks what was asked for, and keeps or deletes what the runs have written."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from keras_dist_callbacks.cli.output import opened
from keras_dist_callbacks.cli.rehearsal.rehearse import EQUAL, Rehearsing
from keras_dist_callbacks.cli.rehearsal.report import show_rehearsal
from keras_dist_callbacks.cli.rehearsal.runs import Runner, Settings
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.rehearsal.plan import VARIABLE
from keras_dist_callbacks.rehearsal.scratch import OPTIONS_VARIABLE
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.redaction import reject_credentials
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.terminal import write_line

_OVERWRITES = (
    "the short runs overwrite what the script itself writes, such as results and Keras' own ModelCheckpoint; "
    "to keep it, give the script paths below {out}"
)


@dataclass(frozen=True)
class Limits:
    """The numbers of the options."""

    steps: int
    epochs: int
    kills: int
    workers: int
    timeout: float


def run(words: Sequence[str], limits: Limits, scratch: str | None, options: str | None, *, as_json: bool) -> None:
    """Rehearses a script, prints what was found, and ends with its exit code.

    Args:
        words: The script or command, and its arguments.
        limits: Of the runs.
        scratch: The directory or URL to write to; None: a temporary one.
        options: JSON for its file system.
        as_json: Print JSON.

    Raises:
        typer.Exit: With the exit code.
    """
    own = temporary.make_directory("rehearsal")
    place = _scratch_place(scratch) if scratch else str(own / "scratch")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, own, ignore_errors=True)
        stack.enter_context(_ending_with_its_processes())
        with opened(place, options if "://" in place else None, as_json) as target:
            reject_credentials(place)
            env = {OPTIONS_VARIABLE: json.dumps(target.options)} if target.options else {}
            settings = Settings(
                _command(words), limits.steps, limits.epochs, limits.workers, limits.timeout, place, own, env
            )
            _require_usable(settings, target.storage)
            if not any("{out}" in word for word in words):
                write_line(f"kdc: {_OVERWRITES}", to_stderr=True)

            def open_place(url: str) -> Storage:
                return Storage.open(url, target.options, retry=target.storage.retry)

            found = Rehearsing(Runner(settings), limits.kills, open_place, _say_progress)()
            kept = [str(temporary.keep(own))] if found.exit_code != EQUAL else []
            found = dataclasses.replace(found, kept=(*kept, *([place] if scratch else [])))
            target.report(found, show_rehearsal)
            if found.exit_code != EQUAL:
                raise typer.Exit(found.exit_code)


def _scratch_place(scratch: str) -> str:
    """A new directory in the one that the user gave."""
    name = f"rehearsal-{uuid.uuid4().hex[:12]}"
    return f"{scratch.rstrip('/')}/{name}" if "://" in scratch else str(Path(scratch, name).absolute())


@contextlib.contextmanager
def _ending_with_its_processes() -> Iterator[None]:
    """SIGTERM ends the command as an exception does, which ends the processes that it has started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _command(words: Sequence[str]) -> tuple[str, ...]:
    """A script is run by this Python, and anything else as it is.

    Raises:
        ConfigError: There is no such script or program.
    """
    program = words[0]
    if not program.endswith(".py"):
        if shutil.which(program) is None:
            raise ConfigError(f"{program!r}: no such program; a Python script has a name that ends with .py")
        return tuple(words)
    if not Path(program).is_file():
        raise ConfigError(f"{program}: no such script")
    return (sys.executable, *words)


def _require_usable(settings: Settings, storage: Storage) -> None:
    """Finds out before the first run what would end it.

    Raises:
        ConfigError: This process is itself part of a rehearsal or of a cluster.
        StorageError: The scratch directory cannot be used.
    """
    if os.environ.get(VARIABLE):
        raise ConfigError(f"{VARIABLE} is set: a rehearsal cannot be part of another one; unset it")
    if os.environ.get("TF_CONFIG"):
        raise ConfigError("TF_CONFIG is set: unset it; --workers starts a cluster on this machine")
    storage.probe()


def _say_progress(text: str) -> None:
    write_line(f"kdc: {text} ...", to_stderr=True)

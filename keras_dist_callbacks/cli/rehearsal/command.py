"""`kdc rehearse`: checks what was asked for, and keeps or deletes what the runs have written."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.terminal import write_line
from keras_dist_callbacks.cli.output import opened
from keras_dist_callbacks.cli.rehearsal.rehearse import CANNOT, EQUAL, Rehearsing
from keras_dist_callbacks.cli.rehearsal.report import show_rehearsal
from keras_dist_callbacks.cli.rehearsal.runs import Runner, Settings
from keras_dist_callbacks.launch import guard
from keras_dist_callbacks.rehearsal.plan import VARIABLE
from keras_dist_callbacks.rehearsal.scratch import OPTIONS_VARIABLE
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.redaction import reject_credentials
from keras_dist_callbacks.storage.storage import Storage

_OVERWRITES = (
    "the short runs overwrite what the script itself writes, such as results and Keras' own ModelCheckpoint; "
    "to keep it, give the script paths below {out}"
)


@dataclass(frozen=True)
class RehearsalOptions:
    """The numbers of the options."""

    steps: int
    epochs: int
    kills: int
    workers: int
    timeout: float


def run(
    words: Sequence[str], limits: RehearsalOptions, scratch: str | None, options: str | None, *, as_json: bool
) -> None:
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

    def work() -> int:
        _end_on_signals()
        try:
            _rehearse(words, limits, scratch, options, own, as_json=as_json)
        except typer.Exit as ended:
            return ended.exit_code
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else CANNOT
        finally:
            temporary.delete_own()
        return EQUAL

    # It ends in any way with all that it has started: a script that is left would train on.
    code = guard.run_guarded(work, functools.partial(shutil.rmtree, own, ignore_errors=True))
    if code != EQUAL:
        raise typer.Exit(code)


def _rehearse(
    words: Sequence[str],
    limits: RehearsalOptions,
    scratch: str | None,
    options: str | None,
    own: Path,
    *,
    as_json: bool,
) -> None:
    place = _scratch_place(scratch) if scratch else str(own / "scratch")
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


def _end_on_signals() -> None:
    """The signals that end the command end it as an exception does, so that runs and their plans are ended in order."""
    heard = [number for number in guard.heard() if number in guard.ENDING]

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for every in heard:
            signal.signal(every, signal.SIG_IGN)  # the end is not interrupted
        sys.exit(128 + number)

    for number in heard:
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.FORWARDED)


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

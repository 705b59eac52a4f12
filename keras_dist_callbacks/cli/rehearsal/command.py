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
from keras_dist_callbacks.cli.rehearsal import start
from keras_dist_callbacks.cli.rehearsal.rehearse import CANNOT, EQUAL, Rehearsing
from keras_dist_callbacks.cli.rehearsal.report import show_rehearsal
from keras_dist_callbacks.cli.rehearsal.runs import Runner, Settings
from keras_dist_callbacks.launch import guard
from keras_dist_callbacks.rehearsal.plan import VARIABLE
from keras_dist_callbacks.rehearsal.scratch import OPTIONS_VARIABLE
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.redaction import reject_credentials
from keras_dist_callbacks.storage.storage import Storage

_MAY_WRITE = (
    "the short runs may write to their copy of the working directory, to temporary files and to caches alone; if the "
    "script fails because of that, give it a path in the working directory, or add --in-place"
)
_IN_PLACE = (
    "the short runs work in the real directory: they overwrite what the script itself writes, such as results and "
    "Keras' own ModelCheckpoint"
)


@dataclass(frozen=True)
class RehearsalOptions:
    """What the command was asked for.

    Attributes:
        words: What `start.main` gets.
        steps: Batches per epoch and per validation, at most.
        epochs: Epochs per fit, at most.
        kills: How often the run is killed.
        workers: Processes of a local cluster.
        timeout: Seconds per process.
        scratch: The directory or URL to write to; None: a temporary one.
        storage_options: JSON for its file system.
        in_place: Work in the working directory, and not in copies of it.
        as_json: Print JSON.
    """

    words: Sequence[str]
    steps: int
    epochs: int
    kills: int
    workers: int
    timeout: float
    scratch: str | None
    storage_options: str | None
    in_place: bool
    as_json: bool


def run(options: RehearsalOptions) -> None:
    """Rehearses a script, prints what was found, and ends with its exit code.

    Raises:
        typer.Exit: With the exit code.
    """
    own = temporary.make_directory("rehearsal")

    def work() -> int:
        _end_on_signals()
        try:
            _rehearse(options, own)
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


def _rehearse(options: RehearsalOptions, own: Path) -> None:
    place = _scratch_place(options.scratch) if options.scratch else str(own / "scratch")
    with opened(place, options.storage_options if "://" in place else None, options.as_json) as target:
        reject_credentials(place)
        env = {OPTIONS_VARIABLE: json.dumps(target.options)} if target.options else {}
        source = None if options.in_place else Path.cwd()
        command = (*start.COMMAND, *(options.words if source is None else _in_copy(options.words, source)))
        settings = Settings(
            command, options.steps, options.epochs, options.workers, options.timeout, place, own, source, env
        )
        _require_usable(options.words, target.storage)
        if options.in_place:
            write_line(f"kdc: {_IN_PLACE}", to_stderr=True)

        def open_place(url: str) -> Storage:
            return Storage.open(url, target.options, retry=target.storage.retry)

        found = Rehearsing(Runner(settings), options.kills, open_place)()
        kept = [str(temporary.keep(own))] if found.exit_code != EQUAL else []
        if found.output and not options.in_place:
            found = dataclasses.replace(found, advice=(*found.advice, _MAY_WRITE))
        found = dataclasses.replace(found, kept=(*kept, *([place] if options.scratch else [])))
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


def _in_copy(words: Sequence[str], source: Path) -> list[str]:
    """The words, with a script that was given by its absolute path as a relative one: that in the copy."""
    script = Path(words[0])
    is_below = script.is_absolute() and script.is_relative_to(source)
    return [str(script.relative_to(source)) if is_below else words[0], *words[1:]]


def _require_usable(words: Sequence[str], storage: Storage) -> None:
    """Finds out before the first run what would end it.

    Raises:
        ConfigError: This process is itself part of a rehearsal or of a cluster, or there is no such program.
        StorageError: The scratch directory cannot be used.
    """
    if os.environ.get(VARIABLE):
        raise ConfigError(f"{VARIABLE} is set: a rehearsal cannot be part of another one; unset it")
    if os.environ.get("TF_CONFIG"):
        raise ConfigError("TF_CONFIG is set: unset it; --workers starts a cluster on this machine")
    if words[0] == "--" and shutil.which(words[1]) is None:
        raise ConfigError(f"{words[1]!r}: no such program")
    storage.probe()

"""Plans that are in force in this process, and what a rehearsed fit() records and saves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.process import PARTS
from keras_dist_callbacks.base.process_runs import ProcessRuns
from keras_dist_callbacks.cli.rehearsal.comparison import RunBackups
from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal import scratch as scratch_module
from keras_dist_callbacks.rehearsal.plan import VARIABLE, Kill, Plan, published
from keras_dist_callbacks.run import rehearsed_session
from keras_dist_callbacks.storage.storage import Storage


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the package may stop it, and no state of the process survives it."""


@contextlib.contextmanager
def rehearsing(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    *,
    steps: int = 4,
    epochs: int = 2,
    kill: Kill | None = None,
    scratch: str | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """A plan in force for the block, as in a process of its own; yields what it records, which is there afterwards.

    Args:
        monkeypatch: Of the test.
        directory: Of the run; a second block with the same one is its restart.
        steps: As in the plan.
        epochs: As in the plan.
        kill: As in the plan; it raises `Killed`.
        scratch: Where everything goes. Defaults to a directory of the run.
    """  # fmt: skip
    found: list[dict[str, Any]] = []
    attempt = directory / f"records-{len(list(directory.glob('records-*')))}"
    attempt.mkdir(parents=True)
    plan = Plan(scratch or str(directory / "scratch"), str(attempt), "", steps, epochs, 1, 0.0, kill)
    with monkeypatch.context() as patch, published(directory / "plan.json", plan):
        patch.setenv(VARIABLE, str(directory / "plan.json"))
        patch.setitem(PARTS, ProcessRuns, ProcessRuns())
        patch.setattr(rehearsed_session.os, "kill", _raise)
        patch.setattr(scratch_module, "watch_files", lambda plan: None)  # its hook could not be taken away again
        yield found
    for process in records.read(attempt):
        found += process


def _raise(*signal: int) -> None:
    raise Killed


def events(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [record for record in found if record["event"] == name]


def backups(found: list[dict[str, Any]], fit: int = 1) -> RunBackups:
    """Those of one fit, from where it has recorded that it saves."""
    (place,) = {record["place"] for record in events(found, "fit") if record["fit"] == fit}
    return RunBackups.read(BackupStore(Storage.open(place)))

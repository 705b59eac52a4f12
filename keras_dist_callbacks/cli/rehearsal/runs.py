"""The processes of a rehearsal: fresh interpreters, one run after the other, each killed where its plan says."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_dist_callbacks.base.errors import ClusterTimeoutError
from keras_dist_callbacks.cli.rehearsal.workplace import copied
from keras_dist_callbacks.launch.processes import WorkerProcess
from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.plan import VARIABLE, Kill, Plan, published
from keras_dist_callbacks.rehearsal.records import Record
from keras_dist_callbacks.testing.local_cluster import LocalCluster

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 10.0
_TAIL_LINES = 15


@dataclass(frozen=True)
class Settings:
    """What the command was asked for.

    Attributes:
        command: Program and arguments.
        steps: Batches per epoch and per validation, at most.
        epochs: Epochs per fit, at most.
        workers: Processes of a local cluster.
        timeout: Seconds per process.
        scratch: The directory or URL that everything is written to which the script would save.
        own: A local directory for everything else.
        source: The working directory, of which each run has a copy; None: all work in it.
        env: Added to the environment.
    """

    command: tuple[str, ...]
    steps: int
    epochs: int
    workers: int
    timeout: float
    scratch: str
    own: Path
    source: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedAttempt:
    """One process of a run, or one for each worker.

    Attributes:
        kill: Where the plan kills it; None: nowhere.
        codes: Exit codes, negative for a signal.
        began: When it was started, in seconds since 1970.
        seconds: How long it took.
        records: What each of its processes has recorded.
        log: Where its output is.
        timed_out: It took too long, and was ended.
    """

    kill: Kill | None
    codes: tuple[int, ...]
    began: float
    seconds: float
    records: list[list[Record]]
    log: Path
    timed_out: bool = False

    @property
    def was_killed(self) -> bool:
        """Whether the process came to the place where it was to be killed."""
        return any(record["event"] == "kill" for process in self.records for record in process)

    @property
    def has_failed(self) -> bool:
        """Whether it ended otherwise than it was to."""
        return self.timed_out or (not self.was_killed and any(self.codes))

    @property
    def chief(self) -> list[Record]:
        """The records of the process that saves; the first one, if none has come to its fit()."""
        leading = [process for process in self.records if any(r.get("worker") == 0 for r in process)]
        return (leading or self.records or [[]])[0]

    def events(self, name: str, fit: int | None = None) -> list[Record]:
        """The chief's records of one event, in their order."""
        return [r for r in self.chief if r["event"] == name and fit in (None, r.get("fit"))]

    def tail(self) -> list[str]:
        """The last lines of the output."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        return [line for line in lines if line.strip()][-_TAIL_LINES:]


@dataclass(frozen=True)
class RehearsedRun:
    """One training: one attempt, or several where it was killed.

    Attributes:
        name: For messages and directories.
        attempts: In their order.
    """

    name: str
    attempts: tuple[RecordedAttempt, ...]

    @property
    def seconds(self) -> float:
        """How long all of it took."""
        return sum(attempt.seconds for attempt in self.attempts)

    @property
    def failed(self) -> RecordedAttempt | None:
        """The attempt that has failed, if one has."""
        return next((attempt for attempt in self.attempts if attempt.has_failed), None)

    @property
    def places(self) -> list[str]:
        """The backup directories of its fits, in the order in which the last process came to them."""
        return [record["place"] for record in self.attempts[-1].events("fit")]


class Runner:
    """Starts runs.

    Args:
        settings: What the command was asked for.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._numbers, self._began = itertools.count(1), time.time()
        self._copy = settings.own / "work"  # the same path in each run, so that nothing differs because of it

    def run(self, name: str, kills: Sequence[Kill] = ()) -> RehearsedRun:
        """One run, restarted after each kill, to its end or until an attempt fails.

        Args:
            name: A word, which no other run has.
            kills: Where to kill its processes, one after the other.
        """
        settings = self._settings
        attempts: list[RecordedAttempt] = []
        with contextlib.ExitStack() as stack:
            if settings.source is not None:
                copy = copied(settings.source, self._copy, [settings.scratch, str(settings.own.parent)])
                stack.enter_context(contextlib.chdir(stack.enter_context(copy)))
            for kill in [*kills, None]:
                attempts.append(self._attempt(name, kill))
                if not attempts[-1].was_killed or attempts[-1].has_failed:
                    break
        return RehearsedRun(name, tuple(attempts))

    def _attempt(self, name: str, kill: Kill | None) -> RecordedAttempt:
        settings, number = self._settings, next(self._numbers)
        directory = settings.own / f"{name}-{number}"
        directory.mkdir()
        scratch = f"{settings.scratch.rstrip('/')}/{name}"
        copy = "" if settings.source is None else str(self._copy)
        plan = Plan(scratch, str(directory), copy, settings.steps, settings.epochs, 1, self._began, kill)
        path = settings.own / f"plan-{number}.json"
        env = {**settings.env, VARIABLE: str(path), "PWD": str(Path.cwd())}
        began, moment = time.time(), time.monotonic()
        with published(path, plan):
            if settings.workers > 1:
                codes, log = self._run_cluster(env, directory)
            else:
                codes, log = self._run_alone(env, directory)
        seconds = time.monotonic() - moment
        return RecordedAttempt(kill, codes or (), began, seconds, records.read(directory), log, timed_out=codes is None)

    def _run_alone(self, env: Mapping[str, str], directory: Path) -> tuple[tuple[int, ...] | None, Path]:
        """In the environment as it is: the bits of a result may depend on it."""
        log = directory / "output.log"
        process = WorkerProcess(self._settings.command, {**os.environ, "PYTHONUNBUFFERED": "1", **env}, log)
        deadline = time.monotonic() + self._settings.timeout
        try:
            while (code := process.poll()) is None:
                if time.monotonic() > deadline:
                    return None, log
                time.sleep(_POLL_SECONDS)
        finally:
            process.end()
        return (code,), log

    def _run_cluster(self, env: Mapping[str, str], directory: Path) -> tuple[tuple[int, ...] | None, Path]:
        with LocalCluster(
            self._settings.command, self._settings.workers, directory, env, grace=_GRACE_SECONDS
        ) as cluster:
            cluster.start()
            try:
                codes = cluster.wait(self._settings.timeout)
            except ClusterTimeoutError:
                return None, cluster.log_path(0)
            return tuple(codes), cluster.log_path(next((i for i, code in enumerate(codes) if code > 0), 0))

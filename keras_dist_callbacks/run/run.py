"""One run of a fit() or loop: where and when it is saved, what ends it early, and what it was resumed from."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal, Self

from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.snapshot import JSON, CommitId, Position, Snapshot
from keras_dist_callbacks.base.progress_file import progress_file
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.options import ShutdownOptions
from keras_dist_callbacks.run.announcing import agreed_restored, carried, require
from keras_dist_callbacks.run.engine.committer import EngineOptions
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.engine.schedule import SavePolicy, Schedule
from keras_dist_callbacks.run.shutdown.controller import ShutdownController
from keras_dist_callbacks.storage.storage import Storage


class Run:
    """What a fit() and a loop of the user's have in common while they run.

    Args:
        engine: Where snapshots go.
        shutdown: Watches for what ends the run early.
        schedule: When to save.
        strict: As in `BackupAndRestore`.

    Attributes:
        engine: As given.
        shutdown: As given.
        schedule: As given.
        reported: Tells a launcher where the run is.
        description: What must not change for a continuation to be exact, and the versions in use.
        earlier: What was found in the resume that this run began with, and in those before, for the next one.
        is_open: Whether a loop has begun, and not ended.
        restored: What it was resumed from, the same on every worker; None if nothing is restored.
    """

    def __init__(
        self,
        engine: BackupEngine,
        shutdown: ShutdownController,
        schedule: Schedule,
        *,
        strict: bool | Literal["certain"] = False,
    ) -> None:
        self.engine, self.shutdown, self.schedule = engine, shutdown, schedule
        self.reported = progress_file()
        self.description: dict[str, JSON] = {}
        self.earlier: list[Finding] = []
        self.restored: Restored | None = None
        self.is_open = False
        self._strict = strict

    @classmethod
    def open(
        cls,
        storage: Storage,
        cluster: Cluster,
        name: str,
        policy: SavePolicy,
        options: EngineOptions,
        shutdown: ShutdownOptions,
        tell: Callable[[str], None],
        *,
        is_alive: Callable[[], bool],
        strict: bool | Literal["certain"],
    ) -> Self:
        """Returns a run that has done nothing yet.

        Args:
            storage: The backup directory.
            cluster: Who takes part.
            name: What distinguishes this run's messages from another's; the same on every worker.
            policy: When to save.
            options: How backups are written.
            shutdown: What ends the run early, and what is done then.
            tell: Prints a line, on the chief.
            is_alive: Whether the run has not ended, to be asked in any thread.
            strict: As in `BackupAndRestore`.

        Raises:
            ConfigError: `peer_timeout` is over before the loss of a worker is known.
        """
        engine = BackupEngine.open(storage, cluster, name, options, is_alive)
        schedule = Schedule(policy, cluster, waits=options.write.when_busy == "wait")
        return cls(engine, ShutdownController(shutdown, engine, tell), schedule, strict=strict)

    @property
    def cluster(self) -> Cluster:
        """Who takes part."""
        return self.engine.cluster

    def resumed_from(
        self,
        commit: CommitId,
        position: Position,
        found: Sequence[Finding],
        *,
        is_skipped: bool = False,
        without: Collection[Finding] = (),
    ) -> Restored:
        """Returns what was restored, and whether it is exact, the same on every worker.

        Args:
            commit: Its id.
            position: Where it was taken.
            found: What this worker has found.
            is_skipped: Whether a later fit saved it.
            without: What each later resume finds again.

        Raises:
            BackupMismatchError: It is not as `strict` wants it.
        """
        self.restored = agreed_restored(
            *(self.engine.directory, commit.name, position, found, self.cluster),
            is_skipped=is_skipped,
            rolled_back_from=self.engine.rolled_back_from,
            not_finite=self.engine.not_finite,
        )
        require(self.restored, self._strict)
        self.engine.events.happened("resumed", position, self.restored.verdict)
        self.earlier += carried(self.restored, without=without)
        return self.restored

    def save_when_due(self, step: int, take: Callable[[], Snapshot]) -> None:
        """After a step, on every worker: saves if that is due.

        Args:
            step: Batches trained.
            take: Captures this worker's state.
        """
        engine, schedule = self.engine, self.schedule
        if schedule.due(step, engine.writing):
            engine.save(lambda: self._timed(take))
        elif schedule.every is not None and schedule.is_late:
            engine.note_late(step, schedule.every)

    def _timed(self, take: Callable[[], Snapshot]) -> Snapshot:
        began = time.perf_counter()
        snapshot = take()
        self.schedule.taken(time.perf_counter() - began)
        return snapshot

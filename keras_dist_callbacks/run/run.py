"""One run of a fit() or loop: where and when it is saved, what ends it early, and what it was resumed from."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from keras_dist_callbacks.backups import findings, verdict
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.snapshot import JSON, CommitId, Position, Snapshot
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupMismatchError
from keras_dist_callbacks.base.progress_file import progress_file
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.options import ShutdownOptions
from keras_dist_callbacks.run.engine.committer import EngineOptions
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.engine.schedule import SavePolicy, Schedule
from keras_dist_callbacks.run.engine.worker_exchange import WorkerStateExchange
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.run.shutdown.controller import ShutdownController
from keras_dist_callbacks.storage.storage import Storage


class Run:
    """What a fit() and a loop of the user's have in common while they run.

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

    Attributes:
        cluster: As given.
        engine: Where snapshots go.
        shutdown: Watches for what ends the run early.
        schedule: When to save.
        reported: Tells a launcher where the run is.
        description: What must not change for a continuation to be exact, and the versions in use.
        earlier: What was found in the resume that this run began with, and in those before, for the next one.
        is_open: Whether a loop has begun, and not ended.
        restored: What it was resumed from, the same on every worker; None if nothing is restored.

    Raises:
        ConfigError: `peer_timeout` is over before the loss of a worker is known.
    """

    def __init__(
        self,
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
    ) -> None:
        self.cluster = cluster
        exchange = WorkerStateExchange(cluster, name, options.write.max_local_state, cluster.patience)
        self.engine = BackupEngine(BackupStore(storage), cluster, exchange, shared_writer(), options, is_alive)
        self.schedule = Schedule(policy, cluster, waits=options.write.when_busy == "wait")
        self.shutdown = ShutdownController(shutdown, self.engine, tell)
        self.reported = progress_file()
        self.description: dict[str, JSON] = {}
        self.earlier: list[Finding] = []
        self.restored: Restored | None = None
        self.is_open = False
        self._strict = strict

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
        engine = self.engine
        seen = self.cluster.gather(findings.to_json(found), "exactness", kind=findings.SAVED_LIST)
        united = tuple(dict.fromkeys(itertools.chain.from_iterable(map(findings.from_json, seen))))
        self.restored = restored = Restored(
            path=engine.directory,
            epoch=position.epoch,
            step=position.step,
            findings=united,
            position=position,
            commit=commit.name,
            is_skipped=is_skipped,
            rolled_back_from=engine.rolled_back_from,
            not_finite=engine.not_finite,
        )
        judged = verdict.Verdict(united)
        refused = judged.lost or (judged.unknown if self._strict == "certain" else ())
        if refused and self._strict:
            certain = "would not be exact" if judged.lost else "is exact only if"
            why = "; ".join(findings.sentences(refused))
            raise BackupMismatchError(
                f"strict={self._strict!r}: the resume from {restored.commit} {certain}: {why}. The backup is "
                "unchanged; strict=False resumes from it"
            )
        engine.events.happened("resumed", position, restored.verdict)
        if not is_skipped:
            self.earlier += verdict.carried(position, united, without)
        return restored

    def save_when_due(self, step: int, take: Callable[[], Snapshot]) -> None:
        """After a step, on every worker: saves if that is due.

        Args:
            step: Batches trained.
            take: Captures this worker's state.
        """
        engine, schedule = self.engine, self.schedule
        if schedule.due(step, engine.writing):

            def timed() -> Snapshot:
                began = time.perf_counter()
                snapshot = take()
                schedule.taken(time.perf_counter() - began)
                return snapshot

            engine.save(timed)
        elif schedule.every is not None and schedule.is_late:
            engine.note_late(step, schedule.every)

"""Saves the snapshots of one run and chooses the backup of an earlier one; it does not know Keras."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
import queue
import time
from collections.abc import Callable, Mapping

from keras_dist_callbacks.backups import journal as journals
from keras_dist_callbacks.backups.finite import in_words
from keras_dist_callbacks.backups.journal import JOURNAL, Journal
from keras_dist_callbacks.backups.owner_records import OwnerRecord
from keras_dist_callbacks.backups.reading import Allocate
from keras_dist_callbacks.backups.select_backup import latest_intact, load
from keras_dist_callbacks.backups.snapshot import JSON, CommitId, Position, Snapshot, WorkerState
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupError, FencedError, PeerLostError, StorageError
from keras_dist_callbacks.base.progress_file import Phase, progress_file
from keras_dist_callbacks.base.stopwatch import stopwatch
from keras_dist_callbacks.base.terminal import is_shown, warn
from keras_dist_callbacks.cluster import messaging
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.options import ASSUMED_SAVE_SECONDS
from keras_dist_callbacks.run.engine.chronicle import Chronicle
from keras_dist_callbacks.run.engine.committer import Committer, EngineOptions
from keras_dist_callbacks.run.engine.events import Events
from keras_dist_callbacks.run.engine.skipped_saves import SkippedSaves
from keras_dist_callbacks.run.engine.worker_exchange import WorkerStateExchange
from keras_dist_callbacks.run.engine.writer import Owner, Writer

_LONG_SECONDS = 60.0

DIVERGENCE = "divergence"
"""The key of a divergence in what manifests and owner records say of a run; see `run/divergence.py`."""


class BackupEngine:
    """Saves snapshots of one run and finds the newest good one of earlier runs.

    Attributes:
        cluster: Who takes part.
        fenced: Why this run does not own the directory any more; None as long as that is not known.
        rolled_back_from: As in `Restored`, of what was picked; as `not_finite`.
        events: Tells what happens.
        chronicle: What this run and those before it have done with their time.
        divergence: What is known of a divergence in the past of this training, as a manifest holds it.
    """

    def __init__(
        self,
        store: BackupStore,
        cluster: Cluster,
        exchange: WorkerStateExchange,
        writer: Writer,
        options: EngineOptions,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self.cluster = cluster
        self._store = store
        self._worker_states = exchange
        self._writer, self._owner = writer, Owner(is_alive)
        self._options = options = dataclasses.replace(options, progress=is_shown(options.progress))
        self._committer = Committer(store, exchange, options, self._note)
        self._saves = self._failed = 0  # in all; in a row
        self._skipped = SkippedSaves()
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()  # what happened in the background
        self.fenced: FencedError | None = None
        self.chronicle = Chronicle()
        self.events = Events(options.on_event if cluster.is_chief else None, self._notes.put)
        self._newest_cost: dict[str, float] = {}
        self.rolled_back_from, self.not_finite = "", ()
        self.divergence: JSON = None

    @property
    def name(self) -> str:
        """What distinguishes this run's messages from another's; the same on every worker."""
        return self._worker_states.name

    @property
    def is_alive(self) -> bool:
        """Whether the run has not ended; to be asked in any thread."""
        return self._owner.is_alive()

    @property
    def shows_progress(self) -> bool:
        """Whether a bar, or a line, of this run is for the terminal."""
        return self._options.progress

    @property
    def directory(self) -> str:
        """The backup directory, as it may be shown."""
        return self._store.storage.display()

    @property
    def generation(self) -> int:
        """This run's number in the backup directory; 0 before `claim`."""
        return self._store.generation

    @property
    def committed(self) -> Position | None:
        """Where the newest backup that this worker knows of is."""
        return self._committer.newest

    @property
    def writing(self) -> bool:
        """Whether a backup is being written; other jobs of the writer do not count."""
        return not self._writer.is_done(self._owner)

    @property
    def seconds_to_save(self) -> float:
        """How long a last backup may take: as the longest one so far, after what is being written."""
        return (self._owner.longest or ASSUMED_SAVE_SECONDS) + self._writer.seconds_left

    @property
    def held_bytes(self) -> int:
        """What the snapshot of an unfinished backup holds; 0 without one, and before the first was begun."""
        return self._committer.state_bytes if self.writing else 0

    # --- at the start

    def prepare(self) -> None:
        """Makes sure that the chief can write into the directory; raises what `BackupStore.prepare` does."""
        self.cluster.on_chief(self._store.prepare, "opening the backup directory")

    def pick(self, allocate: Allocate | None = None) -> tuple[CommitId, WorkerState] | None:
        """The newest good commit, the same on every worker, verified; None if nothing was ever committed.

        Args:
            allocate: Where large tensors get their memory. Defaults to numpy.

        Raises:
            DamagedBackupError: No commit is intact.
            ClusterError: A worker cannot read what the chief chose.
        """
        workers, worker, timeout = self.cluster.num_workers, self.cluster.worker_index, self.cluster.patience

        # The chief alone looks for it, and moves damaged ones aside; the others read the one that it names.
        def choose() -> tuple[tuple[CommitId, WorkerState] | None, OwnerRecord | None]:
            found = latest_intact(self._store, workers, allocate, verbose=self._options.progress)
            rollback = self._store.rollback_to(None if found is None else found[0])
            known = [] if found is None else [found[1].info.get(JOURNAL)]
            self.chronicle.past = journals.continued(known, self._store.claims())
            return found, rollback

        chosen, rollback = self.cluster.on_chief(choose, "choosing a backup", timeout) or (None, None)
        name = self.cluster.broadcast(chosen[0].name if chosen else None, "chosen backup", timeout, kind=str | None)
        past = ("", None) if rollback is None else (rollback.rolled_back_from, rollback.info.get(DIVERGENCE))
        past = self.cluster.broadcast(past, "rollback", timeout, kind=tuple[str, JSON])
        self.rolled_back_from, self.divergence = past
        if name is None:
            self._report_backup(None)
            return None
        commit = CommitId.parse(name.rpartition("/")[2])
        if commit is None:
            raise BackupError(f"{name!r} is not a commit")
        state = self.cluster.agree(
            lambda: chosen[1] if chosen else load(self._store, self._store.manifest(commit), workers, worker, allocate),
            f"reading {self._store.storage.display(name)}",
            timeout,
        )
        self._committer.newest = state.position
        self.divergence = self.divergence or state.info.get(DIVERGENCE)
        self.not_finite = tuple(state.info.get("not_finite") or ())
        self._committer.begun = state.info.get("begun") or state.info.get("created")
        self._report_backup(state.position)
        return commit, state

    def claim(self, info: Mapping[str, JSON], by: str = "BackupAndRestore") -> None:
        """Takes the directory for this run; fences every earlier one.

        Args:
            info: What manifests say about this run: versions, strategy, replicas.
            by: What claims it, for the message that an earlier run gets.
        """
        past = {} if self.divergence is None else {DIVERGENCE: self.divergence}
        described = {**info, **past, "python": platform.python_version(), "workers": self.cluster.num_workers}
        self._committer.info = described
        taken = self.cluster.on_chief(lambda: self._store.claim(described, by), "claiming the backup directory")
        self._store.generation = int(self.cluster.broadcast(taken, "generation", kind=int))
        self.chronicle.begin(self._store.generation, self.committed.step if self.committed else 0)
        self.events.attempt = self._store.generation
        self.events.happened("attempt_started", self.committed)
        if self.rolled_back_from:
            self.events.happened("rolled_back", self.committed, f"from {self.rolled_back_from}")

    # --- while training

    def save(self, take: Callable[[], Snapshot]) -> None:
        """Takes a snapshot and hands it to the background thread, once the one before is written: one is held at most.

        That no thread can be started is a save that fails, as any other.

        Args:
            take: Captures this worker's.

        Raises:
            BackupError: Too many saves have failed in a row.
        """
        chief = self.cluster.is_chief
        note_failure = self._note_failure if chief else self._note_missing_part
        with progress_file().during(Phase.SAVE), stopwatch().during("unproductive_checkpoint_save_time"):
            self._saves += 1
            began = time.monotonic()
            try:
                if self._writer.busy and chief:
                    self._worker_states.mark_queued(self._saves)
                self._writer.wait_for(self._owner)
                snapshot = take()
                self._skipped.record_start(snapshot.position.step)
                job = functools.partial(self._deliver, self._saves, snapshot)
                if chief:
                    journal = self.chronicle.now(snapshot.position.step)
                    job = functools.partial(self._write, self._saves, snapshot, journal)
                try:
                    self._writer.submit(job, f"backup at {snapshot.position}", self._owner)
                except RuntimeError as error:
                    self._skip()
                    note_failure(snapshot.position, error)
                self._newest_cost["backup/blocking_ms"] = 1000 * (time.monotonic() - began)
            except BaseException:
                self._skip()
                raise

    def _skip(self) -> None:
        """Other workers do not wait for the chief in a save that it could not begin."""
        if self.cluster.is_chief:
            self._worker_states.skip(self._saves)

    def note_late(self, step: int, every: int) -> None:
        """On the chief: a backup that is due every so many steps waits for the one that is being written."""
        if self.cluster.is_chief and (note := self._skipped.record_late(step, every)) is not None:
            self._note(note)
            self.events.happened("backup_skipped", self.committed, note)

    def poll(self) -> None:
        """Lets what happened in the background surface: failures are raised, notes become warnings."""
        if self._writer.failed(self._owner):
            self._writer.raise_failure(self._owner)
        while not self._notes.empty():  # one thread takes them
            warn(self._notes.get())

    def take_notes(self) -> list[str]:
        """What happened in the background and was not reported yet."""
        notes = []
        while not self._notes.empty():
            notes.append(self._notes.get())
        return notes

    def take_failure(self) -> BaseException | None:
        """The error that a background write ended with, if it was not reported yet."""
        return self._writer.take_failure(self._owner)

    def abort(self) -> None:
        """The run ends, or the cluster is lost: nothing that needs other workers is waited for any more."""
        self._worker_states.abort.set()

    def drain(self, timeout: float | None = None) -> bool:
        """Waits until what was handed over is committed; whether it was, within `timeout` seconds."""
        return self._writer.wait(timeout)

    def leave(self, snapshot: Snapshot, timeout: float) -> Position | None:
        """Commits a last snapshot, and lets all workers go together; the chief leaves last.

        Args:
            snapshot: This worker's.
            timeout: Seconds for it.

        Returns:
            Where the newest backup is, on every worker; None without a backup.

        Raises:
            FencedError: A newer run has taken the directory.
            ClusterError: A worker is gone.
        """
        self.save(lambda: snapshot)
        self._writer.wait(timeout)
        self._writer.raise_failure(self._owner)
        newest = None if self.committed is None else dataclasses.asdict(self.committed)
        # Whether it was saved in time, the chief alone knows.
        newest = self.cluster.broadcast(newest, "stopping early", timeout, kind=Position | None)
        self.cluster.leave("stopping early", timeout)
        return None if newest is None else Position(**newest)

    def go_back(self, act: Callable[[BackupStore], tuple[str, bool, Position | None]]) -> tuple[str, bool]:
        """Lets the chief roll back, once nothing is written any more; this run is fenced by it.

        Args:
            act: Gets the directory; returns what has happened in words, whether a restart continues, and from where.

        Returns:
            The first two.
        """

        def roll_back() -> tuple[str, bool]:
            self._writer.wait()
            text, goes_on, position = act(BackupStore(self._store.storage))
            if goes_on:
                self._report_backup(position)
                self.events.happened("rolled_back", position, text)
            return text, goes_on

        found = self.cluster.on_chief(roll_back, "rolling back", self.cluster.patience)
        told: tuple[str, bool] = self.cluster.broadcast(
            found, "rolled back", self.cluster.patience, kind=tuple[str, bool]
        )
        self.cluster.leave("rolling back", self.cluster.patience)
        return told

    def finish(self, take: Callable[[], Snapshot], *, delete: bool) -> None:
        """Commits the end of training once every worker has arrived; the chief leaves last.

        Args:
            take: Captures this worker's final state.
            delete: Remove the backup afterwards.
        """

        def complete() -> None:
            self._writer.wait()
            self._writer.raise_failure(self._owner)
            if delete and self._failed:
                self._note(
                    f"the final backup failed, so the last intact one in {self.directory} is kept instead of being "
                    "deleted"
                )
            elif delete and self._committer.not_finite:
                self._note(
                    f"training has ended with values that are not finite: the backups in {self.directory} are kept, "
                    "and `kdc ls` shows which of them are finite"
                )
            elif delete:
                self._delete_everything()

        self.chronicle.end = "finished"
        self.cluster.barrier("end of training", self.cluster.patience)
        self.save(take)
        self.cluster.on_chief(complete, "the final backup", self.cluster.patience)
        self._writer.wait()
        with contextlib.suppress(PeerLostError):  # everything is done: a worker that is lost now may have ended
            self.cluster.leave("end of fit", self.cluster.patience)
        if (note := self._skipped.summary()) is not None:
            self._note(note)
        self.poll()

    def delete_finished(self, commit: str) -> None:
        """Deletes the backup of a run that ended, unless a newer run has committed since; to be called after `claim`.

        Args:
            commit: The name of the last backup.
        """

        def delete_if_newest() -> None:
            commits = self._store.commits()
            if commits and commits[-1].name == commit:
                self._delete_everything()

        self.cluster.on_chief(delete_if_newest, "deleting the backup", self.cluster.patience)
        self.poll()

    def _delete_everything(self) -> None:
        progress_file().forget_backup(self.directory)  # killed meanwhile, it may or may not be there
        try:
            self._store.delete_everything(self._journal)
        except StorageError as error:
            self._note(
                f"the backup could not be deleted: {error}. Delete {self.directory} before another training uses it, "
                "which would find this one there"
            )
        else:
            self._report_backup(None)

    @property
    def _journal(self) -> Journal:
        """What is known of this training up to its newest backup."""
        return self.chronicle.now(self.committed.step if self.committed else 0)

    @property
    def summary(self) -> str:
        """Where the time of this training has gone, in words; empty for a single short run, and but on the chief."""
        journal = self._journal
        is_long = journal.starts > 1 or sum(journal.totals().values()) >= _LONG_SECONDS
        return journals.summary(journal) if is_long and self.cluster.is_chief else ""

    def costs(self) -> dict[str, float]:
        """Returns what backups and restarts have cost so far, on the chief, by the names of ml-goodput-measurement.

        `goodput/goodput` is a share, `badput/...` are seconds, `backup/...` is of the newest backup.
        """
        totals = self._journal.totals()
        whole, training = sum(totals.values()), totals.pop("training", 0.0)
        found = {"goodput/goodput": training / whole if whole else 0.0}
        found |= {f"badput/{category}": seconds for category, seconds in totals.items()}
        return found | dict(self._newest_cost)

    # --- in the background

    def _write(self, save: int, snapshot: Snapshot, journal: Journal) -> None:
        began, was_finite = time.monotonic(), not self._committer.not_finite
        try:
            self._committer.commit(save, snapshot, journal)
        except FencedError as error:
            self.fenced = error
            if error.nothing_left:
                self._committer.newest = None
                self._report_backup(None)
            raise
        except (StorageError, RuntimeError, MemoryError) as error:  # errors of backups and clusters are RuntimeErrors
            self._note_failure(snapshot.position, error)
        else:
            self._failed = 0
            self._skipped.record_commit()
            self._report_backup(snapshot.position)
            size, seconds = self._committer.state_bytes, time.monotonic() - began
            self.events.happened("backup_saved", snapshot.position, seconds=seconds, size=size)
            self._newest_cost |= {"backup/seconds": seconds, "backup/bytes": size}
            if was_finite and self._committer.not_finite:
                self.events.happened("nonfinite", snapshot.position, in_words(self._committer.not_finite))

    def _deliver(self, save: int, snapshot: Snapshot) -> None:
        """On another worker than the chief, which writes."""
        try:
            self._worker_states.deliver(save, snapshot)
        except RuntimeError as error:  # those of this package are, and what Python raises if no thread can be started
            self._note_missing_part(snapshot.position, error)

    def _note_missing_part(self, position: Position, error: Exception) -> None:
        self._note(f"this worker's part of the backup at {position} was not saved: {error}")

    def _report_backup(self, newest: Position | None) -> None:
        """Tells a launcher of the newest backup; the chief does so, the only one that always knows."""
        if self.cluster.is_chief:
            progress_file().backup(self.directory, None if newest is None else newest.step)

    def _note_failure(self, position: Position, error: Exception) -> None:
        """A save has failed, in whichever thread; raises where it is one too many."""
        self._failed += 1
        self.events.happened("backup_failed", position, str(error))
        limit = self._options.write.max_failed_saves
        if limit is not None and self._failed >= limit:
            raise BackupError(f"{self._failed} backups failed in a row, the last one: {error}") from error
        is_over = self.chronicle.end or messaging.lost() or self._worker_states.abort.is_set()
        self._note(f"the backup at {position} failed{'' if is_over else ' and training continues'}: {error}")

    def _note(self, text: str) -> None:
        self._notes.put(text)
        self._committer.note_warning(text)

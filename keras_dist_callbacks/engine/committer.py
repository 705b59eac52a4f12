"""Commits one snapshot: encodes it, stages its blobs, writes the manifest."""

from __future__ import annotations

import collections
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from keras_dist_callbacks import validation
from keras_dist_callbacks.backups.codec import (
    Fingerprint,
    Packer,
    fingerprints,
    referenced_blobs,
    tensor_bytes,
)
from keras_dist_callbacks.backups.snapshot import (
    JSON,
    CommitId,
    Manifest,
    Position,
    Snapshot,
    TensorInfo,
    WorkerRecord,
)
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.engine.background import gc_paused
from keras_dist_callbacks.engine.worker_state import LocalState, WorkerStateExchange
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.options import WriteOptions
from keras_dist_callbacks.terminal import data_size, uploads


@dataclass(frozen=True)
class EngineOptions:
    """How the backups of one run are written.

    Attributes:
        double_checkpoint: A commit shares no blob with the one before it.
        progress: Print what happens, and show long uploads on a terminal.
        write: The options of writing.
        keep_all: No backup is deleted when newer ones are there.

    Raises:
        ConfigError: A value is wrong.
    """

    double_checkpoint: bool = False
    progress: bool = False
    write: WriteOptions = field(default_factory=WriteOptions)
    keep_all: bool = False

    def __post_init__(self) -> None:
        validation.check_fields(self, but={"write"})


KEPT_COMMITS = 2
_LARGE = 2**18  # bytes of a tensor
_SAVES = 20  # that are looked back at
_IN_A_ROW = 3


class Committer:
    """Commits the snapshots of one run, one after the other.

    Args:
        store: The backup directory.
        exchange: Gets what other workers have of their own.
        options: How backups are written.
        note: Is given what the user should know.

    Attributes:
        info: What manifests say about this run.
        newest: Where the newest backup that this worker knows of is.
        state_bytes: Of the tensors of the newest snapshot; 0 before the first.
    """

    def __init__(
        self, store: BackupStore, exchange: WorkerStateExchange, options: EngineOptions, note: Callable[[str], None]
    ) -> None:
        self._store, self._exchange, self._options, self._note = store, exchange, options, note
        self._sequence = 0
        self._known: list[Mapping[str, TensorInfo]] = []  # tensors of the newest commits of this run
        self._seen: collections.deque[frozenset[Fingerprint]] = collections.deque(maxlen=_SAVES)  # of large tensors
        self._new: Mapping[str, int] = {}  # in how many saves in a row a large tensor was another than in all before
        self._orphans_deleted = self._orphans_collected = False
        self._needs_cleanup = False
        self.info: Mapping[str, JSON] = {}
        self.newest: Position | None = None
        self.state_bytes = 0

    def commit(self, save: int, snapshot: Snapshot) -> None:
        """Writes and publishes a snapshot, then deletes what it makes needless.

        Args:
            save: Its number, the same on every worker.
            snapshot: The chief's.

        Raises:
            FencedError: A newer run has taken the directory.
            StorageError: The store failed.
            BackupError: Another worker did not deliver its part.
        """
        try:
            self.state_bytes = sum(held.array().nbytes for held in snapshot.tensors.values())
            with gc_paused():
                later = self._hashed_while_written()
                prints = fingerprints({name: held for name, held in snapshot.tensors.items() if name not in later})
        except BaseException:
            self._exchange.skip(save)
            raise
        others = self._exchange.collect(save, snapshot, prints)
        self._store.check_ownership()
        if not self._orphans_deleted:
            self._tidy(self._store.delete_orphans)
            self._orphans_deleted = True
        try:
            self._publish(snapshot, prints, others)
        except StorageError as error:
            if not error.full:
                raise
            self._tidy(lambda: self._store.delete_to_free_space(KEPT_COMMITS))
            try:
                self._publish(snapshot, prints, others)
            except StorageError as again:
                raise self._with_need(again) from error
        if not self._options.keep_all:
            self._tidy(self._prune)

    def _with_need(self, error: StorageError) -> StorageError:
        """The same error; if the disk is full, with the space that backups take."""
        if error.full:
            error.args = (
                f"{error} (a complete backup takes {data_size(self.state_bytes)}; two of them are kept while a "
                "third one is written)",
            )
        return error

    def _publish(self, snapshot: Snapshot, prints: Mapping[str, Fingerprint], others: Sequence[LocalState]) -> None:
        sizes = {path: blob.size for path, blob in self._store.staged.items()}
        copy = self._sequence + 1 if self._options.double_checkpoint else 0
        packer = Packer(self._shared_tensors(), self._store.blob_directory, sizes, copy)
        self._stage(packer, snapshot, prints)
        with gc_paused():
            records = [WorkerRecord(packer.locate(snapshot.tensors, prints), snapshot.state)]
            self._note_new({**prints, **packer.found})
        records += [self._record(packer, worker, local) for worker, local in enumerate(others, start=1)]
        with gc_paused():
            manifest = self._manifest(snapshot.position, records)
        known, self._known = self._known, []  # whether this one is there is not known until it was read back
        try:
            self._store.commit(manifest)
        except StorageError as error:
            if error.full:  # then it is known: it is not there
                self._known = known
            raise
        self.newest = snapshot.position
        unique = {f"{info.blob}:{info.key}": info for record in records for info in record.tensors.values()}
        self._known = [*known[-1:], unique]

    def _stage(self, packer: Packer, snapshot: Snapshot, prints: Mapping[str, Fingerprint]) -> None:
        blobs = packer.pack(snapshot.tensors, prints)
        if not self._options.progress:
            self._store.stage_all(blobs)
            return
        size = packer.bytes_to_write(snapshot.tensors, prints)
        with (
            uploads(f"backup at {snapshot.position}", size) as advance,
            self._store.storage.reporting(advance),
        ):
            self._store.stage_all(blobs)

    def _prune(self) -> None:
        self._store.prune(KEPT_COMMITS)
        if not self._orphans_collected:
            self._store.collect_orphans()
            self._orphans_collected = True

    def _tidy(self, delete: Callable[[], object]) -> None:
        """Deletes something; if the store refuses, the user is warned once."""
        try:
            delete()
        except StorageError as error:
            if not self._needs_cleanup:
                self._note(f"old backups and leftovers cannot be deleted: {error}")
            self._needs_cleanup = True
        while self._store.notes:
            self._note(self._store.notes.pop())

    def _record(self, packer: Packer, worker: int, local: LocalState) -> WorkerRecord:
        self._store.stage_all(packer.pack(local.tensors, local.prints, prefix=f"worker{worker}/"))
        return WorkerRecord(packer.locate(local.tensors, local.prints), local.state)

    def _manifest(self, position: Position, records: list[WorkerRecord]) -> Manifest:
        self._sequence += 1
        return Manifest(
            CommitId(self._store.generation, self._sequence, uuid.uuid4().hex[:12]),
            position,
            referenced_blobs(records, self._store.staged),
            tuple(records),
            {**self.info, "created": time.time()},
        )

    def _hashed_while_written(self) -> set[str]:
        """The tensors that are new in each save: to look for their content beforehand is in vain, and takes time.

        Other workers and stores must know before they write; through the page cache, hashing beforehand was measured to
        cost less. One that is not new after all is written in vain, once.
        """
        if not self._store.storage.writes_directly or self._exchange.cluster.num_workers > 1:
            return set()
        return {name for name, saves in self._new.items() if saves >= _IN_A_ROW}

    def _note_new(self, prints: Mapping[str, Fingerprint]) -> None:
        often, seen = collections.Counter(prints.values()), frozenset().union(*self._seen)
        large = {name: found for name, found in prints.items() if tensor_bytes(found) >= _LARGE}
        new = [name for name, found in large.items() if often[found] == 1 and found not in seen]
        self._new = {name: self._new.get(name, 0) + 1 for name in new}
        self._seen.append(frozenset(large.values()))

    def _shared_tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors that a commit may refer to instead of writing them again."""
        age = 2 if self._options.double_checkpoint else 1
        if len(self._known) < age:
            return {}
        present = self._store.staged
        return {name: info for name, info in self._known[-age].items() if info.blob in present}

"""Commits one snapshot: encodes it, stages its blobs, writes the manifest."""

from __future__ import annotations

import collections
import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from keras_dist_callbacks.backups import finite, retention
from keras_dist_callbacks.backups.journal import JOURNAL, Journal
from keras_dist_callbacks.backups.packing import Fingerprint, Packer, fingerprints, referenced_blobs, tensor_bytes
from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.backups.snapshot import (
    JSON,
    LONGEST_WARNING,
    CommitId,
    Manifest,
    Position,
    Snapshot,
    TensorInfo,
    Warned,
    WorkerRecord,
)
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError, StorageError
from keras_dist_callbacks.base.terminal import data_size, uploads
from keras_dist_callbacks.options import WriteOptions
from keras_dist_callbacks.run.engine.background import gc_paused
from keras_dist_callbacks.run.engine.events import OnEvent
from keras_dist_callbacks.run.engine.worker_exchange import LocalState, WorkerStateExchange


@dataclass(frozen=True)
class EngineOptions:
    """How the backups of one run are written.

    Attributes:
        double_checkpoint: A commit shares no blob with the one before it.
        progress: Print what happens, and show long uploads on a terminal.
        write: The options of writing.
        rules: Which backups stay when newer ones are there.
        on_event: Is given what happens; None: nobody asks.

    Raises:
        ConfigError: A value is wrong.
    """

    double_checkpoint: bool = False
    progress: bool = False
    write: WriteOptions = field(default_factory=WriteOptions)
    rules: Rules = field(default_factory=lambda: Rules(max_to_keep=KEPT_COMMITS))
    on_event: OnEvent | None = None

    def __post_init__(self) -> None:
        validation.check_fields(self, but={"write", "rules", "on_event"})
        if self.double_checkpoint and self.rules.max_to_keep == 1:
            raise ConfigError(
                "max_to_keep=1: double_checkpoint=True is about two successive backups; give max_to_keep 2 or more"
            )


KEPT_COMMITS = 2
_LARGE = 2**18  # bytes of a tensor
_SAVES = 20  # that are looked back at
_IN_A_ROW = 3
_WARNINGS = 3


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
        begun: When the first backup of this training was committed; None before it was.
        not_finite: The tensors of the newest commit that hold NaN or infinity.
    """

    def __init__(
        self, store: BackupStore, exchange: WorkerStateExchange, options: EngineOptions, note: Callable[[str], None]
    ) -> None:
        self._store, self._exchange, self._options, self._note = store, exchange, options, note
        self._sequence = 0
        self._known: list[Mapping[str, TensorInfo]] = []  # tensors of the newest commits of this run
        self._novelty = _Novelty()
        self._orphans_deleted = self._orphans_collected = self._has_warned = self._has_named = False
        self.info: Mapping[str, JSON] = {}
        self._journal: Mapping[str, JSON] = {}
        self._commit_began = 0.0
        self._warnings: collections.deque[Warned] = collections.deque(maxlen=_WARNINGS)
        self.newest: Position | None = None
        self.state_bytes = 0
        self.begun: float | None = None
        self.not_finite: tuple[str, ...] = ()

    def commit(self, save: int, snapshot: Snapshot, journal: Journal | None = None) -> None:
        """Writes and publishes a snapshot, then deletes what it makes needless.

        Args:
            save: Its number, the same on every worker.
            snapshot: The chief's.
            journal: What this run and those before it have done with their time.

        Raises:
            FencedError: A newer run has taken the directory.
            StorageError: The store failed.
            BackupError: Another worker did not deliver its part.
        """
        store, self._commit_began = self._store, time.monotonic()
        try:
            self.state_bytes = sum(held.array().nbytes for held in snapshot.tensors.values())
            # What is new in each save is hashed while it is written: to look for its content beforehand is in vain, and
            # takes time. Other workers and stores must know it before they write; through the page cache, hashing
            # beforehand was measured to cost less. What is not new after all is written in vain, once.
            later: set[str] = set()
            if store.storage.writes_directly and self._exchange.cluster.num_workers == 1:
                later = self._novelty.always_new
            with gc_paused():
                prints = fingerprints({name: held for name, held in snapshot.tensors.items() if name not in later})
        except BaseException:
            self._exchange.skip(save)  # the other workers wait for the chief to ask them
            raise
        others = self._exchange.collect(save, snapshot, prints)
        store.check_ownership()
        if not self._orphans_deleted:  # before anything is written, which may need their space
            self._tidy(store.delete_orphans)
            self._orphans_deleted = True
        self._journal = {} if journal is None else {JOURNAL: msgspec.to_builtins(journal)}
        try:
            self._publish(snapshot, prints, others)
        except StorageError as error:
            if not error.full:
                raise
            self._tidy(lambda: store.delete_to_free_space(self._options.rules))
            try:
                self._publish(snapshot, prints, others)
            except StorageError as again:
                if again.full:
                    again.args = (f"{again} ({self._what_is_kept()})",)
                raise again from error
        if not self._options.rules.keep_all:
            self._tidy(self._prune)

    def note_warning(self, text: str) -> None:
        """The next manifests say what the user was warned of, as the last of a few. May be called from any thread."""
        self._warnings.append(Warned(time.time(), text[:LONGEST_WARNING]))

    def _what_is_kept(self) -> str:
        rules, size = self._options.rules, data_size(self.state_bytes)
        text = f"a complete backup takes {size}, and there are {rules.max_to_keep} of them while another one is written"
        if rules.keep_every is None:
            return text
        prune = f"`kdc prune {self._store.storage.display()} --keep {rules.max_to_keep}`"
        return f"{text}; a run never deletes those that keep_every keeps: {prune} does when it has ended"

    def _publish(self, snapshot: Snapshot, prints: Mapping[str, Fingerprint], others: Sequence[LocalState]) -> None:
        store, options = self._store, self._options
        sizes = {path: blob.size for path, blob in store.staged.items()}
        copy = self._sequence + 1 if options.double_checkpoint else 0
        packer = Packer(self._shared_tensors(), store.blob_directory, sizes, copy)
        size = packer.bytes_to_write(snapshot.tensors, prints) if options.progress else 0
        with (
            uploads(f"backup at {snapshot.position}", size, shown=options.progress) as advance,
            store.storage.reporting(advance),
        ):
            store.stage_all(packer.pack(snapshot.tensors, prints))
        with gc_paused():
            records = [WorkerRecord(packer.locate(snapshot.tensors, prints), snapshot.state)]
            self._novelty.note({**prints, **packer.found})
        for worker, local in enumerate(others, start=1):
            store.stage_all(packer.pack(local.tensors, local.prints, prefix=f"worker{worker}/"))
            records.append(WorkerRecord(packer.locate(local.tensors, local.prints), local.state))
        self._sequence += 1
        with gc_paused():
            manifest = Manifest(
                CommitId(store.generation, self._sequence, uuid.uuid4().hex[:12]),
                snapshot.position,
                referenced_blobs(records, store.staged),
                tuple(records),
                {**self._described(), **self._not_finite(snapshot, others)},
            )
        # A commit that fails may be there all the same: until one was read back, it is not known which commit is the
        # one before, so that the next ones refer to no tensor of any.
        known, self._known = self._known, []
        try:
            store.commit(manifest)
        except StorageError as error:
            if error.full:  # then it is known: it is not there
                self._known = known
            raise
        self.newest = snapshot.position
        self.not_finite = tuple(manifest.info.get("not_finite") or ())
        if self.not_finite and not self._has_named:
            self._has_named = True
            self._note(self._in_words(manifest))
        unique = {f"{info.blob}:{info.key}": info for record in records for info in record.tensors.values()}
        self._known = [*known[-1:], unique]

    def _described(self) -> Mapping[str, JSON]:
        """What the manifest says of this run; `begun` is when the first backup of its training was committed."""
        now = time.time()
        self.begun = now if self.begun is None else self.begun
        warnings = [dataclasses.asdict(one) for one in list(self._warnings)]  # another thread may add one
        return {
            **self.info,
            **self._journal,
            **({"warnings": warnings} if warnings else {}),
            "created": now,
            "begun": self.begun,
            "seconds": round(time.monotonic() - self._commit_began, 3),
            "kept": retention.to_json(self._options.rules),
        }

    def _not_finite(self, snapshot: Snapshot, others: Sequence[LocalState]) -> Mapping[str, JSON]:
        """What the manifest says of NaN and infinity: a look at each tensor; where that finds one, at all values."""
        arrays = finite.trained(snapshot.tensors, snapshot.state)
        for worker, local in enumerate(others, start=1):
            own = finite.trained(local.tensors, {**snapshot.state, **local.state})
            arrays |= {f"{name} (worker {worker})": array for name, array in own.items()}
        loss = (snapshot.state.get("progress/logs") or {}).get("loss")
        is_loss_finite = not isinstance(loss, dict)  # which JSON has no number for is tagged, see `own_values`
        is_end = snapshot.position.kind == "end"  # nothing looks at it again before it may be used
        if is_loss_finite and not finite.not_finite(arrays, whole=is_end):
            return {}
        names = finite.not_finite(arrays, whole=True)
        return {"not_finite": [*([] if is_loss_finite else ["loss"]), *names]}

    def _in_words(self, manifest: Manifest) -> str:
        what, directory = finite.in_words(manifest.info["not_finite"]), self._store.storage.display()
        found, way = self._store.newest_finite(), "no backup is finite"
        if found is not None:
            label, position = found[0].label, found[1]
            way = (
                f"the newest finite one is {label}, at {position}: it is kept, and "
                f"`kdc rollback {directory} --to {label}` lets training continue there"
            )
        return f"the backup at {manifest.position} holds values that are not finite ({what}); {way}"

    def _shared_tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors that a commit may refer to instead of writing them again."""
        age = 2 if self._options.double_checkpoint else 1  # two successive commits share no blob, every second one may
        if len(self._known) < age:
            return {}
        present = self._store.staged
        return {name: info for name, info in self._known[-age].items() if info.blob in present}

    def _prune(self) -> None:
        self._store.prune(self._options.rules)
        if not self._orphans_collected:
            self._store.collect_orphans()
            self._orphans_collected = True

    def _tidy(self, delete: Callable[[], object]) -> None:
        """Deletes something; if the store refuses, the user is warned once."""
        try:
            delete()
        except StorageError as error:
            if not self._has_warned:
                self._note(f"old backups and leftovers cannot be deleted: {error}")
            self._has_warned = True
        while self._store.notes:
            self._note(self._store.notes.pop())


class _Novelty:
    """Which large tensors have another content in each save than in all of the last ones, as weights that train do."""

    def __init__(self) -> None:
        self._seen: collections.deque[frozenset[Fingerprint]] = collections.deque(maxlen=_SAVES)
        self._in_a_row: Mapping[str, int] = {}  # in how many saves each was new

    @property
    def always_new(self) -> set[str]:
        """The names of those that were new in each of the last saves."""
        return {name for name, saves in self._in_a_row.items() if saves >= _IN_A_ROW}

    def note(self, prints: Mapping[str, Fingerprint]) -> None:
        """A save has these tensors."""
        often, seen = collections.Counter(prints.values()), frozenset().union(*self._seen)
        large = {name: found for name, found in prints.items() if tensor_bytes(found) >= _LARGE}
        new = [name for name, found in large.items() if often[found] == 1 and found not in seen]
        self._in_a_row = {name: self._in_a_row.get(name, 0) + 1 for name in new}
        self._seen.append(frozenset(large.values()))

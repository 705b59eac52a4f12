"""Commits in a directory of any store: claim, stage, commit, list, read, prune.

    owners/<generation>.json                       who may write; the highest number rules
    owners/<generation>.committed                  that owner has committed once
    blobs/<generation>/<content-hash>.safetensors  tensors
    commits/<generation>-<sequence>-<token>.json   manifests: a commit exists when its manifest does
    journals/<number>.json                         what stays of a finished training: what it did with its time
    rolled-back/...                                those that a rollback has taken back, until the next first commit
    damaged/...                                    manifests that failed verification, kept for inspection

No final name is ever overwritten, and there is no pointer to the latest that could be torn.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from keras_dist_callbacks.backups import finite, names, owner_records, record_io
from keras_dist_callbacks.backups.journal import RECORD, Journal
from keras_dist_callbacks.backups.manifest import check_topics, decode_manifest, encode_manifest
from keras_dist_callbacks.backups.names import (
    BLOBS,
    COMMITS,
    DAMAGED,
    JOURNALS,
    OWNERS,
    ROLLED_BACK,
    WITNESS,
    owner_name,
)
from keras_dist_callbacks.backups.owner_records import OwnerRecord
from keras_dist_callbacks.backups.packing import Blob
from keras_dist_callbacks.backups.reading import Allocate, check_sizes, read_tensors, verify_tensors
from keras_dist_callbacks.backups.record_io import MAX_MANIFEST_BYTES, read_verified
from keras_dist_callbacks.backups.retention import ListedBackup, Rules, kept
from keras_dist_callbacks.backups.snapshot import (
    BlobInfo,
    CommitId,
    Manifest,
    Position,
    SharedArray,
    TensorInfo,
    WorkerState,
)
from keras_dist_callbacks.backups.staging import Staging
from keras_dist_callbacks.base.errors import DamagedBackupError, StorageError
from keras_dist_callbacks.storage.local_files import final_name
from keras_dist_callbacks.storage.storage import Storage


class BackupStore:
    """The backup directory as its readers and its owner see it."""

    def __init__(self, storage: Storage) -> None:
        """Opens a backup directory; nothing is contacted yet.

        Args:
            storage: The directory.
        """
        self.storage = storage
        self._staging = Staging(storage)
        self.generation = 0  # 0: not an owner
        self._claim = b""
        self._made_directory = False
        self._manifests: dict[CommitId, Manifest] = {}  # of a reader
        self._known: dict[CommitId, _Known] = {}  # of an owner: many may be kept, and a manifest may be large
        self._owners_read: dict[int, OwnerRecord] = {}
        self._own_rollbacks: list[tuple[int, OwnerRecord]] | None = None  # of an owner: newer ones fence it
        self._newest: Manifest | None = None  # of this owner
        self.notes: list[str] = []

    # --- ownership

    def prepare(self) -> None:
        """Makes sure that the directory can be written to, and makes a local one; raises what `Storage.probe` does."""
        self._made_directory = self.storage.probe()

    def claim(self, info: Mapping[str, Any], by: str = "BackupAndRestore", **of_rollback: Any) -> int:
        """Becomes the owner: takes the next generation, which fences every earlier owner.

        Args:
            info: The run, as in its manifests.
            by: What claims the directory.
            **of_rollback: See `OwnerRecord`.

        Returns:
            The generation, 1 or more.

        Raises:
            BackupError: No number is free: the store's listings are not consistent.
        """
        if self.storage.is_local and not self._made_directory:  # a run that this one continues may have made it
            earlier = (owner_records.read_owner(self.storage, generation) for generation in self._owners())
            self._made_directory = any(owner is not None and owner.made_directory for owner in earlier)
        content = owner_records.describe_owner(info, by, made_directory=self._made_directory, **of_rollback)
        self.generation = owner_records.take_next(self.storage, self.newest_generation(), content)
        self._claim = content
        return self.generation

    def newest_generation(self) -> int:
        """Returns the number of the newest owner record or commit, 0 without any."""
        return max([0, *self._owners(), *(commit.generation for commit in self._listed(COMMITS))])

    def check_ownership(self) -> None:
        """Makes sure that the directory is there and that no newer run has taken it.

        Raises:
            FencedError: That is not so.
        """
        owner_records.check(self.storage, self.newest_generation(), self.generation, self._claim)

    # --- writing

    def stage_all(self, blobs: Iterable[Blob]) -> None:
        """Writes blobs of this owner's generation, unless it wrote the same content before."""
        self._staging.stage_all(blobs)

    @property
    def staged(self) -> Mapping[str, BlobInfo]:
        """Every blob that this owner wrote and has not deleted."""
        return self._staging.written

    @property
    def blob_directory(self) -> str:
        """Where this owner's blobs are."""
        return names.blob_directory(self.generation)

    def commit(self, manifest: Manifest) -> None:
        """Publishes a manifest and reads it back: from here on the backup exists.

        Raises:
            FencedError: A newer run owns the directory.
            StorageError: What was written reads back differently.
        """
        self.check_ownership()
        try:
            check_sizes(self.storage, manifest.blobs)
        except DamagedBackupError as error:
            self._staging.forget()  # the next save writes everything again
            raise StorageError(f"cannot find what was just written: {error}") from error
        name, content = manifest.id.name, encode_manifest(manifest)
        # Nothing is written that no restart would take; of later commits only what may have changed in kind is checked.
        where = f"the manifest that was to be written ({manifest.position})"
        if self._newest is None:
            decode_manifest(content, where)
        else:
            check_topics(manifest, where)
        self.storage.create(name, [content])
        found = None
        with contextlib.suppress(FileNotFoundError):
            found = self.storage.read(name)
        if found != content:
            raise StorageError(f"{self.storage.display(name)} reads back differently from what was written")
        self._known[manifest.id] = _Known.of(manifest)
        if self._newest is None:  # from here on a lost manifest is damage, not an unfinished write
            with contextlib.suppress(FileExistsError):  # an earlier try
                self.storage.create(owner_name(self.generation, WITNESS), [b"{}"])
        self._newest = manifest

    def has_committed(self, generation: int) -> bool:
        """Returns whether a run of that generation finished its first commit."""
        return self.storage.exists(owner_name(generation, WITNESS))

    def prune(self, rules: Rules | None) -> None:
        """Deletes all commits that no rule keeps, manifests first, then blobs that no manifest names.

        Never touches what a newer generation wrote. A damaged manifest that turns up is quarantined.

        Args:
            rules: What is kept; None: nothing.
        """
        own = self._own_commits()
        reasons = [()] * len(own) if rules is None else kept([one.listed for one in own], rules)
        obsolete = [one for one, why in zip(own, reasons, strict=True) if not why]
        needed = {path for one, why in zip(own, reasons, strict=True) if why for path in one.blobs}
        if self._newest is not None and rules is not None:  # whatever a listing may have missed
            needed |= {blob.path for blob in self._newest.blobs}
        unneeded = {path for one in obsolete for path in one.blobs} | self._staging.written.keys()
        for one in obsolete:
            self.storage.delete(one.id.name)
            self._known.pop(one.id, None)
        for path in sorted(unneeded - needed):
            self._staging.discard(path)

    def delete_to_free_space(self, rules: Rules) -> None:
        """Deletes every blob that no rule keeps."""
        self.prune(rules)
        self.delete_orphans()

    def collect_orphans(self) -> None:
        """Deletes what earlier generations left: the orphans, and owner records that no commit refers to any more.

        Not before this owner's first commit: a run that it fenced may still be writing, and what that leaves is found
        by its owner record.
        """
        for name in self.taken_back():
            self.storage.delete(name)
        needed, inspected = self._needed()
        self._delete_all_but(needed, inspected)
        alive = inspected | {number for number in map(names.blob_generation, needed) if number is not None}
        for generation in self._generations():
            if generation not in alive:
                self._forget_owner(generation)
                self.storage.remove_empty_directories([names.blob_directory(generation)])

    def delete_orphans(self) -> None:
        """Deletes the files that interrupted saves of earlier generations left: unfinished ones, and unnamed blobs."""
        self._delete_all_but(*self._needed())

    def _needed(self) -> tuple[set[str], set[int]]:
        """The blobs that manifests name, and the generations of damaged manifests, whose blobs are all kept."""
        known = [*self._known.values(), *map(_Known.of, self._manifests.values()), *self._own_commits()]
        needed = {path for one in known for path in one.blobs}  # also of one that a listing may have missed
        unknown = {commit.generation for commit in self.quarantined()}
        for name, commit in self.taken_back().items():
            try:
                needed |= {blob.path for blob in self.manifest_in(name, commit).blobs}
            except DamagedBackupError:
                unknown.add(commit.generation)
        return needed, unknown

    def _delete_all_but(self, needed: set[str], inspected: set[int]) -> None:
        for generation in self._generations():
            directory = names.blob_directory(generation)
            for file in self.storage.files(directory):
                unfinished, path = names.is_partial(file.name, BLOBS), f"{directory}/{file.name}"
                if unfinished or (names.is_blob(file.name) and generation not in inspected and path not in needed):
                    self.storage.delete(path)
        for file in self.storage.files(COMMITS):  # not in owners/: one there may be that of a run that begins now
            commit = CommitId.parse(final_name(file.name) or "")
            if commit is not None and commit.generation <= self.generation:
                self.storage.delete(f"{COMMITS}/{file.name}")

    def delete_everything(self, journal: Journal | None = None) -> None:
        """Removes this run's backup: older commits first, the newest one last, then empty directories.

        A journal stays instead, if one is given.

        The directory itself is deleted only if this run, or one that it resumed from, made it. Interrupted at any
        point, either the newest commit is intact or all are deleted.
        """
        self.check_ownership()
        if journal is not None:
            self.leave_journal(journal)
        self.prune(Rules(max_to_keep=1))
        self.prune(None)
        generations = [*self._generations(), self.generation]
        for generation in generations:
            self._forget_owner(generation)
        blobs = [names.blob_directory(generation) for generation in generations]
        root = [""] if self._made_directory else []
        self.storage.remove_empty_directories([*blobs, BLOBS, COMMITS, OWNERS, ROLLED_BACK, *root])

    def leave_journal(self, journal: Journal) -> None:
        """Writes what is to stay of a training whose backups are deleted."""
        for number in itertools.count(max(self.journals(), default=0) + 1):
            with contextlib.suppress(FileExistsError):
                self.storage.create(names.journal_name(number), [RECORD.encode(journal)])
                return

    def journals(self) -> list[int]:
        """Returns the numbers of the journals that finished trainings have left, the newest last."""
        found = (names.journal_number(file.name) for file in self.storage.files(JOURNALS))
        return sorted(number for number in found if number is not None)

    def left_journal(self, number: int) -> Journal:
        """Reads one of them.

        Raises:
            DamagedBackupError: It is not what was written.
        """
        name = names.journal_name(number)
        return RECORD.decode(record_io.read(self.storage, name), self.storage.display(name))

    def _forget_owner(self, generation: int) -> None:
        self.storage.delete(owner_name(generation, WITNESS))
        self.storage.delete(owner_name(generation))

    # --- reading

    def commits(self, claims: Sequence[tuple[int, OwnerRecord]] | None = None) -> list[CommitId]:
        """Returns the commits, the newest last, without those that a rollback has taken back.

        Args:
            claims: What `claims` has returned just now; None: it is asked.
        """
        rollbacks = self.rollbacks() if claims is None else _in_force(claims)
        return [
            commit
            for commit in sorted(self._listed(COMMITS))
            if not any(owner.takes_back(commit, generation) for generation, owner in rollbacks)
        ]

    def _listed(self, place: str) -> list[CommitId]:
        found = (CommitId.parse(file.name) for file in self.storage.files(place))
        return [commit for commit in found if commit is not None]

    def newest_finite(self) -> tuple[CommitId, Position] | None:
        """Returns the newest commit without NaN and infinity, as far as is known, and where it was taken."""
        return next(((one.id, one.position) for one in reversed(self._own_commits()) if one.listed.is_finite), None)

    def taken_back(self) -> dict[str, CommitId]:
        """Returns the paths of manifests that a rollback has taken back, wherever they are."""
        rollbacks = self.rollbacks()
        found = {f"{ROLLED_BACK}/{commit.file_name}": commit for commit in self._listed(ROLLED_BACK)}
        for commit in self._listed(COMMITS):
            if any(owner.takes_back(commit, generation) for generation, owner in rollbacks):
                found[commit.name] = commit
        return found

    def rollback_to(self, commit: CommitId | None) -> OwnerRecord | None:
        """Returns the record of the newest rollback, if that is one to this commit; None is the start."""
        target = "" if commit is None else commit.file_name
        newest = [owner for _, owner in self.rollbacks()][-1:]
        return next((owner for owner in newest if owner.rolled_back_to == target), None)

    def claims(self, *, again: bool = False) -> list[tuple[int, OwnerRecord]]:
        """Returns the owner records that can be read, with their generations, the newest last.

        Args:
            again: Long after the last call: of what was read then, the newest record is read once more. If it is
                another one, so may be all: a training that begins after one has deleted its backups counts from 1.
        """
        claimed = sorted(self._owners())
        if again and claimed:
            known = self._owners_read.get(claimed[-1])
            newest = owner_records.read_owner(self.storage, claimed[-1])
            if newest is None or newest != known:
                self._owners_read.clear()
            if newest is not None:
                self._owners_read[claimed[-1]] = newest
        for generation in claimed:
            if generation not in self._owners_read:
                owner = owner_records.read_owner(self.storage, generation)
                if owner is not None:  # it may be there with the next look
                    self._owners_read[generation] = owner
        return [(number, self._owners_read[number]) for number in claimed if number in self._owners_read]

    def rollbacks(self) -> list[tuple[int, OwnerRecord]]:
        """Returns the rollbacks in force with their generations, the newest last."""
        if self._own_rollbacks is not None:
            return self._own_rollbacks
        found = _in_force(self.claims())
        if self.generation:
            self._own_rollbacks = found
        return found

    def quarantined(self) -> list[CommitId]:
        """Returns the commits whose damaged manifests were moved aside; which blobs they name is not known."""
        found = (CommitId.parse(names.quarantined_name(file.name) or "") for file in self.storage.files(DAMAGED))
        return [commit for commit in found if commit is not None]

    def why_no_backup(self) -> str:
        """Says what earlier runs did in a directory without a backup; an empty text if none started here."""
        newest = max(self._owners(), default=0)
        if any(generation == newest for generation, _ in self.rollbacks()):
            return "training was rolled back to its start"
        if self.has_committed(newest):
            return "a run has committed here, but no manifest is left"
        return "a run started here, but committed no backup" if newest else ""

    def manifest(self, commit: CommitId) -> Manifest:
        """Reads and checks a manifest.

        Raises:
            DamagedBackupError: It is not what was written.
            BackupMismatchError: A newer version of this package wrote it.
        """
        if commit not in self._manifests:
            self._manifests[commit] = self.manifest_in(commit.name, commit)
        return self._manifests[commit]

    def manifest_in(self, name: str, commit: CommitId) -> Manifest:
        """Reads and checks a manifest in a certain place, as `manifest` does."""
        where = self.storage.display(name)

        def read() -> Manifest:
            manifest = decode_manifest(record_io.read(self.storage, name, MAX_MANIFEST_BYTES), where)
            if manifest.id != commit:
                raise DamagedBackupError(f"{where} holds the manifest of another commit")
            return manifest

        try:
            return read_verified(self.storage, name, read)
        except FileNotFoundError as error:
            raise DamagedBackupError(f"{where} was deleted") from error

    def is_readable(self, commit: CommitId) -> bool:
        """Returns whether the manifest itself is intact, whatever became of its blobs."""
        try:
            self.manifest(commit)
        except DamagedBackupError:
            return False
        return True

    def load(self, manifest: Manifest, worker: int, allocate: Allocate | None = None) -> WorkerState:
        """Reads and verifies the state of one worker; a worker that was not there gets the chief's.

        Args:
            manifest: The commit.
            worker: The worker's index.
            allocate: Where large tensors get their memory. Defaults to numpy.

        Raises:
            DamagedBackupError: A blob is missing or differs from the manifest.
        """
        record = manifest.complete_record(worker)
        found = read_tensors(self.storage, record.tensors, {blob.path: blob for blob in manifest.blobs}, allocate)
        return WorkerState(manifest.position, found, record.state, manifest.info)

    def verify(self, manifest: Manifest, *, but_not: Iterable[TensorInfo] = ()) -> None:
        """Reads every tensor of a commit, and the headers of its blobs.

        Args:
            manifest: The commit.
            but_not: Tensors that were read and verified already.

        Raises:
            DamagedBackupError: Something is missing or differs from the manifest.
        """
        known = {(info.blob, info.start, info.hash) for info in but_not}
        every = [info for record in manifest.workers for info in record.tensors.values()]
        rest = [info for info in every if (info.blob, info.start, info.hash) not in known]
        touched = {info.blob for info in rest} if known else {blob.path for blob in manifest.blobs}
        verify_tensors(self.storage, rest, [blob for blob in manifest.blobs if blob.path in touched])

    def not_finite(self, manifest: Manifest) -> tuple[str, ...]:
        """Reads and verifies the tensors of a commit, and returns those that hold NaN or infinity; all values count.

        Raises:
            DamagedBackupError: A blob is missing or differs from the manifest.
        """
        blobs = {blob.path: blob for blob in manifest.blobs}
        found: list[str] = []
        for worker, own in enumerate(manifest.workers):
            read = read_tensors(self.storage, own.tensors, blobs)
            held = {name: SharedArray(array) for name, array in read.items()}
            found += finite.not_finite(finite.trained(held, manifest.complete_record(worker).state), whole=True)
        return tuple(dict.fromkeys(found))

    def quarantine(self, commit: CommitId) -> None:
        """Moves a damaged manifest aside, so that it is neither taken nor lost."""
        try:
            content = self.storage.read(commit.name, 0, MAX_MANIFEST_BYTES)
        except FileNotFoundError:
            return
        name = f"{DAMAGED}/{uuid.uuid4().hex[:8]}-{commit.file_name}"
        self.storage.create(name, [content])
        self.storage.delete(commit.name)

    def _own_commits(self) -> list[_Known]:
        """Returns the commits of this and earlier generations, the newest last; damaged ones are quarantined."""
        found = []
        for commit in self.commits():
            if commit.generation <= self.generation:
                try:
                    if commit not in self._known:
                        self._known[commit] = _Known.of(self.manifest_in(commit.name, commit))
                    found.append(self._known[commit])
                except DamagedBackupError as error:
                    self.notes.append(f"{error}; it is quarantined in {DAMAGED}/")
                    self.quarantine(commit)
        return found

    def _generations(self) -> list[int]:
        """Earlier generations that have an owner record, ascending."""
        return sorted(g for g in self._owners() if g < self.generation)

    def _owners(self) -> list[int]:
        return owner_records.generations(self.storage)


def _in_force(claims: Sequence[tuple[int, OwnerRecord]]) -> list[tuple[int, OwnerRecord]]:
    """Returns the rollbacks that were not undone."""
    undone = {owner.undoes for _, owner in claims}
    return [(g, owner) for g, owner in claims if owner.rolled_back_to is not None and g not in undone]


class _Known(NamedTuple):
    """What an owner remembers of a commit."""

    id: CommitId
    position: Position
    listed: ListedBackup
    blobs: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest) -> _Known:
        return cls(manifest.id, manifest.position, listed(manifest), frozenset(blob.path for blob in manifest.blobs))


def listed(manifest: Manifest) -> ListedBackup:
    """Returns what the rules look at of a commit."""
    commit, position, info = manifest.id, manifest.position, manifest.info
    order = commit.generation, commit.sequence
    created = info.get("created") or 0.0
    seconds = created - (info.get("begun") or created)
    return ListedBackup(order, (position.step, *order), position.epoch, seconds, not info.get("not_finite"))

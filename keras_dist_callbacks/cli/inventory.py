"""What a backup directory holds, read once and changed never, and whether a run seems to be writing to it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from keras_dist_callbacks.backups import names, owner_records, record_io
from keras_dist_callbacks.backups.manifest import decode_manifest
from keras_dist_callbacks.backups.names import BLOBS, COMMITS, DAMAGED, OWNERS, WITNESS, blob_generation
from keras_dist_callbacks.backups.owner_records import OwnerRecord
from keras_dist_callbacks.backups.record_io import MAX_MANIFEST_BYTES
from keras_dist_callbacks.backups.snapshot import CommitId, Manifest
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupMismatchError, DamagedBackupError, StorageError
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.storage.transfer import FileInfo

_READERS = 8
_LISTINGS = 20
QUIET_SECONDS = 15 * 60.0
SURELY_DEAD_SECONDS = 12 * 3600.0
_MISSED_BACKUPS = 3
State = Literal["ok", "damaged", "too new", "unfinished"]
"""`"too new"`: a newer version of this package wrote the commit. `"unfinished"`: it is the first one of a run that
never finished one, so that nothing is lost."""
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Entry:
    """A commit that is listed.

    Attributes:
        id: Its place in time.
        manifest: What it says; None if it cannot be read.
        problem: What is wrong with it.
        state: See `State`.
    """

    id: CommitId
    manifest: Manifest | None
    problem: str = ""
    state: State = "ok"

    def readable(self) -> Manifest:
        """What the commit says.

        Raises:
            DamagedBackupError: It cannot be read.
        """
        if self.manifest is None:
            raise DamagedBackupError(f"{self.problem}. `kdc ls` shows the other backups")
        return self.manifest


@dataclass(frozen=True)
class Inventory:
    """Everything in a backup directory.

    Attributes:
        entries: The commits, the newest last.
        owners: Who took the directory, by generation; None if the record cannot be read.
        committed: Generations that are known to have committed once.
        blobs: The stored blobs and their sizes, by path.
        temporaries: What interrupted writes left, and the sizes, by path.
        set_aside: Damaged manifests that were moved aside.
        silence: Seconds since the newest generation last wrote, by the store's clock; None if the store does not say.
    """

    entries: tuple[Entry, ...] = ()
    owners: Mapping[int, OwnerRecord | None] = field(default_factory=dict)
    committed: frozenset[int] = frozenset()
    blobs: Mapping[str, int] = field(default_factory=dict)
    temporaries: Mapping[str, int] = field(default_factory=dict)
    set_aside: tuple[Entry, ...] = ()
    silence: float | None = None

    @property
    def newest_generation(self) -> int:
        """The generation in force, 0 without any."""
        return max([0, *self.owners, *(entry.id.generation for entry in self.entries)])


def parallel(function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """`function` of each item, several at a time: a request to a store is mostly waiting."""
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(function, items))


def read_entries(store: BackupStore) -> list[Entry]:
    """All commits, the newest last, without those that a running fit deletes meanwhile."""

    def read(commit: CommitId) -> Entry | None:
        try:
            return Entry(commit, store.manifest(commit))
        except DamagedBackupError as error:
            if not store.storage.exists(commit.name):
                return None
            is_lost = store.has_committed(commit.generation)
            return Entry(commit, None, str(error), "damaged" if is_lost else "unfinished")
        except BackupMismatchError as error:
            return Entry(commit, None, str(error), "too new")

    found: list[Entry] = []
    for _ in range(_LISTINGS):
        listed = store.commits()
        found = [entry for entry in parallel(read, listed) if entry is not None]
        if found or not listed:
            break  # else the fit has deleted all that were listed, and has newer ones
    return found


def take_inventory(store: BackupStore) -> Inventory:
    """Lists everything in the directory and reads every manifest."""
    storage = store.storage
    claims = _owners(storage)
    set_aside = _quarantined(storage)
    # Blobs before manifests: a blob that a running fit adds in between is not listed, so it cannot look dangling.
    # The store cannot list directories; blobs are only ever below the number of a generation that is still listed.
    generations = {*claims, *(c.generation for c in store.commits()), *(entry.id.generation for entry in set_aside)}
    kinds = {"": "", COMMITS: COMMITS, OWNERS: OWNERS}
    kinds |= {names.blob_directory(generation): BLOBS for generation in sorted(generations)}
    present: dict[str, int] = {}
    unfinished: dict[str, int] = {}
    for place, files in zip(kinds, parallel(storage.files, kinds), strict=True):
        for file in files:
            path = f"{place}/{file.name}" if place else file.name
            present[path] = file.size
            if names.is_partial(file.name, kinds[place]):
                unfinished[path] = file.size
    entries = tuple(judge_all(storage, read_entries(store)))
    return Inventory(
        entries=entries,
        owners=claims,
        committed=frozenset(g for g in claims if names.owner_name(g, WITNESS) in present),
        blobs={path: size for path, size in present.items() if blob_generation(path) is not None},
        temporaries=unfinished,
        set_aside=set_aside,
        silence=_silence(storage, claims, entries),
    )


def blob_sizes(storage: Storage, entries: Sequence[Entry]) -> dict[str, int]:
    """The sizes of the stored blobs in the directories that these commits refer to."""
    paths = (blob.path for entry in entries if entry.manifest for blob in entry.manifest.blobs)
    directories = sorted({path.rpartition("/")[0] for path in paths})
    listings = zip(directories, parallel(storage.files, directories), strict=True)
    return {f"{directory}/{f.name}": f.size for directory, files in listings for f in files}


def judge(entry: Entry, stored: Mapping[str, int]) -> Entry:
    """The entry, damaged if one of its blobs is missing or has another length; the contents are not read.

    Args:
        entry: A commit.
        stored: Sizes of the stored blobs, listed after the commit was read.
    """
    for blob in entry.manifest.blobs if entry.manifest else ():
        size = stored.get(blob.path)
        if size != blob.size:
            what = "is missing" if size is None else f"is {size} bytes long instead of {blob.size}"
            return dataclasses.replace(entry, problem=f"{blob.path} {what}", state="damaged")
    return entry


def judge_all(storage: Storage, entries: Sequence[Entry]) -> list[Entry]:
    """The entries, each judged, without those that a running fit has deleted meanwhile."""
    stored = blob_sizes(storage, entries)
    found = [judge(entry, stored) for entry in entries]
    return [e for e in found if e.manifest is None or e.state == "ok" or storage.exists(e.id.name)]


def created_at(manifest: Manifest) -> float | None:
    """When a commit was written, if it says so."""
    created = manifest.info.get("created")
    return None if created is None else float(created)


def orphaned_blobs(inventory: Inventory) -> dict[str, int]:
    """Blobs that no manifest names, without those that a manifest that cannot be read may name.

    A commit refers only to blobs of its own generation, so all blobs of such a manifest's generation are skipped.
    """
    every = [*inventory.entries, *inventory.set_aside]
    needed = {blob.path for entry in every if entry.manifest for blob in entry.manifest.blobs}
    unknown = {entry.id.generation for entry in every if entry.manifest is None}
    return {
        path: size
        for path, size in inventory.blobs.items()
        if path not in needed and blob_generation(path) not in unknown
    }


def stale_owners(inventory: Inventory, blobs: Iterable[str] | None = None) -> list[int]:
    """Generations before the newest whose owner record nothing needs any more.

    Args:
        inventory: The directory.
        blobs: The blobs to reckon with. Defaults to those that are stored.
    """
    alive = {entry.id.generation for entry in [*inventory.entries, *inventory.set_aside]}
    alive |= {g for g in map(blob_generation, inventory.blobs if blobs is None else blobs) if g is not None}
    return sorted(g for g in inventory.owners if g not in alive and g < inventory.newest_generation)


@dataclass(frozen=True)
class Liveness:
    """What the newest owner record and its commits say.

    Attributes:
        running: Whether a run seems to be writing.
        generation: The newest one.
        why: What that is concluded from.
    """

    running: bool
    generation: int
    why: str


def liveness(inventory: Inventory, quiet: float = QUIET_SECONDS) -> Liveness:
    """Judges by the process of the newest generation where that is known, else by its newest sign of life.

    A run that saves rarely is given the time of three of its own intervals.

    Args:
        inventory: The directory.
        quiet: Seconds without a sign of life after which a run counts as dead.
    """
    newest = inventory.newest_generation
    manifests = [e.manifest for e in inventory.entries if e.id.generation == newest and e.manifest is not None]
    if manifests and manifests[-1].done:
        return Liveness(False, newest, "its last run has ended")
    created = [when for when in map(created_at, manifests) if when is not None]
    owner = inventory.owners.get(newest)
    if owner is not None and owner.has_ended:
        return Liveness(False, newest, "its process has ended")
    signs = sorted([*created, *([] if owner is None else [owner.claimed])])
    interval = signs[-1] - signs[-2] if len(signs) > 1 else 0.0
    if inventory.silence is not None:
        silence, clock = inventory.silence, "by the store's clock"
    elif signs:
        silence, clock = time.time() - signs[-1], "if the clocks of that machine and this one agree"
    else:
        return Liveness(False, newest, "no file in it has a time")
    what = "the last backup was written" if manifests else "a run began"
    running = silence < max(quiet, _MISSED_BACKUPS * interval)
    return Liveness(running, newest, f"{what} {formatting.age(silence)} ago {clock}")


def _silence(storage: Storage, owners: Collection[int], entries: Sequence[Entry]) -> float | None:
    """The times in the records are of another machine, whose clock may be wrong: only the store's own compare."""
    newest = max([0, *owners, *(entry.id.generation for entry in entries)])
    of_newest = [entry.id.name for entry in entries if entry.id.generation == newest]
    try:
        wrote = storage.modified(of_newest[-1] if of_newest else names.owner_name(newest)) if newest else 0.0
        return max(0.0, storage.now() - wrote) if wrote else None
    except FileNotFoundError:
        return 0.0  # a run deletes
    except StorageError:
        return None  # nothing may be written there: this account cannot delete either


def _owners(storage: Storage) -> dict[int, OwnerRecord | None]:
    found = owner_records.generations(storage)
    owners = parallel(lambda generation: owner_records.read_owner(storage, generation), found)
    return dict(zip(found, owners, strict=True))


def _quarantined(storage: Storage) -> tuple[Entry, ...]:
    def read(file: FileInfo) -> Entry | None:
        commit = CommitId.parse(names.quarantined_name(file.name) or "")
        path = f"{DAMAGED}/{file.name}"
        if commit is None:
            return None
        try:
            return Entry(commit, decode_manifest(record_io.read(storage, path, MAX_MANIFEST_BYTES), path))
        except (FileNotFoundError, DamagedBackupError, BackupMismatchError) as error:
            return Entry(commit, None, str(error), "damaged")

    return tuple(entry for entry in parallel(read, storage.files(DAMAGED)) if entry is not None)

"""What a backup directory holds, read once and changed never, and whether a run seems to be writing to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

from keras_dist_callbacks.backups import names, owner_records
from keras_dist_callbacks.backups.names import BLOBS, COMMITS, OWNERS, blob_generation
from keras_dist_callbacks.backups.owner_records import OwnerRecord
from keras_dist_callbacks.backups.reading import check_sizes, stored_sizes
from keras_dist_callbacks.backups.snapshot import BlobInfo, CommitId, Manifest
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupMismatchError, DamagedBackupError, StorageError
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.storage.storage import Storage

_READERS = 8
_LISTINGS = 20
QUIET_SECONDS = 15 * 60.0
SURELY_DEAD_SECONDS = 12 * 3600.0
_MISSED_BACKUPS = 3
State = Literal["ok", "intact", "damaged", "too new", "unfinished"]
"""`"ok"`: the manifest and the sizes of its blobs were checked. `"intact"`: its content was read. `"too new"`: a newer
version of this package wrote it. `"unfinished"`: it is the first one of a run that never finished one, so that nothing
is lost."""
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Entry:
    """A commit that is listed.

    Attributes:
        id: Its place in time.
        manifest: What it says; None if it cannot be read.
        problem: What is wrong with it.
        state: See `State`; one judgement for all commands.
    """

    id: CommitId
    manifest: Manifest | None
    problem: str = ""
    state: State = "ok"

    @property
    def blobs(self) -> tuple[BlobInfo, ...]:
        """Those that it names, as far as that is known."""
        return self.manifest.blobs if self.manifest else ()


@dataclass(frozen=True)
class Inventory:
    """Everything in a backup directory.

    Attributes:
        entries: The commits, the newest last.
        owners: Who took the directory, by generation; None if the record cannot be read.
        blobs: The stored blobs and their sizes, by path.
        temporaries: What interrupted writes left, and the sizes, by path.
        set_aside: Commits whose damaged manifests were moved aside; which blobs they name is not known.
        taken_back: Commits that a rollback has taken back, which may be undone.
        silence: Seconds since the newest generation last wrote, by the store's clock; None if the store does not say.
    """

    entries: tuple[Entry, ...]
    owners: Mapping[int, OwnerRecord | None]
    blobs: Mapping[str, int]
    temporaries: Mapping[str, int]
    set_aside: Sequence[CommitId]
    taken_back: Sequence[CommitId]
    silence: float | None

    @property
    def newest_generation(self) -> int:
        """The generation in force, 0 without any."""
        return max([0, *self.owners, *(entry.id.generation for entry in self.entries)])


def parallel(function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """`function` of each item, several at a time: a request to a store is mostly waiting."""
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(function, items))


def read_entries(store: BackupStore) -> list[Entry]:
    """All commits, the newest last, without those that a running fit deletes meanwhile; contents are not read."""
    storage = store.storage

    def read(commit: CommitId) -> Entry | None:
        try:
            return Entry(commit, store.manifest(commit))
        except DamagedBackupError as error:
            if not storage.exists(commit.name):
                return None
            is_lost = store.has_committed(commit.generation)
            return Entry(commit, None, str(error), "damaged" if is_lost else "unfinished")
        except BackupMismatchError as error:
            return Entry(commit, None, str(error), "too new")

    def judge(entry: Entry) -> Entry | None:
        try:
            check_sizes(storage, entry.blobs, stored)
        except DamagedBackupError as error:
            is_there = storage.exists(entry.id.name)
            return dataclasses.replace(entry, problem=str(error), state="damaged") if is_there else None
        return entry

    found: list[Entry] = []
    for _ in range(_LISTINGS):
        listed = store.commits()
        found = [entry for entry in parallel(read, listed) if entry is not None]
        if found or not listed:
            break  # else the fit has deleted all that were listed, and has newer ones
    stored = stored_sizes(storage, [blob for entry in found for blob in entry.blobs])
    return [entry for entry in map(judge, found) if entry is not None]


def take_inventory(store: BackupStore) -> Inventory:
    """Lists everything in the directory and reads every manifest."""
    storage, set_aside, taken_back = store.storage, store.quarantined(), [*store.taken_back().values()]
    claimed = owner_records.generations(storage)
    owners = parallel(lambda generation: owner_records.read_owner(storage, generation), claimed)
    # Blobs before manifests: a blob that a running fit adds in between is not listed, so it cannot look dangling.
    # The store cannot list directories; blobs are only ever below the number of a generation that is still listed.
    generations = {*claimed, *(commit.generation for commit in [*store.commits(), *set_aside, *taken_back])}
    kinds = {"": "", COMMITS: COMMITS, OWNERS: OWNERS}
    kinds |= {names.blob_directory(generation): BLOBS for generation in sorted(generations)}
    blobs: dict[str, int] = {}
    unfinished: dict[str, int] = {}
    for place, files in zip(kinds, parallel(storage.files, kinds), strict=True):
        for file in files:
            path = f"{place}/{file.name}" if place else file.name
            if names.is_partial(file.name, kinds[place]):
                unfinished[path] = file.size
            elif blob_generation(path) is not None:
                blobs[path] = file.size
    by_generation = dict(zip(claimed, owners, strict=True))
    found = Inventory(tuple(read_entries(store)), by_generation, blobs, unfinished, set_aside, taken_back, None)
    return dataclasses.replace(found, silence=_silence(storage, found))


def created_at(manifest: Manifest) -> float | None:
    """When a commit was written, if it says so."""
    created = manifest.info.get("created")
    return None if created is None else float(created)


def orphaned_blobs(inventory: Inventory) -> dict[str, int]:
    """Blobs that no manifest names, without those that a manifest that was not read may name.

    A commit refers only to blobs of its own generation, so all blobs of such a manifest's generation are skipped.
    """
    needed = {blob.path for entry in inventory.entries for blob in entry.blobs}
    unknown = {entry.id.generation for entry in inventory.entries if entry.manifest is None}
    unknown |= {commit.generation for commit in [*inventory.set_aside, *inventory.taken_back]}
    return {
        path: size
        for path, size in inventory.blobs.items()
        if path not in needed and blob_generation(path) not in unknown
    }


def stale_owners(inventory: Inventory, blobs: Iterable[str]) -> list[int]:
    """Generations before the newest whose owner record nothing needs any more, if these blobs stay.

    Until a run has committed after a rollback, its record says where training continues, and what is skipped.
    """
    committed = [entry.id.generation for entry in inventory.entries]
    alive = {*committed, *(commit.generation for commit in [*inventory.set_aside, *inventory.taken_back])}
    since = max(committed, default=0)
    alive |= {g for g, owner in inventory.owners.items() if g > since and owner is not None and owner.is_of_rollback}
    alive |= {generation for generation in map(blob_generation, blobs) if generation is not None}
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
    owner = inventory.owners.get(newest)
    if owner is not None and owner.has_ended:
        return Liveness(False, newest, "its process has ended")
    if inventory.silence is None:
        return Liveness(newest > 0, newest, "the store does not say when it wrote")
    created = [when for when in map(created_at, manifests) if when is not None]
    signs = sorted([*created, *([] if owner is None else [owner.claimed])])
    interval = signs[-1] - signs[-2] if len(signs) > 1 else 0.0
    what = "the last backup was written" if manifests else "a run began"
    running = inventory.silence < max(quiet, _MISSED_BACKUPS * interval)
    return Liveness(running, newest, f"{what} {formatting.age(inventory.silence)} ago by the store's clock")


def _silence(storage: Storage, inventory: Inventory) -> float | None:
    """The times in the records are of another machine, whose clock may be wrong: only the store's own compare."""
    newest = inventory.newest_generation
    of_newest = [entry.id.name for entry in inventory.entries if entry.id.generation == newest]
    try:
        wrote = storage.modified(of_newest[-1] if of_newest else names.owner_name(newest)) if newest else 0.0
        return max(0.0, storage.now() - wrote) if wrote else None
    except FileNotFoundError:
        return 0.0  # a run deletes
    except StorageError:
        return None  # nothing may be written there: this account cannot delete either


def set_aside_in_words(number: int) -> str:
    """Says how many damaged manifests runs have moved aside; an empty text for none."""
    return f"{formatting.count(number, 'damaged manifest')} in damaged/, quarantined by a run" if number else ""

"""What a backup directory holds, read once and changed never, and whether a run seems to be writing to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from keras_dist_callbacks.backups import owner_records, record_io
from keras_dist_callbacks.backups.manifest import decode_manifest
from keras_dist_callbacks.backups.names import (
    BLOBS,
    COMMITS,
    DAMAGED,
    OWNERS,
    WITNESS,
    blob_directory,
    blob_generation,
    commit_parts,
    is_partial,
    owner_name,
    quarantined_name,
)
from keras_dist_callbacks.backups.snapshot import CommitId, Manifest
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.errors import BackupError, BackupMismatchError, DamagedBackupError
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.storage.transfer import FileInfo

MOST_RECORDS = 10_000
MOST_BYTES = 2**25
_READERS = 8
QUIET_SECONDS = 15 * 60.0
_SURELY_DEAD_SECONDS = 12 * 3600.0
_MISSED_BACKUPS = 3
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Entry:
    """A commit that is listed.

    Attributes:
        id: Its place in time.
        manifest: What it says; None if it cannot be read.
        problem: Why it cannot be read.
        state: `"ok"` if it can, else `"damaged"`, `"too new"` (a newer version of this package wrote it), or
            `"unfinished"`: the first of a run that never finished one, so that nothing is lost.
    """

    id: CommitId
    manifest: Manifest | None
    problem: str = ""
    state: str = "ok"

    @property
    def label(self) -> str:
        """A short name that people can type."""
        return self.id.label

    def readable(self) -> Manifest:
        """What the commit says.

        Raises:
            DamagedBackupError: It cannot be read.
        """
        if self.manifest is None:
            raise DamagedBackupError(f"{self.problem}. `kdc ls` shows the other backups")
        return self.manifest


@dataclass(frozen=True)
class QuarantinedManifest:
    """A damaged manifest that a run has moved aside; `manifest` is None if it cannot be read."""

    path: str
    size: int
    generation: int
    manifest: Manifest | None


@dataclass(frozen=True)
class Inventory:
    """Everything in a backup directory.

    Attributes:
        entries: The commits, the newest last.
        owners: When each generation took the directory; None if its record does not say.
        committed: Generations that are known to have committed once.
        blobs: The stored blobs and their sizes, by path.
        temporaries: What interrupted writes left, and the sizes, by path.
        set_aside: Damaged manifests that were moved aside.
    """

    entries: tuple[Entry, ...] = ()
    owners: Mapping[int, float | None] = field(default_factory=dict)
    committed: frozenset[int] = frozenset()
    blobs: Mapping[str, int] = field(default_factory=dict)
    temporaries: Mapping[str, int] = field(default_factory=dict)
    set_aside: tuple[QuarantinedManifest, ...] = ()

    @property
    def newest_generation(self) -> int:
        """The generation that rules, 0 if there is none."""
        return max([0, *self.owners, *(entry.id.generation for entry in self.entries)])

    @property
    def is_empty(self) -> bool:
        """Whether no run ever began here."""
        return not (self.entries or self.owners or self.set_aside)


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
            state = "damaged" if store.has_committed(commit.generation) else "unfinished"
            return Entry(commit, None, str(error), state)
        except BackupMismatchError as error:
            return Entry(commit, None, str(error), "too new")

    _check_size(store.storage)
    return [entry for entry in parallel(read, store.commits()) if entry is not None]


def take_inventory(store: BackupStore) -> Inventory:
    """Lists everything in the directory and reads every manifest."""
    storage = store.storage
    claims = _owners(storage)
    _check_size(storage)
    set_aside = _quarantined(storage, MOST_BYTES)
    # Blobs before manifests: a blob that a running fit adds in between is not listed, so it cannot look dangling.
    # The store cannot list directories; blobs are only ever below the number of a generation that is still told of.
    generations = {*claims, *(c.generation for c in store.commits()), *(item.generation for item in set_aside)}
    directories = [blob_directory(generation) for generation in sorted(generations)]
    places = ["", COMMITS, OWNERS, *directories]
    files = dict(zip(places, parallel(storage.files, places), strict=True))
    present = {_join(place, f.name): f.size for place in places for f in files[place]}
    unfinished = {
        _join(place, f.name): f.size
        for place in places
        for f in files[place]
        if is_partial(f.name, BLOBS if place.startswith(BLOBS) else place)
    }
    return Inventory(
        entries=tuple(read_entries(store)),
        owners=claims,
        committed=frozenset(g for g in claims if owner_paths(g)[0] in present),
        blobs={path: size for path, size in present.items() if blob_generation(path) is not None},
        temporaries=unfinished,
        set_aside=set_aside,
    )


def blob_sizes(storage: Storage, entries: Sequence[Entry]) -> dict[str, int]:
    """The sizes of the stored blobs in the directories that these commits refer to."""
    paths = (blob.path for entry in entries if entry.manifest for blob in entry.manifest.blobs)
    directories = sorted({path.rpartition("/")[0] for path in paths})
    listings = zip(directories, parallel(storage.files, directories), strict=True)
    return {f"{directory}/{f.name}": f.size for directory, files in listings for f in files}


def orphaned_blobs(inventory: Inventory) -> dict[str, int]:
    """Blobs that no manifest names, without those that a manifest that cannot be read may name.

    A commit refers only to blobs of its own generation, so all blobs of such a manifest's generation are left out.
    """
    manifests = [entry.manifest for entry in inventory.entries] + [item.manifest for item in inventory.set_aside]
    needed = {blob.path for manifest in manifests if manifest for blob in manifest.blobs}
    unknown = {entry.id.generation for entry in inventory.entries if entry.manifest is None}
    unknown |= {item.generation for item in inventory.set_aside if item.manifest is None}
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
    alive = {entry.id.generation for entry in inventory.entries} | {item.generation for item in inventory.set_aside}
    alive |= {g for g in map(blob_generation, inventory.blobs if blobs is None else blobs) if g is not None}
    return sorted(g for g in inventory.owners if g not in alive and g < inventory.newest_generation)


def owner_paths(generation: int) -> tuple[str, str]:
    """A generation's note that it has committed, and its owner record, in the order to delete them in."""
    return owner_name(generation, WITNESS), owner_name(generation)


@dataclass(frozen=True)
class Liveness:
    """What the times in the newest owner record and its commits tell.

    Attributes:
        running: Whether a run seems to be writing.
        generation: The newest one.
        why: What that is concluded from.
    """

    running: bool
    generation: int
    why: str


def has_ended(inventory: Inventory, now: float) -> bool:
    """Whether no backup can be in the middle of being written, however seldom the newest run saves."""
    silence = liveness(inventory, now, quiet=_SURELY_DEAD_SECONDS)
    return not silence.running


def liveness(inventory: Inventory, now: float, quiet: float = QUIET_SECONDS) -> Liveness:
    """Judges by the newest sign of life of the newest generation.

    A run that saves rarely is given the time of three of its own intervals.

    Args:
        inventory: The directory.
        now: The time.
        quiet: Seconds without a sign of life after which a run counts as dead.
    """
    newest = inventory.newest_generation
    manifests = [e.manifest for e in inventory.entries if e.id.generation == newest and e.manifest is not None]
    if manifests and manifests[-1].done:
        return Liveness(False, newest, "its last run has ended")
    created = sorted(float(m.info["created"]) for m in manifests if isinstance(m.info.get("created"), int | float))
    claimed = inventory.owners.get(newest)
    signs = [*created, *([claimed] if claimed is not None else [])]
    if not signs:
        return Liveness(False, newest, "nothing in it tells a time")
    marks = sorted(signs)
    interval = marks[-1] - marks[-2] if len(marks) > 1 else 0.0
    silence = now - max(signs)
    what = "the last backup was written" if created and max(signs) == created[-1] else "a run began"
    running = silence < max(quiet, _MISSED_BACKUPS * interval)
    return Liveness(running, newest, f"{what} {formatting.age(silence)} ago")


def _owners(storage: Storage) -> dict[int, float | None]:
    found = owner_records.generations(storage)
    if len(found) > MOST_RECORDS:
        raise BackupError(f"{storage.display(OWNERS)} holds {len(found)} records, more than jobs leave; look into it")
    return {
        g: None if owner is None else owner.claimed
        for g, owner in zip(found, parallel(lambda g: owner_records.read_owner(storage, g), found), strict=True)
    }


def _quarantined(storage: Storage, limit: int) -> tuple[QuarantinedManifest, ...]:
    def read(file: FileInfo, commit: CommitId) -> QuarantinedManifest:
        path = f"{DAMAGED}/{file.name}"
        try:
            manifest: Manifest | None = decode_manifest(record_io.read(storage, path, limit), path, limit)
        except (FileNotFoundError, DamagedBackupError, BackupMismatchError):
            manifest = None
        return QuarantinedManifest(path, file.size, commit.generation, manifest)

    names = ((file, quarantined_name(file.name)) for file in storage.files(DAMAGED))
    parsed = ((file, CommitId.parse(name)) for file, name in names if name is not None)
    return tuple(parallel(lambda item: read(*item), [(file, commit) for file, commit in parsed if commit is not None]))


def _check_size(storage: Storage) -> None:
    """Refuses what would take more memory and time than anybody expects of a look into a directory."""
    sizes = [f.size for f in storage.files(COMMITS) if commit_parts(f.name)]
    sizes += [f.size for f in storage.files(DAMAGED) if quarantined_name(f.name)]
    sizes = [size for size in sizes if size <= MOST_BYTES]  # no more is read of a longer one: it is damaged
    if len(sizes) > MOST_RECORDS or sum(sizes) > MOST_BYTES:
        raise BackupError(
            f"{storage.display()} holds {len(sizes)} manifests of {sum(sizes)} bytes, more than is read at once "
            f"({MOST_RECORDS}, or {MOST_BYTES} bytes); a fit() that may delete removes all but the newest two"
        )


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name

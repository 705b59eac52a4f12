"""`kdc prune`: what may go, and taking it away in an order that is safe at every point.

Unlike a run, this owns no generation and takes none. So it leaves alone whatever a run that may still be
writing needs: the newest owner record always, and all of the newest generation while it seems to be at work.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from keras_dist_callbacks.backups.names import blob_directory, blob_generation
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cli.inventory import (
    Entry,
    Inventory,
    has_ended,
    orphaned_blobs,
    owner_paths,
    parallel,
    stale_owners,
)
from keras_dist_callbacks.cli.verifying import BackupVerifier
from keras_dist_callbacks.errors import BackupError, BackupMismatchError, DamagedBackupError, FencedError


@dataclass(frozen=True)
class PrunePlan:
    """What is to be deleted, in this order, and what stays.

    Attributes:
        url: The directory, without credentials.
        kept: Paths of the commits that stay, the newest first.
        spared_generation: The generation of a run that seems to be writing and is left alone; 0 if there is none.
        commits: Paths of manifests, the oldest first.
        blobs: Sizes of blobs by path.
        temporaries: Sizes of unfinished files by path.
        owners: Generations whose owner records nothing needs.
        newest_generation: The one whose owner record stays.
        bytes: How much there is to gain, manifests not counted.
    """

    url: str
    kept: tuple[str, ...]
    spared_generation: int
    commits: tuple[str, ...]
    blobs: dict[str, int]
    temporaries: dict[str, int]
    owners: tuple[int, ...]
    newest_generation: int
    bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to delete."""
        return not (self.commits or self.blobs or self.temporaries or self.owners)


def select_kept(entries: Iterable[Entry], keep: int, is_intact: Callable[[Entry], bool]) -> list[Entry]:
    """The newest `keep` commits, and the newest whole one if there is none among these; the newest first.

    Commits are verified from the newest on until one is whole, and no further.

    Args:
        entries: The commits, the newest last.
        keep: How many.
        is_intact: Verifies a commit.

    Raises:
        BackupMismatchError: A newer version of this package wrote one of them.
        DamagedBackupError: None of them is whole.
    """
    newest_first = sorted(entries, key=lambda entry: entry.id, reverse=True)
    for entry in newest_first:
        if entry.state == "too new":
            raise BackupMismatchError(entry.problem)
    kept, older = newest_first[:keep], newest_first[keep:]
    whole = next((entry for entry in newest_first if is_intact(entry)), None)
    if whole is None:
        raise DamagedBackupError(
            f"none of the {len(newest_first)} backups is whole; nothing is deleted. `kdc verify` tells what is wrong"
        )
    return [*kept, whole] if whole in older else kept


def plan_prune(url: str, inventory: Inventory, kept: Iterable[Entry], spared_generation: int) -> PrunePlan:
    """Everything that may go if `kept` stay.

    Args:
        url: The directory, without credentials.
        inventory: What it holds.
        kept: The commits that stay.
        spared_generation: One to leave alone altogether; 0 for none.
    """
    wanted = {entry.id for entry in kept}
    staying = tuple(e for e in inventory.entries if e.id in wanted or e.id.generation == spared_generation)
    names = {entry.id.name for entry in staying}
    rest = dataclasses.replace(inventory, entries=staying)
    dangling = orphaned_blobs(rest)
    # What no manifest names yet may be part of a backup that is being written, by a run that saves seldom.
    ended = has_ended(inventory, time.time())
    unnamed = set() if ended else orphaned_blobs(inventory).keys()
    writing = {path for path in unnamed if blob_generation(path) == inventory.newest_generation}
    blobs = {p: size for p, size in dangling.items() if blob_generation(p) != spared_generation and p not in writing}
    temporaries = dict(inventory.temporaries) if ended and not spared_generation else {}
    return PrunePlan(
        url=url,
        kept=tuple(sorted(names, reverse=True)),
        spared_generation=spared_generation,
        commits=tuple(entry.id.name for entry in inventory.entries if entry.id.name not in names),
        blobs=blobs,
        temporaries=temporaries,
        owners=tuple(stale_owners(rest, rest.blobs.keys() - blobs)),
        newest_generation=inventory.newest_generation,
        bytes=sum(blobs.values()) + sum(temporaries.values()),
    )


def execute(store: BackupStore, plan: PrunePlan) -> None:
    """Deletes manifests, then, if no run has written meanwhile, what they alone referred to.

    Raises:
        FencedError: A run began or wrote meanwhile; what is left is complete.
    """
    storage = store.storage
    _check_nothing_happened(store, plan, {*plan.kept, *plan.commits})
    for name in plan.commits:
        storage.delete(name)
    _check_nothing_happened(store, plan, set(plan.kept))
    parallel(storage.delete, [*plan.blobs, *plan.temporaries])
    for generation in plan.owners:
        for path in owner_paths(generation):
            storage.delete(path)
    storage.remove_empty_directories([blob_directory(generation) for generation in plan.owners])


def _check_nothing_happened(store: BackupStore, plan: PrunePlan, expected: set[str]) -> None:
    found = {commit.name for commit in store.commits() if commit.generation != plan.spared_generation}
    expected = {name for name in expected if not name.startswith(f"commits/{plan.spared_generation:06d}-")}
    if found != expected or store.newest_generation() != plan.newest_generation:
        raise FencedError(
            f"{plan.url}: a run has written meanwhile; the rest is left as it is. Prune again when it has ended"
        )


def verified_by(verifier: BackupVerifier) -> Callable[[Entry], bool]:
    """Whether a commit is whole, as the verifier finds."""

    def is_intact(entry: Entry) -> bool:
        verdict = verifier.verdict(entry)
        if verdict is None:
            raise BackupError(f"{entry.id.name} was deleted meanwhile: a run is writing; nothing is deleted")
        return verdict.state == "whole"

    return is_intact

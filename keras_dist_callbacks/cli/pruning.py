"""`kdc prune`: what may go, and taking it away in an order that is safe at every point.

Unlike a run, this owns no generation and takes none. So it leaves alone whatever a run that may still be
writing needs: the newest owner record always, and all of the newest generation while it seems to be at work.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass

from keras_dist_callbacks.backups.names import WITNESS, blob_directory, blob_generation, owner_name
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cli import formatting, inventory
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.cli.inventory import Entry, Inventory
from keras_dist_callbacks.cli.output import PROBLEM, Target, fail, nothing_in, progress
from keras_dist_callbacks.cli.verifying import Seen, verify_backup, work
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


def make_plan(target: Target, keep: int, *, spare_live_run: bool) -> PrunePlan:
    """Finds out what may go; at least one backup that was verified stays.

    Args:
        target: The directory.
        keep: How many of the newest backups stay.
        spare_live_run: Plan although a run seems to be writing, and leave alone what that run wrote.

    Raises:
        typer.Exit: There is no backup, or a run seems to be writing.
        BackupError: A backup was deleted meanwhile, or is not to be judged by this version, or none is whole.
    """
    found = inventory.take_inventory(target.store)
    if not found.entries:
        raise nothing_in(target, "backup")
    life = inventory.liveness(found, time.time())
    if life.running and not spare_live_run:
        raise fail(
            f"{target.url}: a run seems to be writing (generation {life.generation}: {life.why}), and it deletes its "
            f"old backups itself. Prune when it has ended or been quiet for "
            f"{formatting.age(inventory.QUIET_SECONDS)}; --force leaves this run's backups alone and prunes the others",
            PROBLEM,
        )
    kept = _select_kept(target, found.entries, keep)
    return plan_prune(target.url, found, kept, life.generation if life.running else 0)


def _select_kept(target: Target, entries: tuple[Entry, ...], keep: int) -> list[Entry]:
    """The newest `keep` commits, and the newest whole one if there is none among these.

    Commits are verified from the newest on until one is whole, and no further.
    """
    newest_first = entries[::-1]
    for entry in newest_first:
        if entry.state == "too new":
            raise BackupMismatchError(entry.problem)
    seen: Seen = {}
    with progress("verifying", work(newest_first[:1])) as advance:
        for number, entry in enumerate(newest_first):
            verdict = verify_backup(target.store, entry, advance, seen)
            if verdict is None:
                raise BackupError(f"{entry.id.name} was deleted meanwhile: a run is writing; nothing is deleted")
            if verdict.state == "whole":
                return [*newest_first[:keep], *([entry] if number >= keep else [])]
    raise DamagedBackupError(
        f"none of the {len(newest_first)} backups is whole; nothing is deleted. `kdc verify` tells what is wrong"
    )


def plan_prune(url: str, found: Inventory, kept: Iterable[Entry], spared_generation: int) -> PrunePlan:
    """Everything that may go if `kept` stay.

    Args:
        url: The directory, without credentials.
        found: What it holds.
        kept: The commits that stay.
        spared_generation: One to leave alone altogether; 0 for none.
    """
    staying = {entry.id for entry in kept}
    staying |= {entry.id for entry in found.entries if entry.id.generation == spared_generation}
    rest = dataclasses.replace(found, entries=tuple(entry for entry in found.entries if entry.id in staying))
    # What no manifest names yet may be part of a backup that is being written, by a run that saves seldom.
    ended = not inventory.liveness(found, time.time(), inventory.SURELY_DEAD_SECONDS).running
    unnamed = set() if ended else inventory.orphaned_blobs(found).keys()
    needed = {path for path in unnamed if blob_generation(path) == found.newest_generation}
    needed |= {path for path in found.blobs if blob_generation(path) == spared_generation}
    blobs = {path: size for path, size in inventory.orphaned_blobs(rest).items() if path not in needed}
    temporaries = dict(found.temporaries) if ended and not spared_generation else {}
    return PrunePlan(
        url=url,
        kept=tuple(commit.name for commit in sorted(staying, reverse=True)),
        spared_generation=spared_generation,
        commits=tuple(entry.id.name for entry in found.entries if entry.id not in staying),
        blobs=blobs,
        temporaries=temporaries,
        owners=tuple(inventory.stale_owners(rest, rest.blobs.keys() - blobs)),
        newest_generation=found.newest_generation,
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
    inventory.parallel(storage.delete, [*plan.blobs, *plan.temporaries])
    for generation in plan.owners:
        storage.delete(owner_name(generation, WITNESS))
        storage.delete(owner_name(generation))
    storage.remove_empty_directories([blob_directory(generation) for generation in plan.owners])


def _check_nothing_happened(store: BackupStore, plan: PrunePlan, expected: set[str]) -> None:
    found = {commit.name for commit in store.commits() if commit.generation != plan.spared_generation}
    expected = {name for name in expected if not name.startswith(f"commits/{plan.spared_generation:06d}-")}
    if found != expected or store.newest_generation() != plan.newest_generation:
        raise FencedError(
            f"{plan.url}: a run has written meanwhile; the rest is left as it is. Prune again when it has ended"
        )


def show_plan(page: Page, plan: PrunePlan) -> None:
    """Prints what is to go."""
    page.line(plan.url, "bold")
    rows = [
        *plan.commits,
        formatting.sum_of_sizes(plan.blobs.values(), "blob") if plan.blobs else "",
        formatting.sum_of_sizes(plan.temporaries.values(), "unfinished file") if plan.temporaries else "",
        formatting.count(len(plan.owners), "idle owner record") if plan.owners else "",
    ]
    page.facts([("keep", "\n".join(plan.kept)), ("delete", "\n".join(filter(None, rows)) or "nothing")])
    if plan.spared_generation:
        note = f"generation {plan.spared_generation} seems to be writing: it is left alone, and others need --force"
        page.line(note, "yellow")
    if not plan.is_empty:
        page.line(f"{formatting.size(plan.bytes)} to be freed")

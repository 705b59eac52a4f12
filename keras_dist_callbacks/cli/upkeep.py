"""Upkeep of a backup directory: `kdc verify` and `kdc prune`, which deletes nothing unless a backup was verified.

`kdc verify` reads everything that backups and checkpoints consist of, and changes nothing.

`kdc prune` takes away what may go, in an order that is safe at every point. Unlike a run, it owns no generation and
takes none. So it leaves alone whatever a run that may still be writing needs: the newest owner record always, and all
of the newest generation while it seems to be at work.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from keras_dist_callbacks.backups import names
from keras_dist_callbacks.backups.names import WITNESS, blob_generation
from keras_dist_callbacks.backups.reading import verify_tensors
from keras_dist_callbacks.backups.retention import Rules, kept
from keras_dist_callbacks.backups.snapshot import BlobInfo, TensorInfo
from keras_dist_callbacks.backups.store import BackupStore, listed
from keras_dist_callbacks.base.errors import BackupError, BackupMismatchError, DamagedBackupError, FencedError
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.cli import formatting, inventory
from keras_dist_callbacks.cli.formatting import Page
from keras_dist_callbacks.cli.inventory import Entry, Inventory, State
from keras_dist_callbacks.cli.output import PROBLEM, Target, fail, nothing_in, progress
from keras_dist_callbacks.storage.storage import Storage

Advance = Callable[[int], None]
"""Is given how many bytes were read."""
Known = set[tuple[BlobInfo, frozenset[TensorInfo]]]
"""Blobs that are intact, as far as those tensors need them: one that several backups refer to is read once."""


@dataclass(frozen=True)
class Verified:
    """What reading one backup or checkpoint has shown.

    Attributes:
        name: Its path in the directory.
        kind: `"backup"` or `"checkpoint"`.
        state: What was found.
        where: Its place in training, in words.
        bytes: Its size.
        problem: What is wrong with it.
    """

    name: str
    kind: Literal["backup", "checkpoint"]
    state: State
    where: str | None = None
    bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Verification:
    """What `kdc verify` shows."""

    url: str
    verdicts: tuple[Verified, ...]
    set_aside: int = 0

    @property
    def all_intact(self) -> bool:
        """Whether nothing is wrong; what was never finished is not a loss."""
        return all(checked.state in {"intact", "unfinished"} for checked in self.verdicts)


def verify_backup(storage: Storage, entry: Entry, advance: Advance, known: Known) -> Entry | None:
    """Verifies a backup blob by blob; None if a running fit has deleted it meanwhile.

    Args:
        storage: The directory.
        entry: The backup.
        advance: Is given how many bytes were read.
        known: What was verified already; what is verified here is added.
    """
    if entry.manifest is None:
        return entry
    tensors: dict[str, set[TensorInfo]] = {blob.path: set() for blob in entry.blobs}
    for info in (info for record in entry.manifest.workers for info in record.tensors.values()):
        tensors[info.blob].add(info)
    try:
        for blob in entry.blobs:
            needed = blob, frozenset(tensors[blob.path])
            if needed not in known:
                verify_tensors(storage, needed[1], [blob])
                known.add(needed)
            advance(blob.size)
    except DamagedBackupError as error:
        is_there = storage.exists(entry.id.name)
        return dataclasses.replace(entry, state="damaged", problem=str(error)) if is_there else None
    return dataclasses.replace(entry, state="intact")


def verify(target: Target, entries: Sequence[Entry], published: files.Listing) -> Verification:
    """Reads backups and checkpoints completely.

    Args:
        target: The directory.
        entries: The backups, the newest last.
        published: The checkpoints.
    """
    storage, checkpoints = target.storage, published.checkpoints
    with progress("verifying", work(entries, checkpoints)) as advance:
        known: Known = set()
        read = [verify_backup(storage, entry, advance, known) for entry in reversed(entries)]
        verdicts = [_verified(entry) for entry in read if entry is not None]
        verdicts += filter(None, [verify_checkpoint(storage, checkpoint, advance) for checkpoint in checkpoints])
    verdicts += [Verified(one.name, "checkpoint", "damaged", problem=str(one)) for one in published.problems]
    return Verification(target.url, tuple(verdicts), len(target.store.quarantined()))


def work(entries: Sequence[Entry], checkpoints: Sequence[Checkpoint] = ()) -> int:
    """How many bytes there are to verify."""
    blobs = sum(blob.size for entry in entries for blob in entry.blobs)
    return blobs + sum(checkpoint.file_size for checkpoint in checkpoints)


def _verified(entry: Entry) -> Verified:
    problem = entry.problem or None
    if entry.manifest is None:
        return Verified(entry.id.name, "backup", entry.state, problem=problem)
    where = formatting.position(entry.manifest.position)
    return Verified(entry.id.name, "backup", entry.state, where, work([entry]), problem)


def verify_checkpoint(storage: Storage, checkpoint: Checkpoint, advance: Advance) -> Verified | None:
    """Verifies a checkpoint; None if a running fit has deleted it meanwhile."""
    where, size = f"after epoch {checkpoint.record.epoch}", checkpoint.file_size
    try:
        files.verify(storage, checkpoint.name)
    except FileNotFoundError:
        return None
    except DamagedBackupError as error:
        return Verified(checkpoint.name, "checkpoint", "damaged", where, size, str(error))
    finally:
        advance(size)
    return Verified(checkpoint.name, "checkpoint", "intact", where, size)


def show_verification(page: Page, found: Verification) -> None:
    """Prints what `kdc verify` shows."""
    page.line(found.url, "bold")
    rows = ((v.name, formatting.styled(v.state), v.where or "-", formatting.size(v.bytes)) for v in found.verdicts)
    page.table(("name", "", "position", ">size"), rows)
    page.notes(((v.name, v.problem) for v in found.verdicts), "red")
    if found.set_aside:
        page.line(inventory.set_aside_in_words(found.set_aside))
    counts = collections.Counter(checked.state for checked in found.verdicts)
    summary = ", ".join(f"{number} {state}" for state, number in counts.items())
    page.line(summary, "green" if found.all_intact else "bold red")


@dataclass(frozen=True)
class PrunePlan:
    """What is to be deleted, in this order, and what stays.

    Attributes:
        url: The directory, without credentials.
        kept: Paths of the commits that stay, the newest first.
        spared_generation: The generation of a run that seems to be writing and is left alone; 0 without such a run.
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
    def leftovers(self) -> list[str]:
        """What nothing needs, next to the commits, in words."""
        found = (
            formatting.sum_of_sizes(self.blobs.values(), "blob"),
            formatting.sum_of_sizes(self.temporaries.values(), "unfinished file"),
            formatting.count(len(self.owners), "idle owner record") if self.owners else "",
        )
        return [text for text in found if text]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to delete."""
        return not (self.commits or self.leftovers)


def make_plan(target: Target, rules: Rules, *, spare_live_run: bool) -> PrunePlan:
    """Finds out what may go; at least one backup that was verified stays.

    Args:
        target: The directory.
        rules: Which backups stay.
        spare_live_run: Plan although a run seems to be writing, and leave alone what that run wrote.

    Raises:
        typer.Exit: No backup was found, or a run seems to be writing.
        BackupError: A backup was deleted meanwhile, or is not to be judged by this version, or none is intact.
    """
    found = inventory.take_inventory(target.store)
    if not found.entries:
        raise nothing_in(target, "backup")
    life = inventory.liveness(found)
    if life.running and not spare_live_run:
        raise fail(
            f"{target.url}: a run may still be writing (generation {life.generation}: {life.why}), and it deletes its "
            f"old backups itself. Prune when it has ended or been quiet for {formatting.age(inventory.QUIET_SECONDS)}; "
            "--force keeps the backups of this run and prunes the others",
            PROBLEM,
        )
    staying = _select_kept(target, found.entries, rules)
    return plan_prune(target.url, found, staying, life.generation if life.running else 0)


def _select_kept(target: Target, entries: tuple[Entry, ...], rules: Rules) -> list[Entry]:
    """The commits that the rules keep, and the newest intact one unless it is among these.

    Of one whose manifest cannot be read only its number among the newest is known.

    Commits are verified from the newest on until one is intact, and no further.
    """
    newest_first = entries[::-1]
    for entry in newest_first:
        if entry.state == "too new":
            raise BackupMismatchError(entry.problem)
    readable = [entry.manifest for entry in entries if entry.manifest is not None]
    reasons = zip(readable, kept(list(map(listed, readable)), rules), strict=True)
    staying = {manifest.id for manifest, why in reasons if "keep_every" in why}
    staying |= {entry.id for entry in newest_first[: rules.max_to_keep or 0]}
    known: Known = set()
    with progress("verifying", work(newest_first[:1])) as advance:
        for entry in newest_first:
            checked = verify_backup(target.storage, entry, advance, known)
            if checked is None:
                raise BackupError(f"{entry.id.name} was deleted meanwhile: a run is writing; nothing is deleted")
            if checked.state == "intact":
                return [one for one in newest_first if one.id in {*staying, entry.id}]
    raise DamagedBackupError(
        f"none of the {len(newest_first)} backups is intact; nothing is deleted. `kdc verify` reports what is wrong"
    )


def plan_prune(url: str, found: Inventory, kept_entries: Iterable[Entry], spared_generation: int = 0) -> PrunePlan:
    """Everything that may go if some stay.

    Args:
        url: The directory, without credentials.
        found: What it holds.
        kept_entries: The commits that stay.
        spared_generation: One whose commits all stay; 0 for none.
    """
    staying = {entry.id for entry in kept_entries}
    staying |= {entry.id for entry in found.entries if entry.id.generation == spared_generation}
    rest = dataclasses.replace(found, entries=tuple(entry for entry in found.entries if entry.id in staying))
    # What no manifest names yet may be part of a backup that is being written, by a run that saves seldom.
    ended = not inventory.liveness(found, inventory.SURELY_DEAD_SECONDS).running
    unnamed = set() if ended else inventory.orphaned_blobs(found).keys()
    needed = {path for path in unnamed if blob_generation(path) == found.newest_generation}
    blobs = {path: size for path, size in inventory.orphaned_blobs(rest).items() if path not in needed}
    temporaries = dict(found.temporaries) if ended else {}
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
        storage.delete(names.owner_name(generation, WITNESS))
        storage.delete(names.owner_name(generation))
    storage.remove_empty_directories([names.blob_directory(generation) for generation in plan.owners])


def _check_nothing_happened(store: BackupStore, plan: PrunePlan, expected: set[str]) -> None:
    found = {commit.name for commit in store.commits() if commit.generation != plan.spared_generation}
    expected = {name for name in expected if not name.startswith(f"commits/{plan.spared_generation:06d}-")}
    if found != expected or store.newest_generation() != plan.newest_generation:
        raise FencedError(
            f"{plan.url}: a run has written meanwhile; nothing more is deleted. Prune again when it has ended"
        )


def show_plan(page: Page, plan: PrunePlan) -> None:
    """Prints what is to go."""
    page.line(plan.url, "bold")
    rows = [*plan.commits, *plan.leftovers]
    page.facts([("keep", "\n".join(plan.kept)), ("delete", "\n".join(rows) or "nothing")])
    if plan.spared_generation:
        note = f"generation {plan.spared_generation} may still be writing: its backups are kept"
        page.line(note, "yellow")
    if not plan.is_empty:
        page.line(f"{formatting.size(plan.bytes)} to be freed")

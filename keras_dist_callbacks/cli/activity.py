"""Who writes to a directory, and what is left of those who did."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_dist_callbacks.backups.names import blob_generation
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.doctor import Check
from keras_dist_callbacks.cli.inventory import Inventory, orphaned_blobs, stale_owners
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage.storage import Storage

QUIET_SECONDS = 15 * 60.0
_SURELY_DEAD_SECONDS = 12 * 3600.0
_MISSED_BACKUPS = 3


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


_PRUNE = "harmless; `kdc prune --keep 2` deletes them"
_SPACE_FOR_BACKUPS = 3
_LONGEST_UPLOAD_SECONDS = 3600.0


def check_leftovers(inventory: Inventory, life: Liveness) -> list[Check]:
    """Looks for what nothing needs; what a run that is writing may still need does not count."""
    busy = life.generation if life.running else 0
    temporaries = {} if busy else inventory.temporaries
    blobs = {p: size for p, size in orphaned_blobs(inventory).items() if blob_generation(p) != busy}
    owners = stale_owners(inventory)
    found = [
        Check("run", "ok", f"generation {life.generation} seems to be writing: {life.why}")
        if life.running
        else Check("run", "ok", "none seems to be writing"),
        _check_commits(inventory),
        _check("unfinished files", temporaries),
        _check("dangling blobs", blobs),
    ]
    detail = f"{formatting.count(len(owners), 'earlier run')} without any backup left" if owners else "none"
    found.append(Check("idle owner records", "warn" if owners else "ok", detail, _PRUNE if owners else ""))
    return found


def check_uploads(storage: Storage) -> Check | None:
    """Looks for multipart uploads that were never completed, in stores that have such and tell of them."""
    find: Any = getattr(storage, "unfinished_uploads", None)
    if find is None or storage.is_local:
        return None
    name = "unfinished uploads"
    try:
        found = find()
    except (StorageError, OSError) as error:
        return Check(name, "warn", f"they cannot be listed: {error}", "the right to list uploads would show them")
    old = [upload for upload in found if upload.age > _LONGEST_UPLOAD_SECONDS]
    if not old:
        return Check(name, "ok", f"{formatting.count(len(found), 'recent one')}, may go on" if found else "none")
    oldest = formatting.age(max(upload.age for upload in old))
    return Check(
        name,
        "warn",
        f"{len(old)}, the oldest begun {oldest} ago; their parts take space, but are in no listing",
        "set a lifecycle rule on the bucket that aborts incomplete multipart uploads after a day",
    )


def check_space(storage: Storage, inventory: Inventory) -> Check | None:
    """Whether a local disk has room for the next backups."""
    if not storage.is_local:
        return None
    existing = next(path for path in (Path(storage.root), *Path(storage.root).parents) if path.exists())
    free = shutil.disk_usage(existing).free
    manifests = [entry.manifest for entry in inventory.entries if entry.manifest is not None]
    needed = _SPACE_FOR_BACKUPS * sum(blob.size for blob in manifests[-1].blobs) if manifests else 0
    detail = f"{formatting.size(free)} free"
    if free < needed:
        advice = f"{_SPACE_FOR_BACKUPS} backups take {formatting.size(needed)}: free some space"
        return Check("disk space", "warn", detail, advice)
    return Check("disk space", "ok", detail)


def check_checkpoints(storage: Storage) -> Check:
    """Looks for what interrupted writes of checkpoints left; the names are hidden."""
    unfinished = files.unfinished(storage.files())
    if not unfinished:
        return Check("unfinished checkpoints", "ok", "none")
    detail = f"{len(unfinished)}, {formatting.size(sum(unfinished.values()))}"
    return Check("unfinished checkpoints", "warn", detail, "the next run that saves here deletes those of its filepath")


def _check_commits(inventory: Inventory) -> Check:
    damaged = [entry for entry in inventory.entries if entry.state == "damaged"]
    if damaged:
        detail = f"{len(damaged)} of {formatting.count(len(inventory.entries), 'manifest')} cannot be read"
        return Check("backups", "warn", detail, "`kdc verify` tells what is wrong; a run takes the newest whole one")
    if not inventory.entries and inventory.newest_generation in inventory.committed:
        return Check("backups", "warn", "a run has committed here, but no manifest is left", "restore the files")
    if inventory.set_aside:
        detail = f"{formatting.count(len(inventory.set_aside), 'damaged manifest')} in damaged/, set aside by a run"
        return Check("backups", "warn", detail, "look into it, then delete the directory damaged/")
    return Check("backups", "ok", f"{formatting.count(len(inventory.entries), 'manifest')}, readable")


def _check(name: str, found: Mapping[str, int]) -> Check:
    if not found:
        return Check(name, "ok", "none")
    return Check(name, "warn", f"{len(found)}, {formatting.size(sum(found.values()))}", _PRUNE)

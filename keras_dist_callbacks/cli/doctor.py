"""`kdc doctor`: whether a store can hold backups, and what interrupted runs have left in it.

The store is tried out with small objects that are deleted again.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_dist_callbacks.backups.names import blob_generation
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli.inventory import Inventory, Liveness, orphaned_blobs, stale_owners
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.local_files import temporary_name
from keras_dist_callbacks.storage.storage import Storage

_ROUNDS = 5
_RACERS = 8
_OBJECT = b"kdc doctor".ljust(1024)
_SLOW_SECONDS = 1.0
_LISTING_SECONDS = 5.0
_LARGE = 2**20  # bytes
_PRUNE = "harmless; `kdc prune --keep 2` deletes them"
_SPACE_FOR_BACKUPS = 3
_LONGEST_UPLOAD_SECONDS = 3600.0


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: What was checked.
        status: `"ok"`, `"warn"`, `"fail"`, or `"skipped"` because an earlier one failed.
        detail: What was found.
        advice: What to do about it; empty if there is nothing to do.
    """

    name: str
    status: str
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What `kdc doctor` shows."""

    url: str
    checks: tuple[Check, ...]

    @property
    def is_usable(self) -> bool:
        """Whether nothing failed."""
        return all(check.status != "fail" for check in self.checks)


class ScratchObjects:
    """Hands out names for test objects in a directory, and deletes them all in the end."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._names: list[str] = []

    def name(self) -> str:
        """A name that nothing has; it looks like that of an unfinished write, in case this process is killed."""
        self._names.append(temporary_name("doctor"))
        return self._names[-1]

    def clear(self) -> None:
        """Deletes whatever was written under the names."""
        for name in self._names:
            with contextlib.suppress(OSError):
                self.storage.delete(name)


@contextlib.contextmanager
def bench(storage: Storage) -> Iterator[ScratchObjects]:
    """Test objects that are gone afterwards, with the local directories that had to be made for them."""
    made = _missing_directories(storage)
    tools = ScratchObjects(storage)
    try:
        yield tools
    finally:
        tools.clear()
        for directory in made:
            with contextlib.suppress(OSError):  # not empty: somebody else uses it by now
                directory.rmdir()


def run_checks(tools: ScratchObjects) -> list[Check]:
    """Runs every check of the store itself; if it cannot be used at all, only the first."""
    access = check_access(tools)
    if access.status == "fail":
        return [access, *(Check(name, "skipped", "there is no access") for name in _CHECKS)]
    checks = [access]
    for name, check in _CHECKS.items():
        try:
            checks.append(check(tools))
        except (StorageError, OSError) as error:
            checks.append(Check(name, "fail", str(error), "see whether the store is up, then run this again"))
    return checks


def check_access(tools: ScratchObjects) -> Check:
    """Writes, reads and deletes an object, as every run does before its first step."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tools.storage.probe()
    except (StorageError, OSError) as error:
        return Check("access", "fail", str(error), "mend this first; --storage-options go to the store's client")
    if caught:
        return Check("access", "warn", str(caught[0].message), "without deletion, every backup ever written stays")
    return Check("access", "ok", "an object was written, read and deleted")


def check_latency(tools: ScratchObjects) -> Check:
    """Times small requests; a backup makes about a dozen."""
    puts, gets = [], []
    for _ in range(_ROUNDS):
        name = tools.name()
        puts.append(_seconds(lambda name=name: tools.storage.create(name, [_OBJECT])))  # type: ignore[misc]
        gets.append(_seconds(lambda name=name: tools.storage.read(name)))  # type: ignore[misc]
    put, get = statistics.median(puts), statistics.median(gets)
    detail = f"median of {_ROUNDS}: write {_milliseconds(put)}, read {_milliseconds(get)}"
    if max(put, get) > _SLOW_SECONDS:
        return Check("latency", "warn", detail, "slow: use a store in the region of the job, or save less often")
    return Check("latency", "ok", detail)


def check_create(tools: ScratchObjects) -> Check:
    """A name that is taken must be refused: this is what keeps two runs apart."""
    name = tools.name()
    tools.storage.create(name, [b"first"])
    try:
        tools.storage.create(name, [b"second"])
    except FileExistsError:
        if tools.storage.read(name) == b"first":
            return Check("exclusive create", "ok", "a name that is taken is refused")
    return Check("exclusive create", "fail", "an object was overwritten by a create", _UNSAFE)


def check_direct(tools: ScratchObjects) -> Check:
    """Whether blobs of backups go around the page cache, where they do not disturb training."""
    if not tools.storage.is_local:
        return Check("direct writes", "ok", "nothing to try: this is no local directory")
    tools.storage.create(tools.name(), [bytes(_LARGE)])
    if tools.storage.writes_directly:
        return Check("direct writes", "ok", "taken: large files go around the page cache")
    return Check("direct writes", "ok", "refused, or turned off: large files go through the page cache")


def check_race(tools: ScratchObjects) -> Check:
    """Of several writers that create one name at the same time, one must win."""
    name, start = tools.name(), threading.Barrier(_RACERS)

    def race(racer: int) -> int | None:
        start.wait()
        try:
            tools.storage.create(name, [b"racer %d" % racer])
        except FileExistsError:
            return None
        return racer

    with ThreadPoolExecutor(_RACERS) as pool:
        winners = [racer for racer in pool.map(race, range(_RACERS)) if racer is not None]
    if len(winners) == 1 and tools.storage.read(name) == b"racer %d" % winners[0]:
        return Check("racing creates", "ok", f"{_RACERS} at once, one winner")
    return Check("racing creates", "fail", f"{_RACERS} at once, {len(winners)} believe that they have won", _UNSAFE)


def check_replace(tools: ScratchObjects) -> Check:
    """`ModelCheckpoint` may publish a name again; the new content must be what is read."""
    name = tools.name()
    with temporary.directory("doctor") as directory:
        source = directory / "object"
        for content in (b"before", b"after!"):
            source.write_bytes(content)
            tools.storage.replace(name, source)
            if tools.storage.read(name) != content:
                return Check("replace", "fail", "an object that was replaced reads as before", _CACHED)
    return Check("replace", "ok", "new content is read at once")


def check_listing(tools: ScratchObjects) -> Check:
    """What was written must be listed, and what was deleted must not."""
    name = tools.name()
    tools.storage.create(name, [_OBJECT])
    appeared = _wait_until(lambda: _is_listed(tools.storage, name))
    tools.storage.delete(name)
    vanished = _wait_until(lambda: not _is_listed(tools.storage, name))
    for delay, what in ((appeared, "a new object is not listed"), (vanished, "a deleted object is still listed")):
        if delay is None:
            return Check("listings", "fail", f"{what} after {_LISTING_SECONDS:.0f} s", _CACHED)
    slowest = max(appeared or 0.0, vanished or 0.0)
    if slowest > 0:
        return Check("listings", "warn", f"they lag behind by {slowest:.1f} s", _CACHED)
    return Check("listings", "ok", "new and deleted objects show at once")


_UNSAFE = "two runs could mix here: make sure that only one job at a time uses the directory, or use another store"
_CACHED = "something caches: look for a proxy or a mount with a cache, and turn that off"
_CHECKS: dict[str, Callable[[ScratchObjects], Check]] = {
    "latency": check_latency,
    "exclusive create": check_create,
    "racing creates": check_race,
    "direct writes": check_direct,
    "replace": check_replace,
    "listings": check_listing,
}


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
        return Check(name, "ok", f"{formatting.count(len(found), 'recent one')}, may continue" if found else "none")
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


def _is_listed(storage: Storage, name: str) -> bool:
    return any(file.name == name for file in storage.files())


def _wait_until(condition: Callable[[], bool]) -> float | None:
    """Seconds until it holds: 0 if it does at once, None if it does not in time."""
    began = time.monotonic()
    if condition():
        return 0.0
    while time.monotonic() - began < _LISTING_SECONDS:
        time.sleep(0.1)
        if condition():
            return time.monotonic() - began
    return None


def _seconds(operation: Callable[[], object]) -> float:
    began = time.perf_counter()
    operation()
    return time.perf_counter() - began


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < _SLOW_SECONDS else formatting.age(seconds)


def _missing_directories(storage: Storage) -> list[Path]:
    """The local directories on the way that do not exist yet, the innermost first."""
    if not storage.is_local:
        return []
    root = Path(storage.root)
    return [path for path in (root, *root.parents) if not path.exists()]


def _check_commits(inventory: Inventory) -> Check:
    damaged = [entry for entry in inventory.entries if entry.state == "damaged"]
    if damaged:
        detail = f"{len(damaged)} of {formatting.count(len(inventory.entries), 'manifest')} cannot be read"
        return Check("backups", "warn", detail, "`kdc verify` tells what is wrong; a run takes the newest whole one")
    if not inventory.entries and inventory.newest_generation in inventory.committed:
        return Check("backups", "warn", "a run has committed here, but no manifest is left", "restore the files")
    if inventory.set_aside:
        detail = f"{formatting.count(len(inventory.set_aside), 'damaged manifest')} in damaged/, quarantined by a run"
        return Check("backups", "warn", detail, "look into it, then delete the directory damaged/")
    return Check("backups", "ok", f"{formatting.count(len(inventory.entries), 'manifest')}, readable")


def _check(name: str, found: Mapping[str, int]) -> Check:
    if not found:
        return Check(name, "ok", "none")
    return Check(name, "warn", f"{len(found)}, {formatting.size(sum(found.values()))}", _PRUNE)

"""`kdc doctor`: whether a store can hold backups, and what interrupted runs have left in it.

The store is tried out with small objects that are deleted again.
"""

from __future__ import annotations

import collections
import contextlib
import shutil
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import Literal

from rich.text import Text

from keras_dist_callbacks.backups.names import blob_generation
from keras_dist_callbacks.base.errors import BackupMismatchError, StorageError
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.cli import formatting
from keras_dist_callbacks.cli import inventory as inventories
from keras_dist_callbacks.cli.formatting import Cell, Page
from keras_dist_callbacks.cli.inventory import Inventory, Liveness
from keras_dist_callbacks.cli.output import Target
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


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: What was checked.
        status: `"skipped"` if an earlier one failed.
        detail: What was found.
        advice: What to do about it; empty if there is nothing to do.
    """

    name: str
    status: Literal["ok", "warn", "fail", "skipped"]
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


def diagnose(target: Target) -> Diagnosis:
    """Tries out the store, and if it can be used, looks for leftovers."""
    with bench(target.storage) as storage:
        checks = run_checks(storage)
    if checks[0].status != "fail":
        inventory = inventories.take_inventory(target.store)
        checks += check_leftovers(inventory, inventories.liveness(inventory))
        checks += [check_checkpoints(target.storage), check_unfinished_checkpoints(target.storage)]
        checks += [check_space(inventory, target.storage)] if target.storage.is_local else []
    return Diagnosis(target.url, tuple(checks))


@contextlib.contextmanager
def bench(storage: Storage) -> Iterator[Storage]:
    """The directory to try out; local directories that had to be made for it are gone afterwards."""
    root = Path(storage.root)
    missing = [path for path in (root, *root.parents) if not path.exists()] if storage.is_local else []
    try:
        yield storage
    finally:
        for directory in missing:
            with contextlib.suppress(OSError):  # not empty: another process uses it by now
                directory.rmdir()


@contextlib.contextmanager
def scratch(storage: Storage) -> Iterator[str]:
    """A name that nothing has; what is written under it is deleted afterwards.

    It looks like that of an unfinished write, in case this process is killed.
    """
    name = temporary_name("doctor")
    try:
        yield name
    finally:
        with contextlib.suppress(OSError):
            storage.delete(name)


def run_checks(storage: Storage) -> list[Check]:
    """Runs every check of the store itself; if it cannot be used at all, only the first."""
    checks = [check_access(storage)]
    for name, check in _CHECKS.items():
        if checks[0].status == "fail":
            checks.append(Check(name, "skipped", "no access"))
            continue
        try:
            checks.append(check(storage))
        except (StorageError, OSError) as error:
            checks.append(Check(name, "fail", str(error), "check that the store is up, then run this again"))
    return checks


def check_access(storage: Storage) -> Check:
    """Writes, reads and deletes an object, as every run does before its first step."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            storage.probe()
    except (StorageError, OSError) as error:
        return Check("access", "fail", str(error), "fix this first; --storage-options go to the store's client")
    if caught:
        return Check("access", "warn", str(caught[0].message), "without deletion, every backup ever written stays")
    return Check("access", "ok", "an object was written, read and deleted")


def check_latency(storage: Storage) -> Check:
    """Times small requests; a backup makes about a dozen."""
    puts, gets = [], []
    for _ in range(_ROUNDS):
        with scratch(storage) as name:
            puts.append(timeit(partial(storage.create, name, [_OBJECT]), number=1))
            gets.append(timeit(partial(storage.read, name), number=1))
    put, get = statistics.median(puts), statistics.median(gets)
    detail = f"median of {_ROUNDS}: write {_milliseconds(put)}, read {_milliseconds(get)}"
    if max(put, get) > _SLOW_SECONDS:
        return Check("latency", "warn", detail, "slow: use a store in the region of the job, or save less often")
    return Check("latency", "ok", detail)


def check_create(storage: Storage) -> Check:
    """A name that is taken must be refused: this is what keeps two runs apart."""
    with scratch(storage) as name:
        storage.create(name, [b"first"])
        try:
            storage.create(name, [b"second"])
        except FileExistsError:
            if storage.read(name) == b"first":
                return Check("exclusive create", "ok", "creating a name that exists is refused")
    return Check("exclusive create", "fail", "an object was overwritten by a create", _UNSAFE)


def check_direct(storage: Storage) -> Check:
    """Whether blobs of backups go around the page cache, where they do not disturb training."""
    if not storage.is_local:
        return Check("direct writes", "ok", "not applicable: this is not a local directory")
    with scratch(storage) as name:
        storage.create(name, [bytes(_LARGE)])
    if storage.writes_directly:
        return Check("direct writes", "ok", "supported: large files bypass the page cache")
    return Check("direct writes", "ok", "not supported, or turned off: large files use the page cache")


def check_race(storage: Storage) -> Check:
    """Of several writers that create one name at the same time, one must win."""
    start = threading.Barrier(_RACERS)
    winners: list[bytes] = []

    def race(content: bytes) -> None:
        start.wait()
        with contextlib.suppress(FileExistsError):
            storage.create(name, [content])
            winners.append(content)

    with scratch(storage) as name, ThreadPoolExecutor(_RACERS) as pool:
        list(pool.map(race, [b"racer %d" % number for number in range(_RACERS)]))
        if len(winners) == 1 and storage.read(name) == winners[0]:
            return Check("racing creates", "ok", f"{_RACERS} at once, one succeeded")
    return Check("racing creates", "fail", f"{_RACERS} at once, {len(winners)} succeeded", _UNSAFE)


def check_replace(storage: Storage) -> Check:
    """`ModelCheckpoint` may publish a name again; the new content must be what is read."""
    with scratch(storage) as name, temporary.directory("doctor") as directory:
        source = directory / "object"
        for content in (b"before", b"after!"):
            with temporary.writing("an object for the store", len(content), directory):
                source.write_bytes(content)
            storage.replace(name, source)
            if storage.read(name) != content:
                return Check("replace", "fail", "reading an object that was replaced returns the old content", _CACHED)
    return Check("replace", "ok", "new content is read at once")


def check_listing(storage: Storage) -> Check:
    """What was written must be listed, and what was deleted must not."""
    with scratch(storage) as name:
        storage.create(name, [_OBJECT])
        appeared = _seconds_until(storage, name, listed=True)
        storage.delete(name)
        vanished = _seconds_until(storage, name, listed=False)
    for delay, what in ((appeared, "a new object is not listed"), (vanished, "a deleted object is still listed")):
        if delay is None:
            return Check("listings", "fail", f"{what} after {_LISTING_SECONDS:.0f} s", _CACHED)
    slowest = max(appeared or 0.0, vanished or 0.0)
    if slowest > 0:
        return Check("listings", "warn", f"they are {slowest:.1f} s late", _CACHED)
    return Check("listings", "ok", "new and deleted objects are seen at once")


_UNSAFE = (
    "two runs could overwrite each other's files here: make sure that only one job at a time uses the "
    "directory, or use another store"
)
_CACHED = "there is a cache: turn off that of the proxy, the mount or the client"
_CHECKS: dict[str, Callable[[Storage], Check]] = {
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
    blobs = [size for path, size in inventories.orphaned_blobs(inventory).items() if blob_generation(path) != busy]
    owners = len(inventories.stale_owners(inventory))
    idle = f"{formatting.count(owners, 'earlier run')} without any backup left" if owners else ""
    writing = f"generation {life.generation} may still be writing: {life.why}"
    return [
        Check("run", "ok", writing if life.running else "none seems to be running"),
        _check_commits(inventory),
        _none_or("unfinished files", formatting.sum_of_sizes(temporaries.values()), _PRUNE),
        _none_or("dangling blobs", formatting.sum_of_sizes(blobs), _PRUNE),
        _none_or("idle owner records", idle, _PRUNE),
    ]


def check_space(inventory: Inventory, storage: Storage) -> Check:
    """Whether a local disk has space for the next backups."""
    root = Path(storage.root)
    free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
    manifests = [entry.manifest for entry in inventory.entries if entry.manifest is not None]
    needed = _SPACE_FOR_BACKUPS * sum(blob.size for blob in manifests[-1].blobs) if manifests else 0
    detail = f"{formatting.size(free)} free"
    if free < needed:
        advice = f"{_SPACE_FOR_BACKUPS} backups take {formatting.size(needed)}: free some space"
        return Check("disk space", "warn", detail, advice)
    return Check("disk space", "ok", detail)


def check_checkpoints(storage: Storage) -> Check:
    """Whether the records of the checkpoints are intact, as `kdc ls` judges them."""
    try:
        found = files.find(storage)
    except BackupMismatchError as error:
        return Check("checkpoints", "warn", str(error))
    if found.problems:
        advice = "`kdc ls` names each of them; a run takes the newest intact one"
        return Check("checkpoints", "fail", f"{len(found.problems)} damaged: {found.problems[0]}", advice)
    return _none_damaged("checkpoint", len(found.checkpoints))


def check_unfinished_checkpoints(storage: Storage) -> Check:
    """Looks for what interrupted writes of checkpoints left; the names are hidden."""
    found = formatting.sum_of_sizes(files.unfinished(storage.files()).values())
    return _none_or("unfinished checkpoints", found, "the next run that saves here deletes those of its filepath")


def _seconds_until(storage: Storage, name: str, *, listed: bool) -> float | None:
    """Seconds until an object is listed or not: 0 if it is so at once, None if it is not in time."""
    began = time.monotonic()
    delay = 0.0
    while any(file.name == name for file in storage.files()) != listed:
        if delay >= _LISTING_SECONDS:
            return None
        time.sleep(0.1)
        delay = time.monotonic() - began
    return delay


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < _SLOW_SECONDS else formatting.age(seconds)


def _check_commits(inventory: Inventory) -> Check:
    backups = formatting.count(len(inventory.entries), "backup")
    damaged = [entry for entry in inventory.entries if entry.state == "damaged"]
    if damaged:
        newest = damaged[-1]
        detail = f"{len(damaged)} of {backups} damaged, the newest of them {newest.id.label}: {newest.problem}"
        return Check("backups", "fail", detail, "`kdc ls` names each of them; a run takes the newest intact one")
    if not inventory.entries and inventory.newest_generation in inventory.committed:
        return Check("backups", "warn", "a run has committed here, but no manifest is left", "restore the files")
    if inventory.set_aside:
        detail = f"{formatting.count(len(inventory.set_aside), 'damaged manifest')} in damaged/, quarantined by a run"
        return Check("backups", "warn", detail, "inspect them, then delete the directory damaged/")
    return _none_damaged("backup", len(inventory.entries))


def _none_damaged(what: str, number: int) -> Check:
    detail = f"{formatting.count(number, what)}, none damaged; `kdc verify` reads their contents"
    return Check(f"{what}s", "ok", detail if number else "none")


def _none_or(name: str, found: str, advice: str) -> Check:
    return Check(name, "warn", found, advice) if found else Check(name, "ok", "none")


def show_diagnosis(page: Page, diagnosis: Diagnosis) -> None:
    """Prints what `kdc doctor` shows."""
    page.line(diagnosis.url, "bold")
    counts = collections.Counter(check.status for check in diagnosis.checks)
    rows: list[tuple[Cell, ...]] = []
    for check in diagnosis.checks:
        if check.status != "skipped":
            rows.append((check.name, formatting.styled(check.status), check.detail))
        if check.advice:
            rows.append(("", "", Text(check.advice, style="italic")))
    page.facts(rows)
    if counts["skipped"]:
        page.line(f"  the other {counts['skipped']} checks were skipped", "dim")
    verdict = "backups work here" if diagnosis.is_usable else f"{formatting.count(counts['fail'], 'check')} failed"
    remarks = f", {formatting.count(counts['warn'], 'remark')}" if counts["warn"] else ""
    page.line(verdict + remarks, "green" if diagnosis.is_usable else "bold red")

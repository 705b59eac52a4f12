"""`kdc doctor`: whether a store can hold backups, and what is wrong in it or needed by nothing.

The store is tried out with small objects that are deleted again. What backups, checkpoints and leftovers are, `kdc ls`
and `kdc prune` judge.
"""

from __future__ import annotations

import collections
import contextlib
import shutil
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import Literal

from rich.text import Text

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.errors import BackupMismatchError, StorageError
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.cli import formatting, upkeep
from keras_dist_callbacks.cli import inventory as inventories
from keras_dist_callbacks.cli.formatting import Cell, Page
from keras_dist_callbacks.cli.inventory import Inventory
from keras_dist_callbacks.cli.output import Target
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.local_files import temporary_name
from keras_dist_callbacks.storage.storage import Storage

_ROUNDS = 5
_RACERS = 8
_OBJECT = b"kdc doctor".ljust(1024)
_SLOW_SECONDS = 1.0
_LISTING_SECONDS = 5.0
_SPACE_FOR_BACKUPS = 3
_UNSAFE = (
    "two runs could overwrite each other's files here: make sure that only one job at a time uses the "
    "directory, or use another store"
)
_CACHED = "there is a cache: turn off that of the proxy, the mount or the client"


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: What was checked.
        status: `"fail"`: backups do not work here, or some are damaged.
        detail: What was found.
        advice: What to do about it; empty if there is nothing to do.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
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
    """Tries out the store, and if it can be used, looks at what is in it."""
    with bench(target.storage) as storage:
        checks = [check_access(storage)]
        can_be_used = checks[0].status != "fail"
        for name, check in _CHECKS.items() if can_be_used else ():
            try:
                checks.append(check(storage))
            except (StorageError, OSError) as error:
                checks.append(Check(name, "fail", str(error), "check that the store is up, then run this again"))
    if can_be_used:
        checks += check_content(target)
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
    detail = f"median of {_ROUNDS}: write {1000 * put:.1f} ms, read {1000 * get:.1f} ms"
    if max(put, get) > _SLOW_SECONDS:
        return Check("latency", "warn", detail, "slow: use a store in the region of the job, or save less often")
    return Check("latency", "ok", detail)


def check_create(storage: Storage) -> Check:
    """Of several writers that create one name at the same time, one must win: this is what keeps two runs apart."""
    start = threading.Barrier(_RACERS)
    winners: list[bytes] = []

    def create(content: bytes) -> None:
        with contextlib.suppress(FileExistsError):
            storage.create(name, [content])
            winners.append(content)

    def race(content: bytes) -> None:
        start.wait()
        create(content)

    with scratch(storage) as name, ThreadPoolExecutor(_RACERS) as pool:
        list(pool.map(race, [b"racer %d" % number for number in range(_RACERS)]))
        create(b"late")
        if len(winners) == 1 and storage.read(name) == winners[0]:
            return Check("exclusive create", "ok", f"{_RACERS} at once and a late one, one succeeded")
    found = f"{_RACERS} at once and a late one, {len(winners)} succeeded"
    return Check("exclusive create", "fail", found, _UNSAFE)


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
    slowest = 0.0
    with scratch(storage) as name:
        for act, what, listed in (
            (partial(storage.create, name, [_OBJECT]), "a new object is not listed", True),
            (partial(storage.delete, name), "a deleted object is still listed", False),
        ):
            act()
            delay = _seconds_until(storage, name, listed=listed)
            if delay is None:
                return Check("listings", "fail", f"{what} after {_LISTING_SECONDS:.0f} s", _CACHED)
            slowest = max(slowest, delay)
    if slowest > 0:
        return Check("listings", "warn", f"they are {slowest:.1f} s late", _CACHED)
    return Check("listings", "ok", "new and deleted objects are seen at once")


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


_CHECKS: dict[str, Callable[[Storage], Check]] = {
    "latency": check_latency,
    "exclusive create": check_create,
    "replace": check_replace,
    "listings": check_listing,
}


def check_content(target: Target) -> list[Check]:
    """Names what `kdc ls` calls damaged, and what `kdc prune` would delete if all backups stayed."""
    storage, inventory = target.storage, inventories.take_inventory(target.store)
    life = inventories.liveness(inventory)
    plan = upkeep.plan_prune(target.url, inventory, inventory.entries)
    writing = f"generation {life.generation} may still be writing: {life.why}"
    half_written = formatting.sum_of_sizes(files.unfinished(storage.files()).values(), "file")
    return [
        Check("run", "ok", writing if life.running else "none seems to be running"),
        check_backups(target.store, inventory),
        check_checkpoints(storage),
        _none_or("leftovers", "; ".join(plan.leftovers), "harmless; `kdc prune --keep 2` deletes them"),
        _none_or("unfinished checkpoints", half_written, "the next run that saves here deletes those of its filepath"),
        *([check_space(inventory, storage)] if storage.is_local else []),
    ]


def check_backups(store: BackupStore, inventory: Inventory) -> Check:
    """Whether `kdc ls` calls any damaged, and whether runs have set some aside."""
    entries, aside = inventory.entries, inventories.set_aside_in_words(len(inventory.set_aside))
    if not entries and store.has_committed(inventory.newest_generation):
        return Check("backups", "warn", store.why_no_backup(), "restore the files")
    if aside and all(entry.state != "damaged" for entry in entries):
        return Check("backups", "warn", aside, "inspect them, then delete the directory damaged/")
    return _intact("backup", len(entries), [entry.problem for entry in reversed(entries) if entry.state == "damaged"])


def check_checkpoints(storage: Storage) -> Check:
    """Whether `kdc ls` calls any damaged."""
    try:
        found = files.find(storage)
    except BackupMismatchError as error:
        return Check("checkpoints", "warn", str(error))
    return _intact("checkpoint", len(found.checkpoints), found.problems)


def check_space(inventory: Inventory, storage: Storage) -> Check:
    """Whether a local disk has space for the next backups."""
    root = Path(storage.root)
    free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
    sizes = [upkeep.work([entry]) for entry in inventory.entries if entry.manifest is not None]
    needed = _SPACE_FOR_BACKUPS * sizes[-1] if sizes else 0
    advice = f"{_SPACE_FOR_BACKUPS} backups take {formatting.size(needed)}: free some space" if free < needed else ""
    return Check("disk space", "warn" if advice else "ok", f"{formatting.size(free)} free", advice)


def _intact(what: str, number: int, problems: Sequence[object]) -> Check:
    if problems:
        advice = "`kdc ls` names each of them; a run takes the newest intact one"
        return Check(f"{what}s", "fail", f"{len(problems)} damaged: {problems[0]}", advice)
    detail = f"{formatting.count(number, what)}, none damaged; `kdc verify` reads their contents"
    return Check(f"{what}s", "ok", detail if number else "none")


def _none_or(name: str, found: str, advice: str) -> Check:
    return Check(name, "warn", found, advice) if found else Check(name, "ok", "none")


def show_diagnosis(page: Page, diagnosis: Diagnosis) -> None:
    """Prints what `kdc doctor` shows."""
    page.line(diagnosis.url, "bold")
    rows: list[tuple[Cell, ...]] = []
    for check in diagnosis.checks:
        rows.append((check.name, formatting.styled(check.status), check.detail))
        if check.advice:
            rows.append(("", "", Text(check.advice, style="italic")))
    page.facts(rows)
    counts = collections.Counter(check.status for check in diagnosis.checks)
    verdict = "backups work here" if diagnosis.is_usable else f"{formatting.count(counts['fail'], 'check')} failed"
    remarks = f", {formatting.count(counts['warn'], 'remark')}" if counts["warn"] else ""
    page.line(verdict + remarks, "green" if diagnosis.is_usable else "bold red")

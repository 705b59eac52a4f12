"""Owner records: who may write into a backup directory, since when, and who made the directory."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Annotated

import msgspec

from keras_dist_callbacks.backups import records
from keras_dist_callbacks.backups.names import COMMITS, MOST_GENERATIONS, OWNERS, owner_generation, owner_name
from keras_dist_callbacks.backups.snapshot import JSON
from keras_dist_callbacks.errors import BackupError, DamagedBackupError, FencedError
from keras_dist_callbacks.storage.storage import Storage

_TRIES = 100  # numbers that a listing may fail to show, or that other runs may take meanwhile
Label = Annotated[str, msgspec.Meta(max_length=255)]
Token = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Owner(msgspec.Struct):
    """What an owner record tells, as far as anything depends on it.

    Attributes:
        claimed: When it took the directory, in seconds since 1970; None if the record does not say.
        made_directory: Whether this run, or one before it, made the directory. In records of older versions: no.
        by: What claimed it: `BackupAndRestore` or `Checkpointer`; None in records of older versions, as what follows.
        script: The name of the program's file.
        host: The name of the chief's computer.
        pid: The chief's process.
    """

    claimed: records.Time | None = None
    token: Token | None = None
    made_directory: bool = False
    by: Label | None = None
    script: Label | None = None
    host: Label | None = None
    pid: records.Count | None = None

    def __post_init__(self) -> None:
        records.require_time(self.claimed)

    def __str__(self) -> str:
        """Who claimed the directory, as far as the record says."""
        process = None if self.pid is None else f"process {self.pid}"
        host = None if self.host is None else f"on {self.host}"
        return ", ".join(filter(None, [self.by, self.script, process, host, self._since()]))

    def _since(self) -> str | None:
        try:
            claimed = datetime.datetime.fromtimestamp(self.claimed or 0, datetime.UTC)
        except (ValueError, OverflowError):
            return None
        return f"since {claimed:%Y-%m-%d %H:%M:%S} UTC" if self.claimed else None


def generations(storage: Storage) -> list[int]:
    """Those that have an owner record."""
    found = (owner_generation(file.name) for file in storage.files(OWNERS))
    return [generation for generation in found if generation is not None]


def write_owner(info: Mapping[str, JSON], *, made_directory: bool) -> bytes:
    """An owner record, unlike any other.

    Args:
        info: What it tells about the run.
        made_directory: As in `Owner`.
    """
    process = {"script": os.path.basename(sys.argv[0])[:255], "host": platform.node()[:255], "pid": os.getpid()}  # noqa: PTH119 - not a path
    claim = {"token": uuid.uuid4().hex, "claimed": time.time(), "made_directory": made_directory}
    return json.dumps({**info, **process, **claim}).encode()


def take_next(storage: Storage, newest: int, content: bytes) -> int:
    """Creates the owner record with the next free number, and returns the number.

    A number that is taken although the listing did not show it is either that of another run that is starting, or the
    listing is stale. So the search counts up from it instead of asking for another listing.

    Args:
        storage: The backup directory.
        newest: The largest number that its listings show.
        content: Of the record.

    Raises:
        BackupError: All numbers that were tried are taken, or they are too large for the number of runs of any job.
    """
    for generation in range(newest + 1, newest + 1 + _TRIES):
        if generation >= MOST_GENERATIONS:
            raise BackupError(
                f"{storage.display()} appears to be the directory of {generation - 1} runs, which is impossible; give "
                f"another directory, or delete the files with too large numbers in {OWNERS}/ and {COMMITS}/"
            )
        try:
            storage.create(owner_name(generation), [content])
        except FileExistsError:
            continue
        return generation
    raise BackupError(
        f"{storage.display(OWNERS)}: the listings of this store are not consistent: the newest record in them is "
        f"{newest}, but {owner_name(newest + 1)} to {owner_name(newest + _TRIES)} exist too. Turn off the cache for "
        "listings (in the store's client, a proxy or the mount), or give another directory"
    )


def check(storage: Storage, newest: int, generation: int, claim: bytes) -> None:
    """Makes sure that a run still owns its directory.

    Args:
        storage: The backup directory.
        newest: The largest number that its listings show.
        generation: The run's number.
        claim: The content of the run's record.

    Raises:
        FencedError: It does not.
    """
    if newest > generation:
        raise _fenced(storage, newest, f"generation {newest}, this run is {generation}")
    try:
        record = storage.read(owner_name(generation), 0, len(claim) + 1)
    except FileNotFoundError:
        record = b""
    if not record and not newest:
        raise _gone(storage)
    if not record:  # a newer run deleted its backup at its end, and the one after it started to count from 1
        raise _fenced(storage, newest, f"generation {newest}, this run is {generation}, and a backup was deleted since")
    if record != claim:
        raise _fenced(storage, generation, f"which has the number {generation} too, after a backup was deleted")


def _fenced(storage: Storage, newest: int, how: str) -> FencedError:
    owner = str(read_owner(storage, newest))
    return FencedError(
        f"{storage.display()} was taken over by a newer run ({how}); this run must stop."
        f"{f' The newer run: {owner}.' if owner else ''} Give each run a directory of its own. A script that only "
        "reads a backup, such as an evaluation, must use kdc.load_backup: BackupAndRestore and Checkpointer.restore() "
        "take the directory over"
    )


def _gone(storage: Storage) -> FencedError:
    failure = FencedError(
        f"{storage.display()} was deleted or renamed during the run; nothing is saved there any more: the directory "
        "holds no backup of this run. If it was renamed, rename it back before you start the job again. (A newer run "
        "that ends and deletes its backup leaves the directory like this too)"
    )
    failure.nothing_left = True
    return failure


def read_owner(storage: Storage, generation: int) -> Owner:
    """What a record tells; nothing if it is gone or damaged: it rules by its name alone."""
    name = owner_name(generation)
    where = storage.display(name)
    try:
        found: Owner = records.checked(records.parse(records.read(storage, name), where), Owner, where)
    except (FileNotFoundError, DamagedBackupError):
        return Owner()
    return found

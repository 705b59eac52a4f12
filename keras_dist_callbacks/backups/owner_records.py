"""Owner records: who may write into a directory, since when, and who made the directory."""

from __future__ import annotations

import datetime
import math
import os
import platform
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from keras_dist_callbacks.backups import record_io
from keras_dist_callbacks.backups.names import OWNERS, owner_generation, owner_name
from keras_dist_callbacks.backups.record_io import Format
from keras_dist_callbacks.backups.snapshot import JSON, CommitId
from keras_dist_callbacks.base import machine
from keras_dist_callbacks.base.errors import BackupError, BackupMismatchError, DamagedBackupError, FencedError
from keras_dist_callbacks.storage.storage import Storage

_TRIES = 100  # numbers that a listing may fail to show, or that other runs may take meanwhile
Label = Annotated[str, msgspec.Meta(max_length=255)]
Token = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class OwnerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who claimed a backup directory, or the checkpoints of one template in a directory.

    Attributes:
        claimed: When, in seconds since 1970.
        token: Distinguishes this record from every other.
        made_directory: Whether this run, or one before it, made the directory.
        by: `BackupAndRestore`, `Checkpointer` or `ModelCheckpoint`.
        script: The name of the program's file.
        host: The name of the chief's computer.
        pid: The chief's process.
        info: The run, as in its manifests.
        namespace: The processes among which `pid` and `began` mean something; None if not known.
        began: When the process began, in clock ticks since the boot; None if not known.
        rolled_back_to: For a rollback, the file name of the manifest that is the newest from then on; empty: none is.
        rolled_back_from: For a rollback, the label of the newest one before.
        undoes: For the end of a rollback, its generation.
    """

    claimed: record_io.Time
    token: Token
    made_directory: bool
    by: Label
    script: Label
    host: Label
    pid: record_io.Count
    info: dict[str, JSON]
    namespace: Label | None = None
    began: record_io.Count | None = None
    rolled_back_to: Label | None = None
    rolled_back_from: Label = ""
    undoes: record_io.Count | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.claimed):  # NaN is neither below a bound nor above one
            raise ValueError(f"{self.claimed} is not a time")

    def takes_back(self, commit: CommitId, generation: int) -> bool:
        """Whether it is a rollback, and a commit came after what it went back to.

        Args:
            commit: The commit.
            generation: That of this record.
        """
        if self.rolled_back_to is None or commit.generation >= generation:
            return False
        target = CommitId.parse(self.rolled_back_to)
        return target is None or commit > target

    def __str__(self) -> str:
        claimed = datetime.datetime.fromtimestamp(self.claimed, datetime.UTC)
        since = f"since {claimed:%Y-%m-%d %H:%M:%S} UTC"
        return ", ".join(filter(None, [self.by, self.script, f"process {self.pid}", f"on {self.host}", since]))

    @property
    def is_of_rollback(self) -> bool:
        """Whether it is that of a rollback, or of the end of one."""
        return self.rolled_back_to is not None or self.undoes is not None

    @property
    def has_ended(self) -> bool:
        """Whether the process is known to have ended; on another machine or in another container, nothing is known.

        One that has rolled back writes no more.
        """
        if self.is_of_rollback:
            return True
        return self._is_of_this_machine and machine.has_ended(self.pid, self.began or 0)

    @property
    def runs_here(self) -> bool:
        """Whether the process is known to run on this machine."""
        return self._is_of_this_machine and not self.has_ended

    @property
    def _is_of_this_machine(self) -> bool:
        if self.began is None or self.namespace is None:
            return False
        here = _host(), machine.process_namespace()  # copies of a virtual machine share all but the name
        return (self.host, self.namespace) == here


OWNER = Format("keras_dist_callbacks owner", 1, OwnerRecord)


def generations(storage: Storage) -> list[int]:
    """Returns those that have an owner record."""
    found = (owner_generation(file.name) for file in storage.files(OWNERS))
    return [generation for generation in found if generation is not None]


def describe_owner(info: Mapping[str, JSON], by: str, *, made_directory: bool, **of_rollback: Any) -> bytes:
    """Returns an owner record of this process; no two are equal.

    Args:
        info: The run, as in its manifests.
        by: What claims the directory.
        made_directory: As in `OwnerRecord`.
        **of_rollback: Likewise.
    """
    script, host = os.path.basename(sys.argv[0])[:255], _host()  # noqa: PTH119 - not a path
    pid, token = os.getpid(), uuid.uuid4().hex
    identity = machine.process_namespace(), machine.process_began(pid)
    owner = OwnerRecord(time.time(), token, made_directory, by, script, host, pid, dict(info), *identity, **of_rollback)
    return OWNER.encode(owner)


def _host() -> str:
    return platform.node()[:255]


def take_next(storage: Storage, newest: int, content: bytes) -> int:
    """Creates the owner record with the next free number, and returns the number.

    A number that is taken although the listing did not show it is either that of another run that is starting, or the
    listing is stale. So the search counts up from it instead of asking for another listing.

    Args:
        storage: The backup directory.
        newest: The largest number that its listings show.
        content: Of the record.

    Raises:
        BackupError: All numbers that were tried are taken.
    """
    for generation in range(newest + 1, newest + 1 + _TRIES):
        try:
            storage.create(owner_name(generation), [content])
        except FileExistsError:
            continue
        return generation
    raise BackupError(
        f"{storage.display(OWNERS)}: the listings of this store are not consistent: the newest record in them is "
        f"{newest}, but {owner_name(newest + 1)} to {owner_name(newest + _TRIES)} exist too. Turn off the cache for "
        "listings (in the store's client, a proxy or the mount), or use another directory"
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
        record = storage.read(owner_name(generation), 0, len(claim) + 1)  # one more: a longer record differs, too
    except FileNotFoundError:
        record = b""
    if not record and not newest:
        failure = FencedError(
            f"{storage.display()} was deleted or renamed during the run; nothing is saved there any more: the "
            "directory holds no backup of this run. If it was renamed, rename it back before you start the job again. "
            "(A newer run that ends and deletes its backup leaves the directory like this too)"
        )
        failure.nothing_left = True
        raise failure
    if not record:  # a newer run deleted its backup at its end, and the one after it started to count from 1
        raise _fenced(storage, newest, f"generation {newest}, this run is {generation}, and a backup was deleted since")
    if record != claim:
        raise _fenced(storage, generation, f"which has the number {generation} too, after a backup was deleted")


def _fenced(storage: Storage, newest: int, how: str) -> FencedError:
    owner = read_owner(storage, newest)
    if owner is not None and owner.rolled_back_to is not None:
        target = CommitId.parse(owner.rolled_back_to)
        return FencedError(
            f"{storage.display()} was rolled back to {'its start' if target is None else target.label}: what this run "
            "has trained since does not count any more, and it must stop. Start the job again to continue from there"
        )
    who = f" The newer run: {owner}." if owner is not None else ""
    return FencedError(
        f"{storage.display()} was taken over by a newer run ({how}); this run must stop."
        f"{who} Give each run a directory of its own. A script that only "
        "reads a backup, such as an evaluation, must use kdc.load_backup: BackupAndRestore and Checkpointer.restore() "
        "take the directory over"
    )


def read_owner(storage: Storage, generation: int) -> OwnerRecord | None:
    """Returns an owner record; None if it is gone or damaged, which does not matter: the generation is in its name."""
    return read(storage, owner_name(generation))


def read(storage: Storage, name: str) -> OwnerRecord | None:
    """Returns an owner record; None if it is gone, damaged, or was written by a newer version of this package."""

    def decode() -> OwnerRecord:
        return OWNER.decode(record_io.read(storage, name), storage.display(name))

    try:
        return record_io.read_verified(storage, name, decode)
    except (FileNotFoundError, DamagedBackupError, BackupMismatchError):
        return None

"""The plan of a rehearsal, which shortens training only while the command that made it holds the plan's lock.

The environment variable `KDC_REHEARSAL` names the plan. A variable that was left in a shell or in the manifest
of a job must never shorten real training: where it is set and the plan is not in force, the first object of this
package that would save raises an error, and so does `fit()`.

The lock is `flock`'s: the kernel releases it when the command ends, however it ends, and a child that the command
starts does not inherit it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError

VARIABLE = "KDC_REHEARSAL"

Kill = Literal["backup", "steps", "validation", "end"]
"""Where a process kills itself.

Right after a backup of the second epoch is committed; two steps after a backup of this process in that epoch; after the
first batch of a validation; after the last epoch, before the end of fit().
"""

_MOST_BYTES = 2**16
_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the processes of one run do differently.

    Attributes:
        scratch: The directory or URL that everything is written to which the script would save.
        records: The local directory that each process writes its records to.
        copy: The local directory that holds the copy of the working directory; empty where the real one is used.
        steps: Batches per epoch and per validation, at most.
        epochs: Epochs per fit(), at most.
        kill: Where the first fit() of the process ends; None: nowhere.
        version: Of this format.
        began: When the rehearsal began, in seconds since 1970.
    """

    scratch: Annotated[str, msgspec.Meta(min_length=1)]
    records: Annotated[str, msgspec.Meta(min_length=1)]
    copy: str
    steps: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    epochs: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    version: Literal[1]
    began: float
    kill: Kill | None = None


@contextlib.contextmanager
def published(path: Path, plan: Plan) -> Iterator[None]:
    """A plan in a new file, in force for the block.

    Args:
        path: The file, which does not exist yet.
        plan: What it says.

    Raises:
        OSError: The file cannot be written, or its file system has no locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, msgspec.json.encode(plan))
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def plan_in_force() -> Plan | None:
    """The plan of the rehearsal that this process is part of; None in every other process.

    Raises:
        ConfigError: The variable names a plan that is not in force.
    """
    named = os.environ.get(VARIABLE)
    return _read(named) if named else None


def _read(named: str) -> Plan:
    if not Path(named).is_absolute():
        raise _not_in_force("it is not the absolute path of a plan")
    try:
        descriptor = os.open(named, os.O_RDONLY | os.O_NONBLOCK | _NO_FOLLOW)
    except (OSError, ValueError) as error:
        why = f"it cannot be opened ({getattr(error, 'strerror', None) or error}): the command that made it has ended"
        raise _not_in_force(why) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _not_in_force("it is not a file")
        if found.st_uid != os.geteuid():
            raise _not_in_force(
                f"it belongs to another user (user id {found.st_uid}; this process runs as {os.geteuid()})"
            )
        if found.st_mode & _OTHERS:
            raise _not_in_force("other users may read or write it")
        # The command that made it must hold the lock. A shared one is asked for, so that two processes that ask at the
        # same time do not take each other for the command.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                raise _not_in_force(f"whether it is locked cannot be found out ({error.strerror})") from error
        else:
            raise _not_in_force("the command that made it has ended")
        content = os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
    try:
        plan: Plan = validation.convert(json.loads(content), Plan)
    except (ValueError, RecursionError) as error:
        raise _not_in_force("it is not complete, or not one of this version") from error
    return plan


def _not_in_force(why: str) -> ConfigError:
    return ConfigError(
        f"{VARIABLE}={validation.format_value(os.environ.get(VARIABLE))} is set, but this plan of `kdc rehearse` is "
        f"not in force: {why}. It would cut training short, so nothing is trained: remove {VARIABLE} from the "
        "environment of this job"
    )

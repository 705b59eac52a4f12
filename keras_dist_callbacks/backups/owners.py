"""Owner records: who may write into a backup directory, since when, and who made the directory."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Annotated

import msgspec

from keras_dist_callbacks.backups import records
from keras_dist_callbacks.backups.names import OWNERS, owner_generation, owner_name
from keras_dist_callbacks.backups.snapshot import JSON
from keras_dist_callbacks.errors import DamagedBackupError
from keras_dist_callbacks.storage.storage import Storage

Token = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Owner(msgspec.Struct):
    """What an owner record tells, as far as anything depends on it.

    Attributes:
        claimed: When it took the directory, in seconds since 1970; None if the record does not say.
        made_directory: Whether this run, or one before it, made the directory. In records of older versions: no.
    """

    claimed: records.Time | None = None
    token: Token | None = None
    made_directory: bool = False

    def __post_init__(self) -> None:
        records.require_time(self.claimed)


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
    body = {**info, "token": uuid.uuid4().hex, "claimed": time.time(), "made_directory": made_directory}
    return json.dumps(body).encode()


def read_owner(storage: Storage, generation: int) -> Owner:
    """What a record tells; nothing if it is gone or damaged: it rules by its name alone."""
    name = owner_name(generation)
    where = storage.display(name)
    try:
        found: Owner = records.checked(records.parse(records.read(storage, name), where), Owner, where)
    except (FileNotFoundError, DamagedBackupError):
        return Owner()
    return found

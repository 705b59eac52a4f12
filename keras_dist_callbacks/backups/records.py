"""What each JSON record in a store and each message between workers looks like, checked whole before it is used.

A seal proves that a record was not changed by accident. It does not prove that somebody sensible wrote it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import msgspec

from keras_dist_callbacks import schemas
from keras_dist_callbacks.backups import names
from keras_dist_callbacks.errors import DamagedBackupError
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage

MAX_MANIFEST_BYTES = 2**28
MAX_RECORD_BYTES = 2**20
_BYTES_PER_VALUE = 32  # of ours, at least; a value takes about twice as many as an object in memory

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""How many, or how many bytes: every JSON reader has such integers."""

Generation = Annotated[int, msgspec.Meta(ge=1, lt=names.MOST_GENERATIONS)]
Sequence = Annotated[int, msgspec.Meta(ge=0, lt=10**12)]
Token = Annotated[str, msgspec.Meta(pattern=rf"^{names.RANDOM}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=rf"^{names.HASH}\Z")]
Time = Annotated[float, msgspec.Meta(ge=0, le=2**40)]
"""Seconds since 1970."""


def require_time(value: float | None) -> None:
    """Refuses what is no number: it is neither below a bound nor above one."""
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{value} is no time")


def parse(content: bytes | memoryview, where: str, limit: int = MAX_RECORD_BYTES) -> Any:
    """JSON as plain values; nothing is built that memory could not hold.

    Args:
        content: The text.
        where: What it is, for messages.
        limit: Bytes that it may have.

    Raises:
        DamagedBackupError: It is no JSON, nested too deep, too long, or consists of more values than a record of ours.
    """
    text = bytes(content)
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if len(text) > limit or values > limit // _BYTES_PER_VALUE:
        raise DamagedBackupError(f"{where} has more than {limit} bytes, or {limit // _BYTES_PER_VALUE} values")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedBackupError(f"{where} is not valid JSON: {type(error).__name__} {error}") from error


def read(storage: Storage, name: str, limit: int = MAX_RECORD_BYTES) -> bytes:
    """The content of a record.

    Args:
        storage: The directory.
        name: The record's.
        limit: Bytes that it may have; no more are read, however long it is.

    Raises:
        FileNotFoundError: There is none.
        DamagedBackupError: It is longer.
    """
    content = storage.read(name, 0, limit + 1)
    if len(content) > limit:
        raise DamagedBackupError(f"{storage.display(name)} has more than {limit} bytes, too many for what it should be")
    return content


def write(storage: Storage, name: str, content: bytes) -> None:
    """Puts a record in the place of the one that is there, if any."""
    with temporary.file("record") as file:
        file.write(content)
        file.flush()
        storage.replace(name, Path(file.name))


def checked(value: Any, kind: Any, where: str) -> Any:
    """`value` as what it must be.

    Args:
        value: Plain values, as `parse` returns them.
        kind: A type that msgspec knows: every field, range and pattern of it must fit.
        where: What it is, for messages.

    Raises:
        DamagedBackupError: It does not fit; the message says where in it.
    """
    try:
        return schemas.convert(value, kind)
    except (ValueError, RecursionError) as error:  # msgspec's own is a ValueError; so is that of half a character
        raise DamagedBackupError(f"{where} is not what a backup holds: {error}") from error

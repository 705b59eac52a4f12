"""Keras' CSVLogger: where its file ended at a backup, and how to go on behind that.

The rows themselves are in the file. A backup keeps how many bytes of it there were, and their hash: a file is
only ever cut if it begins with exactly these bytes.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import xxhash

from keras_dist_callbacks.errors import BackupError
from keras_dist_callbacks.process import Shared, shared

_CHUNK = 2**20


class _Hashed(NamedTuple):
    """The hash of the first `size` bytes of an open file."""

    file: Any
    size: int
    hasher: xxhash.xxh3_128


@dataclass
class _Loggers(Shared):
    hashed: WeakKeyDictionary[Any, _Hashed] = field(default_factory=WeakKeyDictionary)


def get_rows(callback: Any) -> dict[str, Any]:
    """Size and hash of the file, flushed, and its columns; a size of None if there is no file."""
    if callback.csv_file is not None and not getattr(callback.csv_file, "closed", True):
        callback.csv_file.flush()
    size = _size(callback.filename)
    digest = None if size is None else _digest(callback, size)
    keys = None if callback.keys is None else list(callback.keys)
    return {"size": size, "digest": digest, "keys": keys}


def cut(callback: Any, size: int, digest: str) -> str | None:
    """Takes away the rows behind the backup, before `on_train_begin` opens the file.

    Returns:
        Why the file was left alone, if it is not the one that was backed up.

    Raises:
        BackupError: It cannot be cut.
    """
    path = callback.filename
    found = _size(path) or 0
    if found < size:
        return f"{path} has {found} of the {size} bytes that it had at the backup: rows of earlier epochs are missing"
    if _hash(path, 0, size, xxhash.xxh3_128()).hexdigest() != digest:
        return f"{path} was changed since the backup; it is kept, and rows are appended"
    if found > size:
        try:
            os.truncate(path, size)
        except OSError as error:
            raise BackupError(
                f"the rows of {path} that will be written again cannot be cut off ({error}); the backup is untouched"
            ) from error
    return None


def set_rows(callback: Any, state: dict[str, Any]) -> None:
    """Goes on with the same columns, without a second header."""
    if state["keys"] is None:
        return
    callback.keys = list(state["keys"])
    if callback.csv_file.tell() > 0:
        callback.writer = csv.DictWriter(callback.csv_file, ["epoch", *callback.keys], delimiter=callback.sep)
        if not callback.append:
            callback.append_header = True  # as it was: a later fit() overwrites the file and needs one


def _digest(callback: Any, size: int) -> str:
    """The hash of the file's first `size` bytes; bytes seen at an earlier backup are not read again."""
    before = shared(_Loggers).hashed.get(callback)
    if before is None or before.file is not callback.csv_file or before.size > size:
        before = _Hashed(callback.csv_file, 0, xxhash.xxh3_128())
    hasher = before.hasher
    if size > before.size:
        hasher = _hash(callback.filename, before.size, size, hasher)
    shared(_Loggers).hashed[callback] = _Hashed(callback.csv_file, size, hasher)
    return hasher.hexdigest()


def _hash(path: str, start: int, end: int, hasher: xxhash.xxh3_128) -> xxhash.xxh3_128:
    with Path(path).open("rb") as file:
        file.seek(start)
        while start < end:
            chunk = file.read(min(_CHUNK, end - start))
            if not chunk:
                break
            hasher.update(chunk)
            start += len(chunk)
    return hasher


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except OSError:
        return None

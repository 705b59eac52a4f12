"""Whether a directory can be used at all, found out with a small object."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from keras_dist_callbacks.errors import ConfigError, StorageError
from keras_dist_callbacks.storage.local_files import temporary_name
from keras_dist_callbacks.texts import warn

if TYPE_CHECKING:
    from keras_dist_callbacks.storage.storage import Storage


def probe(storage: Storage) -> None:
    """What `Storage.probe` does."""
    name, token = temporary_name("probe"), uuid.uuid4().bytes
    try:
        storage.create(name, [token])
    except TypeError as error:  # some clients look at their options only now
        raise ConfigError(f"{storage.display()}: its client does not take the storage_options: {error}") from error
    try:
        _check_exclusive(storage, name)
        if storage.read(name) != token:
            raise StorageError(f"{storage.display()}: an object that was just written reads back differently")
    except BaseException:
        with suppress(OSError):
            storage.delete(name)
        raise
    try:
        storage.delete(name)
    except StorageError as error:
        warn(f"old files will stay: {error}")


def _check_exclusive(storage: Storage, name: str) -> None:
    try:
        storage.create(name, [uuid.uuid4().bytes])
    except FileExistsError:
        return
    raise StorageError(
        f"{storage.display()}: the store overwrote an object that it was asked to create only if there is none, so "
        "two runs could destroy each other's files; use a store or a version of it that supports conditional writes"
    )

"""One bad read is not a damaged file: what fails verification is read a second time before anything follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from keras_dist_callbacks.errors import DamagedBackupError
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.terminal import warn

_T = TypeVar("_T")


def read_verified(storage: Storage, name: str, read: Callable[[], _T]) -> _T:
    """What `read` returns, if necessary at its second call.

    Args:
        storage: Where it reads.
        name: The file.
        read: Reads and verifies it, each time from the store.

    Raises:
        DamagedBackupError: It failed verification twice.
    """
    try:
        return read()
    except DamagedBackupError as error:
        first = error
    storage.drop_cached(name)
    found = read()
    warn(
        f"{storage.display(name)}: the first read differed from the second one, which is good and is used. Suspect the "
        f"storage, the network or the memory of this computer ({first})"
    )
    return found

"""Tensors on their way through a blob of a real backup directory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dist_callbacks.backups.packing import Packer, fingerprints
from keras_dist_callbacks.backups.reading import read_tensors
from keras_dist_callbacks.backups.snapshot import SharedTensor
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage


def through_a_blob(held: Mapping[str, SharedTensor]) -> dict[str, np.ndarray[Any, Any]]:
    """What is read back of tensors that were packed and written."""
    with tempfile.TemporaryDirectory() as directory:
        store = BackupStore(Storage.open(directory, fsync=False))
        store.claim({})
        prints = fingerprints(held)
        packer = Packer({}, store.blob_directory)
        store.stage_all(packer.pack(held, prints))
        return read_tensors(store.storage, packer.locate(held, prints), store.staged)

"""A glance at large tensors: where two differ in it, nothing needs to be hashed to know that they differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

from keras_dist_callbacks.backups.codec import dtype_name, raw_bytes
from keras_dist_callbacks.backups.snapshot import HeldTensor
from keras_dist_callbacks.storage.direct_files import least

_LEAST = 2**18  # bytes of the smallest tensor that is worth it
_PLACES = 256
_WIDTH = 64  # bytes at each place: what a processor reads at once


class Glance(NamedTuple):
    """What a tensor looks like; of two that are the same it is the same, of two that differ it may be."""

    sample: str
    dtype: str
    shape: tuple[int, ...]


def glances(tensors: Mapping[str, HeldTensor]) -> dict[str, Glance]:
    """Those of the large tensors."""
    found, smallest = {}, least(_LEAST)
    for name, held in tensors.items():
        array = held.array()
        if array.nbytes >= smallest:
            sample = xxhash.xxh3_128_hexdigest(_places(np.frombuffer(raw_bytes(array), np.uint8)).tobytes())
            found[name] = Glance(sample, dtype_name(array.dtype), tuple(array.shape))
    return found


def _places(raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    step = len(raw) // _PLACES
    return raw if step < _WIDTH else raw[: step * _PLACES].reshape(_PLACES, step)[:, :_WIDTH]


def surely_new(seen: Mapping[str, Glance], known: Collection[Glance]) -> set[str]:
    """The names of tensors that differ from each other, from all others of `seen` and from all that were known.

    Args:
        seen: The tensors now.
        known: Of every tensor that they would be compared with.
    """
    often = Counter(seen.values())
    return {name for name, glance in seen.items() if often[glance] == 1 and glance not in known}

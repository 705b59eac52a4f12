"""Whether what training has computed is finite: a look at a part of each tensor, or at all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from keras_dist_callbacks.backups.snapshot import JSON, VARIABLES, SharedTensor

_SAMPLE_BYTES = 4096
_SHOWN = 5


def trained(tensors: Mapping[str, SharedTensor], state: Mapping[str, JSON]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns what training computes: weights, moving statistics, slots of optimizers; not metrics.

    The best value of a metric may well be infinite at first, and so may what the user's objects hold.
    """
    metrics = set(state.get(f"{VARIABLES}/metrics") or ())
    found = {}
    for name, held in tensors.items():
        if name.startswith(f"{VARIABLES}/") and name.removeprefix(f"{VARIABLES}/").rpartition("@")[0] not in metrics:
            found[name] = held.array()
    return found


def not_finite(arrays: Mapping[str, np.ndarray[Any, Any]], *, whole: bool = False) -> list[str]:
    """Returns the names of the arrays with values that are NaN or infinite, as far as they are looked at.

    Args:
        arrays: By name.
        whole: Look at all values, and not at 4 KiB of each.
    """
    return [
        name
        for name, array in arrays.items()
        if _has_fractions(array) and not np.isfinite(array if whole else _sample(array)).all()
    ]


def _has_fractions(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat16", "float8"))


def _sample(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    flat, count = array.reshape(-1), _SAMPLE_BYTES // array.itemsize
    return flat[:: max(1, flat.size // count)]


def in_words(names: Collection[str]) -> str:
    """Returns the variables among names of tensors, the first of them."""
    paths = list(dict.fromkeys(_paths(names)))
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return f"{', '.join(paths[:_SHOWN])}{more}"


def _paths(names: Collection[str]) -> Iterator[str]:
    return (name.removeprefix(f"{VARIABLES}/").partition("@")[0] for name in names)

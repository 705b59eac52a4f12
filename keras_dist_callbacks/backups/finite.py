"""Whether what training has computed is finite: a look at a part of each tensor, or at all of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    found = []
    for name, array in arrays.items():
        if array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat16", "float8")):
            every = 1 if whole else max(1, array.size // (_SAMPLE_BYTES // array.itemsize))
            if not np.isfinite(array.reshape(-1)[::every]).all():
                found.append(name)
    return found


def in_words(names: Collection[str]) -> str:
    """Returns the variables among names of tensors, the first of them."""
    paths = list(dict.fromkeys(name.removeprefix(f"{VARIABLES}/").partition("@")[0] for name in names))
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return f"{', '.join(paths[:_SHOWN])}{more}"

"""A variable's components for another number of replicas than they were saved from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def redistribute(values: Sequence[Array], aggregation: str, count: int) -> list[Array]:
    """One value for each of `count` replicas.

    Mirrored values stay what they are. Where replicas had values of their own, sums (metrics) are kept as a sum,
    means and other real numbers (statistics of BatchNormalization) are averaged, and of anything else the first
    replica's value is taken.

    Args:
        values: The components as saved, of all replicas of all workers in order.
        aggregation: The variable's: `"sum"`, `"mean"`, `"only_first_replica"` or `"none"`.
        count: How many replicas there are now.
    """
    if len(values) == count:
        return list(values)
    first = values[0]
    if aggregation == "sum":
        total = np.sum(np.stack(values), axis=0, dtype=first.dtype)
        return [total, *([np.zeros_like(total)] * (count - 1))]
    if all(np.array_equal(value, first, equal_nan=_is_real(first)) for value in values[1:]):
        return [first] * count
    if aggregation in {"mean", "none"} and _is_real(first):
        mean = np.mean(np.stack(values), axis=0, dtype=np.float64).astype(first.dtype)
        return [mean] * count
    return [first] * count


def _is_real(value: Array) -> bool:
    return bool(value.dtype.kind == "f" or value.dtype.name == "bfloat16")

"""The variables among a worker's tensors, by the names that Keras has for them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

VARIABLE = "variable"
"""In front of a variable's name, which ends with `@` and the replica's number."""

ARCHITECTURE = "architecture"
"""The tensor that holds what Keras' `to_json` says of the model, in UTF-8."""


def tensor_name(name: str, replica: int) -> str:
    """The tensor that holds a replica's value of a variable."""
    return f"{VARIABLE}/{name}@{replica}"


def names_in(tensors: Iterable[str]) -> set[str]:
    """The variables of which tensors with these names are values."""
    parts = (tensor.partition("/") for tensor in tensors)
    return {rest.rpartition("@")[0] for kind, _, rest in parts if kind == VARIABLE}


def stored_components(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, list[np.ndarray[Any, Any]]]:
    """The values of each variable, one for each replica, by the variable's name."""
    found: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
    for tensor, value in tensors.items():
        kind, _, rest = tensor.partition("/")
        if kind == VARIABLE:
            name, _, replica = rest.rpartition("@")
            found.setdefault(name, {})[int(replica)] = value
    return {name: [by_replica[i] for i in sorted(by_replica)] for name, by_replica in found.items()}


def by_path(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Read-only values by path; where those of replicas differ, by `path@0`, `path@1`, ..."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, values in stored_components(tensors).items():
        alike = all(_same(values[0], value) for value in values[1:])
        for number, value in enumerate(values[:1] if alike else values):
            shown = value.view()
            shown.flags.writeable = False
            found[name if alike else f"{name}@{number}"] = shown
    return found


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def strip_counters(path: str) -> str:
    """A variable's path without the numbers that depend on what was made before in the process."""
    return re.sub(r"_\d+(?=[/_#]|$)", "", path)

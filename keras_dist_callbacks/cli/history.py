"""What a backup knows of each epoch: Keras' History."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks.backups.snapshot import Manifest

Values = tuple[float | None, ...]


@dataclass(frozen=True)
class Curves:
    """Values of each epoch.

    Attributes:
        epochs: Their numbers, from 1.
        values: By name; None for what is not finite.
    """

    epochs: Sequence[int] = ()
    values: Mapping[str, Values] = field(default_factory=dict)


def curves_of(manifest: Manifest) -> Curves:
    """Returns the values that History held; those that are not numbers are left out."""
    held = (manifest.workers[0].state.get("callbacks/History()") or {}) if manifest.workers else {}
    found = {name: _numbers(values) for name, values in (held.get("history") or {}).items()}
    epochs = [int(epoch) + 1 for epoch in held.get("epoch") or ()]
    return Curves(epochs, {name: values for name, values in found.items() if values})


def _numbers(values: Any) -> Values:
    """Numbers as a backup holds them, where one that is not finite is a text; nothing if one is something else."""
    if not isinstance(values, list):
        return ()
    plain = [value["$float"] if isinstance(value, Mapping) and "$float" in value else value for value in values]
    try:
        numbers = [float(value) for value in plain]
    except (TypeError, ValueError):
        return ()
    return tuple(number if math.isfinite(number) else None for number in numbers)

"""The model's own configuration among a backup's tensors, for those who make a model of it without its code."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from keras_dist_callbacks._compat.describe_model import as_json
from keras_dist_callbacks.backups.snapshot import HeldArray, HeldTensor
from keras_dist_callbacks.backups.variables import ARCHITECTURE
from keras_dist_callbacks.cluster.cluster import Cluster

_known: weakref.WeakKeyDictionary[Any, dict[str, HeldTensor]] = weakref.WeakKeyDictionary()


def held(model: Any) -> dict[str, HeldTensor]:
    """The model's JSON as bytes, on the chief; nothing where Keras has none. Asked for once for each model."""
    if model not in _known:
        text = as_json(model) if Cluster.detect().is_chief else None
        found: dict[str, HeldTensor] = {}
        if text is not None:
            found[ARCHITECTURE] = HeldArray(np.frombuffer(text.encode(), np.uint8))
        _known[model] = found
    return _known[model]

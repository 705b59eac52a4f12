"""The model's own configuration among a backup's tensors, for those who make a model of it without its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from keras_dist_callbacks._compat.describe_model import as_json, compilation
from keras_dist_callbacks.backups.snapshot import HeldArray, HeldTensor
from keras_dist_callbacks.backups.variables import ARCHITECTURE
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.process import Shared, shared


@dataclass
class _Models(Shared):
    """By model: how it was compiled, and its JSON."""

    known: WeakKeyDictionary[Any, tuple[Any, dict[str, HeldTensor]]] = field(default_factory=WeakKeyDictionary)


def held(model: Any) -> dict[str, HeldTensor]:
    """The model's JSON as bytes; nothing where Keras has none. Asked for once for each `compile()`."""
    compiled, found = shared(_Models).known.get(model, (None, None))
    if found is None or compiled is not compilation(model):
        text = as_json(model)
        found = {} if text is None else {ARCHITECTURE: HeldArray(np.frombuffer(text.encode(), np.uint8))}
        shared(_Models).known[model] = compilation(model), found
    return found


def text_in(tensors: Mapping[str, np.ndarray[Any, Any]], shown: str, advice: str) -> str:
    """The JSON that a backup holds.

    Args:
        tensors: The chief's.
        shown: What the backup is called.
        advice: Where else a model may come from.

    Raises:
        ConfigError: It holds none.
    """
    if ARCHITECTURE not in tensors:
        raise ConfigError(
            f"{shown} holds no architecture: its model has none (get_config), has code in it (a Lambda layer), or it "
            f"was made by a Checkpointer. {advice}"
        )
    return bytes(tensors[ARCHITECTURE]).decode()


def model_of(text: str, shown: str, advice: str) -> Any:
    """The model that a JSON text describes, compiled as it tells.

    Raises:
        ConfigError: Keras makes none of it, such as where it needs classes of the user's.
    """
    import keras

    try:
        return keras.models.model_from_json(text)
    except Exception as error:
        raise not_made(shown, error, advice) from error


def not_made(shown: str, error: Exception, advice: str) -> ConfigError:
    """That Keras makes no model, and why."""
    return ConfigError(f"Keras makes no model of {shown}: {' '.join(str(error).split())[:500]}. {advice}")

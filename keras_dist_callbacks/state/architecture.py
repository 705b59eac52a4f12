"""The architecture in a backup: what Keras' `to_json` says of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dist_callbacks._compat.model_config import as_json, compilation
from keras_dist_callbacks.backups.snapshot import Piece, Position, SharedArray, SharedTensor
from keras_dist_callbacks.base.process_runs import fits_of, reference
from keras_dist_callbacks.state.part import Part


class Architecture(Part):
    """What Keras' `to_json` says of the model, which the chief saves for `kdc export`; nothing is restored from it.

    Args:
        model: The model in training.
        is_chief: Whether this worker saves it.
    """

    name = "architecture"

    def __init__(self, model: Any, *, is_chief: bool) -> None:
        self._model, self._is_chief = model, is_chief

    def capture(self, position: Position) -> Piece:
        """Returns one tensor, on the chief, where Keras has a text."""
        return Piece(tensors=_architecture_tensor(self._model) if self._is_chief else {})


def _architecture_tensor(model: Any) -> dict[str, SharedTensor]:
    """Returns the model's JSON as bytes; nothing where Keras has none. Asked for once for each `compile()`."""
    compiled, found = fits_of(model).architecture
    if found is None or compiled() is not compilation(model):
        text = as_json(model)
        if text is not None and _holds_code(json.loads(text)):
            text = None  # nothing would make a model from it without running what a file holds
        found = {} if text is None else {"json": SharedArray(np.frombuffer(text.encode(), np.uint8))}
        fits_of(model).architecture = reference(compilation(model)), found
    return found


def _holds_code(config: Any) -> bool:
    """Returns whether Keras has written a lambda's bytecode, as of a Lambda layer."""
    if isinstance(config, Mapping):
        return config.get("class_name") == "__lambda__" or any(map(_holds_code, config.values()))
    return isinstance(config, list) and any(map(_holds_code, config))

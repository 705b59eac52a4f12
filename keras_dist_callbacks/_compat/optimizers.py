"""An optimizer that was put in the place of another one during `fit()`, as text and back."""

from __future__ import annotations

import json
from typing import Any

from keras_dist_callbacks._compat import model_parts
from keras_dist_callbacks._compat.running_fit import RunningFit


def config_of(optimizer: Any) -> dict[str, Any] | None:
    """What makes an optimizer again; None if only the script can, because a class is not Keras' own."""
    import keras

    inner = [optimizer, *(found for _, found in model_parts.inner_optimizers(optimizer))]
    if any(getattr(found, "_exclude_from_weight_decay", None) is not None for found in inner):
        return None  # `exclude_from_weight_decay` was called, of which a config tells nothing
    try:
        config: dict[str, Any] = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    except (TypeError, ValueError, NotImplementedError):  # what is no JSON, or has no config
        return None
    return config if can_make(config) else None


def can_make(config: Any) -> bool:
    """Whether everything in a config is of Keras' own classes."""
    if isinstance(config, list):
        return all(map(can_make, config))
    if not isinstance(config, dict):
        return True
    is_known = "class_name" not in config or _is_of_keras(str(config.get("module")))
    return is_known and not config.get("registered_name") and all(map(can_make, config.values()))


def _is_of_keras(module: str) -> bool:
    return module.partition(".")[0] == "keras"


def make(fit: RunningFit, config: dict[str, Any]) -> Any:
    """Makes the optimizer of a config."""
    import keras

    with fit.model.distribute_strategy.scope():
        return keras.saving.deserialize_keras_object(config, safe_mode=True)


def replace(fit: RunningFit, optimizer: Any) -> None:
    """Gives the model another optimizer; the next step is traced again."""
    fit.model.optimizer = optimizer
    fit.model.make_train_function(force=True)

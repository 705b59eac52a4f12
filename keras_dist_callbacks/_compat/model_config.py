"""What Keras keeps of what a model and its compile() were given."""

from __future__ import annotations

import warnings
from typing import Any

from keras_dist_callbacks._compat import model_parts
from keras_dist_callbacks.base import static


def compiled_objects(model: Any) -> dict[str, Any]:
    """Returns the losses and metrics as the user gave them to compile()."""
    losses, metrics = getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)
    return {
        "loss": getattr(losses, "_user_loss", None) or getattr(model, "loss", None),
        "metrics": getattr(metrics, "_user_metrics", None),
        "weighted metrics": getattr(metrics, "_user_weighted_metrics", None),
    }


def loss_weights(model: Any) -> Any:
    """Returns the weights of losses as the user gave them to compile()."""
    return getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)


def without_weight_decay(model: Any) -> dict[str, tuple[list[str], list[int]]]:
    """Returns what `exclude_from_weight_decay` was given, by the optimizer's name: names, and places of weights."""
    found = {}
    for name, optimizer in model_parts.inner_optimizers(model.optimizer):
        keys = getattr(optimizer, "_exclude_from_weight_decay", None) or ()
        pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
        places = [n for n, variable in enumerate(model.trainable_variables) if optimizer._var_key(variable) in keys]
        if pattern is not None or places:
            # Keras joins an unordered set.
            found[name] = [] if pattern is None else sorted(pattern.pattern.split("|")), places
    return found


def lists_layers(model: Any) -> bool:
    """Returns whether a model's own configuration has those of all its layers."""
    import keras

    if isinstance(model, keras.Sequential):
        return True
    return isinstance(model, keras.Model) and hasattr(model, "_operations_by_depth")


def config_of(item: Any) -> dict[str, Any]:
    """Returns what `get_config` says; empty where it cannot, as of a class of the user's without one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' own, of numpy
            return dict(item.get_config())
    except Exception:  # noqa: BLE001 - any code of the user's
        return {}


def arguments_of_loss(loss: Any) -> dict[str, Any]:
    """Returns those that Keras' `get_config` leaves out, such as the delta of Huber."""
    return dict(static.attribute(loss, "_fn_kwargs") or {})


def compilation(model: Any) -> Any:
    """Returns what Keras keeps of compile()'s arguments: another object after each call, None before the first."""
    return getattr(model, "_compile_config", None)


def as_json(model: Any) -> str | None:
    """Returns what Keras' `to_json` says; None where it cannot."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text: str = model.to_json()
    except Exception:  # noqa: BLE001 - get_config of the user's classes; such a model is made by their code alone
        return None
    return text

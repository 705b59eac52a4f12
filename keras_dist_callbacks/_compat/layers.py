"""What Keras does to layers after their variables were loaded."""

from __future__ import annotations

from typing import Any


def finalize(model: Any) -> None:
    """Makes what layers derive from their variables, such as the mean and variance that `Normalization` applies.

    Keras' own loading calls the same method; without it, a `Normalization` whose script skips `adapt()` when it starts
    again trains with mean 0 and variance 1.
    """
    for layer in _with_constants(model):
        layer.finalize_state()


def has_constants(model: Any) -> bool:
    """Whether a trace of the model holds values that `finalize` makes."""
    return bool(_with_constants(model))


def adapted(model: Any) -> list[tuple[Any, list[Any]]]:
    """Layers with a vocabulary, which `adapt()` makes and training never changes, and the variables in them."""
    import tensorflow as tf

    found = [getattr(layer, "_lookup_layer", layer) for layer in flat(model)]  # that of a TextVectorization
    return [
        (lookup, [part for part in tf.train.TrackableView(lookup).descendants() if isinstance(part, tf.Variable)])
        for lookup in {id(lookup): lookup for lookup in found}.values()
        if callable(getattr(lookup, "get_vocabulary", None))
    ]


def _with_constants(model: Any) -> list[Any]:
    import keras

    return [layer for layer in flat(model) if isinstance(layer, keras.layers.Normalization) and layer.built]


def flat(model: Any) -> list[Any]:
    """Every layer within a model; none of what is no Keras model."""
    return list(model._flatten_layers(include_self=False)) if hasattr(model, "_flatten_layers") else []

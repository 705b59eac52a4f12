"""The layers and the optimizer of a model."""

from __future__ import annotations

from typing import Any

from keras_dist_callbacks.base import static


def finalize(model: Any) -> None:
    """Makes what layers derive from their variables, such as the mean and variance that `Normalization` applies.

    Keras' own loading calls the same method; without it, a `Normalization` whose script skips `adapt()` when it starts
    again trains with mean 0 and variance 1.
    """
    for layer in layers_with_constants(model):
        layer.finalize_state()


def vocabulary_layers(model: Any) -> list[tuple[Any, list[Any]]]:
    """Layers with a vocabulary, which `adapt()` makes and training never changes, and the variables in them."""
    import tensorflow as tf

    # A TextVectorization keeps its vocabulary in a layer within it.
    found = [static.attribute(layer, "_lookup_layer", layer) for layer in all_layers(model)]
    return [
        (lookup, [item for item in static.instance_dict(lookup).values() if isinstance(item, tf.Variable)])
        for lookup in {id(lookup): lookup for lookup in found}.values()
        if callable(static.attribute(lookup, "get_vocabulary"))
    ]


def layers_with_constants(model: Any) -> list[Any]:
    """Those of which a trace holds values that `finalize` makes."""
    import keras

    return [layer for layer in all_layers(model) if isinstance(layer, keras.layers.Normalization) and layer.built]


def all_layers(model: Any) -> list[Any]:
    """Returns every layer within a model; nothing for an object that is not a Keras model."""
    return list(model._flatten_layers(include_self=False)) if static.has(model, "_flatten_layers") else []


def makes_own_train_function(model: Any) -> bool:
    """Returns whether the model's class overrides `make_train_function`."""
    import keras

    return type(model).make_train_function is not keras.Model.make_train_function


def makes_own_step(model: Any) -> bool:
    """Returns whether the model's class overrides `train_step`, and so decides which weights an optimizer is for."""
    import keras

    return type(model).train_step is not keras.Model.train_step


def has_embeddings(model: Any) -> bool:
    """Returns whether a layer of the model looks up rows of a table."""
    import keras

    return any(isinstance(layer, keras.layers.Embedding) for layer in all_layers(model))


def variables_set_trainable(model: Any) -> list[str]:
    """Single variables whose `trainable` is another one than their layer gave them, by layer and place in it."""
    found = []
    for number, layer in enumerate(all_layers(model)):
        frozen = [v.trainable is False and layer._trainable for v in layer._trainable_variables]
        trained = [v.trainable is True for v in layer._non_trainable_variables]
        where = f"{type(layer).__name__} {number}"
        found += [f"{where}, frozen weight {place}" for place, is_set in enumerate(frozen) if is_set]
        found += [f"{where}, trained variable {place}" for place, is_set in enumerate(trained) if is_set]
    return found


def steps_of_submodels(model: Any) -> list[tuple[Any, int]]:
    """Returns the optimizers of models within the model, such as a teacher that was trained before, and their steps."""
    import keras

    found = [static.attribute(layer, "optimizer") for layer in all_layers(model)]
    own = static.attribute(model, "optimizer")
    inner = {id(item): item for item in found if static.is_a(item, keras.optimizers.Optimizer) and item is not own}
    return [(optimizer, steps_taken(optimizer)) for optimizer in inner.values()]


def steps_taken(optimizer: Any) -> int:
    """Returns how often the optimizer was applied."""
    return int(_number(optimizer.iterations))  # int() fails on a mirrored variable


def accumulation(optimizer: Any) -> tuple[int, int]:
    """Returns how many batches an update of the weights adds up the gradients of, and how many batches it has seen."""
    inner = inner_optimizers(optimizer)[0][1]
    # `iterations` counts updates; only the private one counts batches
    return getattr(inner, "gradient_accumulation_steps", None) or 1, int(_number(inner._iterations))


def current_rates(optimizer: Any) -> dict[str, float]:
    """Returns the rate of the next step for each optimizer within; the key is `""` if there is only one."""
    return {name: _number(inner.learning_rate) for name, inner in inner_optimizers(optimizer)}


def fixed_rates(optimizer: Any) -> dict[str, float]:
    """Returns the rates that are numbers, not functions of the step; the keys are those of `current_rates`."""
    import keras

    held = {name: static.attribute(inner, "_learning_rate") for name, inner in inner_optimizers(optimizer)}
    # Keras calls a schedule for its rate, and a schedule of the user's may count its calls.
    return {name: _number(rate) for name, rate in held.items() if isinstance(rate, keras.Variable)}


def last_rates(optimizer: Any) -> dict[str, float]:
    """Returns the rate of the step just taken, of those optimizers whose rate is a function of the step."""
    import keras

    rates = {}
    for name, inner in inner_optimizers(optimizer):
        schedule = static.attribute(inner, "_learning_rate")
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            rates[name] = _number(schedule(max(0, steps_taken(inner) - 1)))
    return rates


def inner_optimizers(optimizer: Any) -> list[tuple[str, Any]]:
    """Returns the optimizers that are applied, by name: of one that wraps others, those; `""` names a single one."""
    optimizer = static.attribute(optimizer, "inner_optimizer", optimizer)  # LossScaleOptimizer
    if not static.has(optimizer, "optimizers"):
        return [("", optimizer)]
    several = optimizer.optimizers  # a property of MultiOptimizer
    names = [inner.name for inner in several]
    return [
        (inner.name if names.count(inner.name) == 1 else f"{inner.name}_{i}", inner) for i, inner in enumerate(several)
    ]


def idle_variables(part: Any) -> list[Any]:
    """Returns the step counter and learning rate of a LossScaleOptimizer's own, which no step uses.

    It counts and takes the rate with those of its inner optimizer.
    """
    own = (static.attribute(part, "_iterations"), static.attribute(part, "_learning_rate"))
    return [v for v in own if static.has(v, "path")] if static.has(part, "inner_optimizer") else []


def _number(value: Any) -> float:
    return float(value.numpy() if hasattr(value, "numpy") else value)

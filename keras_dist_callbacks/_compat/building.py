"""Variables that Keras makes in the first step only, made before it."""

from __future__ import annotations

import collections
import contextlib
import inspect
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from keras_dist_callbacks._compat.model_parts import all_layers
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks._compat.variables import GLOBAL_SEED_GENERATOR, named_variables, optimizers_within, path_of
from keras_dist_callbacks.base.errors import ConfigError


def unbuilt_layers(model: Any) -> list[str]:
    """Returns the layers of an unbuilt model, or the model itself, whose `build()` is still to make variables.

    A model that trains itself by a step of its own may have no `call()`: then it stays unbuilt for ever, and all its
    variables are there as soon as its layers have theirs.
    """
    if model.built:
        return []
    layers = all_layers(model)
    unbuilt = [layer.name for layer in layers if not layer.built and _has_own_build(layer)]
    return unbuilt or ([model.name] if not layers or _has_own_build(model) else [])


def require_built(model: Any) -> None:
    """Makes sure that weights have somewhere to go.

    Raises:
        ConfigError: A layer, or the model itself, is still to make variables.
    """
    unbuilt = unbuilt_layers(model)
    if unbuilt:
        raise ConfigError(
            f"the model is not built ({unbuilt[0]}), so saved weights cannot be loaded: give it an Input layer, or "
            "call it on a batch or model.build(...) first"
        )


def has_unbuilt_layers(model: Any) -> bool:
    """Returns whether a layer is unbuilt, also in a model that is built itself: its `build()` may have built no layer.

    A layer that the model never uses counts too: it makes no difference to what a first step builds.
    """
    return any(not layer.built and _has_own_build(layer) for layer in all_layers(model)) or bool(unbuilt_layers(model))


def _has_own_build(layer: Any) -> bool:
    import keras

    return type(layer).build is not keras.Layer.build


def build_symbolically(fit: RunningFit) -> Exception | None:
    """Creates the variables of layers, compiled metrics and losses as Keras does it: calls the model on symbols.

    Only shapes and dtypes are used: no batch is read. A train_step of the user's may take what the model itself does
    not. Then metrics are made by the first step, and a restore says that they start again.

    Returns:
        Why that was not possible; None if it was.
    """
    import keras
    import tensorflow as tf
    from keras.src import backend

    model = fit.model

    def symbol(spec: Any) -> Any:
        spec = spec._value_specs[0] if hasattr(spec, "_value_specs") else spec  # of one replica
        return keras.KerasTensor(spec.shape, spec.dtype.name)

    try:
        with model.distribute_strategy.scope(), _without_variables(model.optimizer):
            batch = tf.nest.map_structure(symbol, fit.data.element_spec, expand_composites=False)
            if not model.built and not _has_own_build(model):  # Keras would take it for built, also where this fails
                inputs = keras.utils.unpack_x_y_sample_weight(batch)[0]
                mode = {"training": False} if "training" in inspect.signature(model.call).parameters else {}
                with keras.name_scope(model.name, caller=model):
                    backend.compute_output_spec(model.call, inputs, **mode)
            model._symbolic_build(data_batch=batch)
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        return error
    return None


def build_optimizers_like(
    model: Any, names: Collection[str], metrics: Collection[str], of_step: Collection[str], places: Collection[int] = ()
) -> None:
    """Builds those optimizers of a model of which a backup has slots, for the weights that these are of.

    Args:
        model: The model; its weights exist.
        names: The names of the backup's variables that Keras lists.
        metrics: Those among them that are metrics'.
        of_step: The names of those that only the train step holds.
        places: As `weights_of_partial_slots` has returned.
    """
    if places and not model.optimizer.built:
        weights = model.trainable_variables
        with model.distribute_strategy.scope():
            model.optimizer.build([weights[place] for place in places if place < len(weights)])
    build_optimizer_like(model.optimizer, model, names)
    numbered: list[str] = []  # as `named_variables` numbers paths that repeat
    seen = collections.Counter[str]()
    for name in of_step:
        numbered.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    for optimizer in optimizers_within(model):
        if optimizer is not model.optimizer:
            build_optimizer_like(optimizer, model, numbered)
    build_optimizer_if_saved(model, names, metrics)


def build_optimizer_like(optimizer: Any, model: Any, names: Iterable[str]) -> None:
    """Builds an optimizer for those weights of which a backup has slots; not at all where their names do not say.

    Args:
        optimizer: An optimizer of the model's, or None.
        model: The model in training.
        names: The names of variables in the backup.
    """
    import keras

    if optimizer is None or optimizer.built:
        return
    names = list(names)
    # A LossScaleOptimizer that its first step builds puts its own name before those of the slots.
    inner, prefix = inner_of(optimizer), ""
    if inner is not optimizer and any(name.startswith(f"{optimizer.name}/{inner.name}/") for name in names):
        prefix = f"{optimizer.name}/"
    alike = collections.defaultdict(list)  # a network and its clone have weights of the same names
    for variable in model.trainable_variables:
        alike[_slot_begin(optimizer, variable)].append(variable)
    saved = collections.Counter[str]()
    for name in names:
        slot, _, number = name.removeprefix(prefix).partition("#")
        begin = _longest_begin(slot, alike)
        if begin:
            saved[begin] = max(saved[begin], int(number or 0) + 1)
    if saved and all(count == len(alike[begin]) for begin, count in saved.items()):
        scope = keras.name_scope(optimizer.name, caller=optimizer) if prefix else contextlib.nullcontext()
        with model.distribute_strategy.scope(), scope:
            optimizer.build([variable for begin, found in alike.items() if begin in saved for variable in found])


def weights_of_partial_slots(model: Any) -> list[int]:
    """Returns which weights `model.optimizer` was built for, if it has slots for some of these only, as Muon has.

    Returns:
        Their places among the trainable variables; nothing where the names of slots tell.
    """
    optimizer = model.optimizer
    trained = {id(variable): _slot_begin(optimizer, variable) for variable in optimizer._trainable_variables or ()}
    begins = set(trained.values())
    with_slots = {_longest_begin(path_of(variable), begins) for variable in optimizer.variables} - {None}
    if not 0 < len(with_slots) < len(begins):
        return []
    return [place for place, variable in enumerate(model.trainable_variables) if id(variable) in trained]


def _slot_begin(optimizer: Any, variable: Any) -> str:
    return f"{inner_of(optimizer).name}/{path_of(variable).replace('/', '_')}"


def inner_of(optimizer: Any) -> Any:
    """Returns the optimizer that has the slots: of a LossScaleOptimizer, the one within it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def build_optimizer_if_saved(model: Any, names: Iterable[str], metrics: Collection[str]) -> None:
    """Builds `model.optimizer` for all that can be trained, if a backup has more variables than there are yet.

    Args:
        model: The model in training.
        names: The names of variables in the backup.
        metrics: Those among them that are metrics'.
    """
    optimizer = model.optimizer
    if optimizer is None or optimizer.built:
        return
    own = {id(variable) for metric in model.metrics for variable in metric.variables}
    present = {name for name, variable in named_variables(model).items() if id(variable) not in own}
    if len({*names} - {*metrics, GLOBAL_SEED_GENERATOR}) > len(present - {GLOBAL_SEED_GENERATOR}):
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def _longest_begin(slot: str, begins: Collection[str]) -> str | None:
    begin = slot
    while "_" in begin:
        begin = begin.rpartition("_")[0]
        if begin in begins:
            return begin
    return None


@contextlib.contextmanager
def _without_variables(optimizer: Any) -> Iterator[None]:
    """Keras builds an optimizer for all weights, in addition to the metrics, unless it takes it to be built."""
    if optimizer is None or optimizer.built:
        yield
        return
    optimizer.built = True
    try:
        yield
    finally:
        optimizer.built = False


def is_built(model: Any) -> bool:
    """Returns whether all variables exist: those of layers, compiled metrics and losses, and the optimizer."""
    built_late = (model._compile_metrics, model._compile_loss, model.optimizer)
    return not unbuilt_layers(model) and all(part is None or part.built for part in built_late)

"""State in objects of libraries: which attributes of Keras' are the library's, the user's, or saved elsewhere.

A user's class that extends one of Keras has both: what Keras' own methods set on `self` is Keras', all else is the
user's. Of a `rich.progress.Progress`, the numbers of its tasks are state.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import types
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from keras_dist_callbacks._compat import keras_callbacks
from keras_dist_callbacks.base import static

_OF_A_CALLBACK = frozenset(["model", "_model", "params"])
_OF_A_LAYER = frozenset(
    [
        *("built", "name", "_name", "autocast", "supports_masking", "input_spec", "dtype_policy", "build", "quantize"),
        *("train_function", "test_function", "predict_function"),
    ]
)
_OF_A_MODEL = frozenset(
    [
        *("stop_training", "stop_evaluating", "stop_predicting", "optimizer", "loss", "inputs", "outputs"),
        "_compile_config",
    ]
)
"""What Keras changes while it trains, and what is visited from where it belongs."""

_PRIVATE_SETTINGS = frozenset(
    ["_learning_rate", "_fn_kwargs", "_trainable", "_user_loss", "_user_metrics", "_user_weighted_metrics"]
)
_OWNED = ("Dataset", "Strategy", "StrategyBase", "Graph", "TensorSpec", "DTypePolicy", "Variable", "Node", "Tracker")
_LARGEST_SETTING = 32


def is_owned(value: Any) -> bool:
    """Returns whether an object belongs to what the capture of variables, graphs and data saves, or to this package."""
    cls: Any = type(value)
    return _is_owned(cls)


@functools.lru_cache(maxsize=4096)
def _is_owned(cls: Any) -> bool:
    names = {base.__name__ for base in cls.__mro__}
    is_ours = cls.__module__.startswith("keras_dist_callbacks.")
    return is_ours or bool(names & set(_OWNED) and _is_library(cls.__module__))


def is_opaque(value: Any) -> bool:
    """Whether an object of TensorFlow's keeps a state that cannot be inspected: an iterator, a queue, a table."""
    import tensorflow as tf

    module = type(value).__module__
    return module.startswith("tensorflow.") and not static.is_a(value, (tf.Module, tf.Variable, *_averaging()))


def _averaging() -> Any:
    import tensorflow as tf

    return (tf.train.ExponentialMovingAverage,)


def attributes(value: Any, *, of_training: bool, is_listed: bool = False) -> Iterator[tuple[str, Any, str]]:
    """The attributes of an instance that may be state: name, value, and the kind of place it is bound in.

    Args:
        value: The instance.
        of_training: It is part of the model in training, whose variables are saved in another way.
        is_listed: It is a callback of the fit, whose entry in the table of callbacks saves it.
    """
    kept = frozenset() if is_listed else keras_callbacks.saved_attributes(value)
    for name, item in static.instance_dict(value).items():
        if name in kept:
            yield name, item, "attribute"
        elif may_be_state(value, name, item):
            if name == "min_delta" and static.is_a(item, float | int) and keras_callbacks.known(value):
                yield name, abs(item), "magnitude"  # Keras flips its sign when it first compares
            else:
                yield name, item, "attribute"
    cls: Any = type(value)
    for name, member in _slots(cls):
        try:
            yield name, member.__get__(value), "attribute"
        except AttributeError:  # not set
            continue
    yield from parts(value, of_training=of_training)


def parts(value: Any, *, of_training: bool) -> Iterator[tuple[str, Any, str]]:
    """Variables of what is not part of the model in training, layers within a layer, an optimizer within another."""
    import keras

    kinds = (keras.Layer, keras.optimizers.Optimizer, keras.Metric, keras.random.SeedGenerator, *_averaging())
    if not of_training and static.is_a(value, kinds):
        for number, variable in enumerate(_variables(value)):
            yield f"variable {number}", variable, ""
    if not of_training and static.is_a(value, keras.Model | keras.callbacks.CallbackList):
        # with these a callback trains by itself
        for name in ("optimizer", "loss"):
            if static.attribute(value, name) is not None:
                yield name, static.attribute(value, name), ""
        for number, callback in enumerate(value.callbacks if static.is_a(value, keras.callbacks.CallbackList) else ()):
            yield f"callback {number}", callback, ""
    if static.is_a(value, keras.Layer) and value._layers:
        within = value._flatten_layers(include_self=False, recursive=False)
        # An InputLayer only says what comes in: Keras puts one before the others when it builds a model.
        layers = [layer for layer in within if not static.is_a(layer, keras.layers.InputLayer)]
        for number, layer in enumerate(layers):
            yield f"layer {number}", layer, ""
    if static.is_a(value, keras.optimizers.Optimizer):  # LossScaleOptimizer, MultiOptimizer
        several = static.attribute(value, "optimizers")
        wrapped = [static.attribute(value, "inner_optimizer"), *(several if isinstance(several, list | tuple) else ())]
        for number, inner in enumerate(x for x in wrapped if static.is_a(x, keras.optimizers.Optimizer)):
            yield f"optimizer {number}", inner, ""


def is_model(value: Any) -> bool:
    """Returns whether an object is a Keras model."""
    import keras

    return static.is_a(value, keras.Model)


def compiled_metrics(model: Any) -> list[Any]:
    """Returns the variables of the loss and metrics that a model was compiled with, as far as they exist."""
    found = (static.attribute(model, name) for name in ("_loss_tracker", "_compile_metrics"))
    return [variable for metric in found if metric is not None for variable in metric.variables]


def may_be_state(value: Any, name: str, item: Any) -> bool:
    """Returns whether an attribute may be state of the user's, and is neither Keras' own nor saved in another way."""
    cls: Any = type(value)
    whose = _whose(cls, name)
    return whose != "ignored" and not _is_hook_of_ours(item) and (whose == "own" or _is_setting(name, item))


@functools.lru_cache(maxsize=2**14)
def _whose(cls: Any, name: str) -> Literal["ignored", "library", "own"]:
    if name in _never_state(cls) or name.startswith(_MARKS):
        return "ignored"
    if name == "_averages" and issubclass(cls, _averaging()):
        return "ignored"  # its variables are parts of it
    return "library" if name in _set_by_library(cls) else "own"


@functools.lru_cache(maxsize=1024)
def _never_state(cls: Any) -> frozenset[str]:
    """Returns names of attributes that are saved in another way, or change without a meaning."""
    import keras

    saved = keras_callbacks.saved_names(cls, _set_by_library)
    if issubclass(cls, keras.callbacks.Callback):
        return saved | _OF_A_CALLBACK
    return saved | _of_keras(cls) if _is_keras(cls) else saved


def _of_keras(cls: Any) -> frozenset[str]:
    import keras

    return _OF_A_LAYER | _OF_A_MODEL if issubclass(cls, keras.Model) else _OF_A_LAYER


def _is_hook_of_ours(item: Any) -> bool:
    """Returns whether it is what this package has put in the place of a method."""
    return type(item) is types.MethodType and type(item.__self__).__module__.startswith("keras_dist_callbacks.")


_MARKS = (
    *("_self_", "_kdc_", "_obj_reference_counts", "_tf_api_names", "_auto_config"),
    *("ag_dnc_wrapper__", "autograph_info__", "_tf_decorator"),
)
"""Beginnings of the names that TensorFlow, Keras and this package set from outside."""


def is_mark(name: str) -> bool:
    """Returns whether an attribute of a function or an object is one that TensorFlow, Keras or this package sets."""
    return name.startswith(_MARKS)


def is_set_by_library(owner: Any, name: str) -> bool:
    """Whether an attribute is one that Keras' own methods set, and so may read."""
    cls: Any = type(owner)
    return not static.is_a(owner, type | types.ModuleType) and name in _set_by_library(cls)


def is_library_layer(value: Any) -> bool:
    """Returns whether an object is a layer or model of a class of Keras' own, of which a large model has a thousand."""
    import keras

    return type(value).__module__.startswith("keras.") and static.is_a(value, keras.Layer)


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute; with a layer's own `trainable`, that of its variables, as Keras does."""
    import keras

    try:
        setattr(owner, name, value)
    except dataclasses.FrozenInstanceError:
        object.__setattr__(owner, name, value)
    if name == "_trainable" and isinstance(owner, keras.Layer):
        for variable in owner._trainable_variables:
            variable.trainable = value


def is_layer(value: Any) -> bool:
    """Returns whether an object is a layer, metric or optimizer: what a model makes of its own when it is built."""
    import keras

    return static.is_a(value, keras.Layer | keras.Metric | keras.optimizers.Optimizer)


def is_traced_class(cls: type) -> bool:
    """Returns whether TensorFlow traces methods of a class: those of layers, models, losses and metrics."""
    import keras

    return issubclass(cls, keras.Layer | keras.Loss | keras.Metric)


def are_slots(value: Any, owner: Any) -> bool:
    """Returns whether a list or dict consists of variables that an optimizer makes when it is built."""
    import keras

    if not static.is_a(owner, keras.optimizers.Optimizer):
        return False
    items = [item for _, item in static.pairs(value)] if static.is_a(value, dict) else static.contents(value)
    return bool(items) and all(static.is_a(item, keras.Variable) for item in items)


def settings_of_layer(layer: Any) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Returns the settings of a layer of Keras' own that are plain values, and other attributes that may be state."""
    cls: Any = type(layer)
    own = layer.__dict__
    names, unknown = _names_of_layer(cls, tuple(own))
    settings: dict[str, Any] = {}
    others = [(name, own[name]) for name in unknown if type(own[name]).__name__ != "History"]
    for name in names:
        item = own[name]
        if type(item) in _PLAIN or static.is_a(item, _PLAIN):
            settings[name] = item
        elif type(item) is types.FunctionType or _is_of_the_user(static.class_of(item)):
            others.append((name, item))
    return settings, others


_PLAIN = (bool, int, float, str, type(None), tuple)


@functools.lru_cache(maxsize=1024)
def _is_of_the_user(cls: Any) -> bool:
    """Returns whether an object of a class, kept by a layer of Keras' own, may be the user's; not of functions."""
    import keras

    if issubclass(cls, (*_PLAIN, list, dict, set)):
        return False
    kinds = (keras.regularizers.Regularizer, keras.constraints.Constraint, types.MethodType, functools.partial)
    return issubclass(cls, kinds) or not (_is_library(cls.__module__) or issubclass(cls, np.ndarray))


@functools.lru_cache(maxsize=1024)
def _names_of_layer(cls: Any, held: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Returns which attributes of a layer of a class are its settings, and which are not set by Keras."""
    known, of_keras = _set_by_library(cls), _of_keras(cls)
    settings = [name for name in known if not name.startswith("_") and name not in of_keras]
    unknown = [name for name in held if name not in known | of_keras and not name.startswith(_MARKS)]
    return [name for name in (*sorted(settings), "_trainable") if name in held], unknown


_ADAPTED = ("lookup_table", "mean", "variance", "bin_boundaries")


def can_adapt(value: Any) -> bool:
    """Returns whether an object is a preprocessing layer with Keras' own `adapt`, or extends one."""
    return any(base.__module__.startswith("keras.") and "adapt" in vars(base) for base in type(value).__mro__)


def adapted(layer: Any) -> dict[str, Any]:
    """Returns what `adapt` of a preprocessing layer has made so far that is not a variable."""
    return {name: vars(layer)[name] for name in _ADAPTED if vars(layer).get(name) is not None}


def is_adapted_otherwise(layer: Any, before: dict[str, Any]) -> bool:
    """Whether a layer has another table or other numbers than before; `load_weights` makes equal numbers again."""
    now = adapted(layer)
    for name, then in before.items():
        is_same = now.get(name) is then
        if not is_same and (name == "lookup_table" or not np.array_equal(np.asarray(then), np.asarray(now.get(name)))):
            return True
    return False


def is_rich_progress(value: Any) -> bool:
    """Returns whether an object is a `rich.progress.Progress`, without importing rich."""
    return any(f"{base.__module__}.{base.__name__}" == "rich.progress.Progress" for base in type(value).__mro__)


def task_numbers(progress: Any) -> list[int]:
    """Returns the number of the next task of a `Progress`, and those of the tasks that are there.

    Callbacks know tasks by number, and add them again when an epoch begins.
    """
    return [int(progress._task_index), *map(int, progress._tasks)]


def renumber_tasks(progress: Any, saved: list[int]) -> None:
    """Gives the tasks the numbers that they had."""
    following, *wanted = saved
    with progress._lock:
        tasks = dict(zip(wanted, progress._tasks.values(), strict=False))
        for number, task in tasks.items():
            task.id = number
        progress._tasks, progress._task_index = tasks, following


def _variables(value: Any) -> list[Any]:
    import keras

    if isinstance(value, keras.random.SeedGenerator):
        return [value.state]
    if isinstance(value, _averaging()):
        return [*value._averages.values()]
    # Keras does not list the states of a stateful recurrent layer.
    states = keras.tree.flatten(getattr(value, "states", None)) if isinstance(value, keras.layers.RNN) else []
    return [*value.variables, *(state for state in states if isinstance(state, keras.Variable))]


@functools.lru_cache(maxsize=1024)
def _slots(cls: Any) -> list[tuple[str, types.MemberDescriptorType]]:
    held = [item for base in cls.__mro__ for item in vars(base).items()]
    return [(name, member) for name, member in held if isinstance(member, types.MemberDescriptorType)]


def _is_setting(name: str, item: Any) -> bool:
    """Whether an attribute that Keras' own methods set is a setting of the user's, and not a part of its workings."""
    import keras

    if name.startswith("_") and name not in _PRIVATE_SETTINGS:
        return False
    if static.is_a(item, keras.Variable):
        return name == "_learning_rate"
    if item is None or static.is_a(item, bool | int | float | str | np.generic):
        return True
    if static.is_a(item, types.FunctionType | types.MethodType | functools.partial):
        return True
    if static.is_a(item, list | tuple | dict | set):
        items = [x for _, x in static.pairs(item)] if static.is_a(item, dict) else static.contents(item)
        return 0 < len(items) <= _LARGEST_SETTING and all(_is_setting(name, x) for x in items)
    kinds = (keras.regularizers.Regularizer, keras.constraints.Constraint, keras.Loss, keras.Metric)
    schedules = keras.optimizers.schedules.LearningRateSchedule
    return static.is_a(item, (*kinds, schedules)) or not _is_library(type(item).__module__)


@functools.lru_cache(maxsize=1024)
def _set_by_library(cls: Any) -> frozenset[str]:
    """Returns names of attributes that the library classes which a class extends set on `self`."""
    bases = [_set_by_methods(base) for base in cls.__mro__ if _is_library(base.__module__)]
    return frozenset().union(_set_from_outside() if _is_keras(cls) else (), *bases)


@functools.lru_cache(maxsize=1024)
def _set_by_methods(cls: Any) -> frozenset[str]:
    functions = (function for item in vars(cls).values() for function in _functions_of(item))
    return frozenset(name for function in functions for name in _stored(function.__code__))


def _functions_of(item: Any) -> Iterator[types.FunctionType]:
    for function in (item, *(static.attribute(item, name) for name in ("fget", "fset", "__func__"))):
        function = static.attribute(function, "__wrapped__", function)
        if type(function) is types.FunctionType:
            yield function


def _is_keras(cls: type) -> bool:
    return any(base.__module__.startswith("keras.") for base in cls.__mro__)


@functools.cache
def _set_from_outside() -> frozenset[str]:
    """Private names that Keras sets on its objects from elsewhere than their own methods."""
    from keras.src.callbacks import callback_list
    from keras.src.models import functional, model, sequential
    from keras.src.ops import function, node, operation
    from keras.src.saving import saving_lib
    from keras.src.trainers import trainer

    modules = (callback_list, functional, model, sequential, function, node, operation, saving_lib, trainer)
    items = list({id(item): item for module in modules for item in vars(module).values()}.values())
    items += [part for item in items if isinstance(item, type) for part in vars(item).values()]
    found = {name for item in items for f in _functions_of(item) for name in _stored(f.__code__)}
    return frozenset(name for name in found if name.startswith("_"))


_STORE, _MORE = bytes([dis.opmap["STORE_ATTR"]]), dis.opmap["EXTENDED_ARG"]


def _stored(code: types.CodeType) -> Iterator[str]:
    """Names of attributes that a function sets, on whatever object; `dis` itself takes a hundred times as long."""
    content = code.co_code
    at = content.find(_STORE)
    while at >= 0:
        if at % 2 == 0:  # an operation, and not an argument
            high = content[at - 1] << 8 if at and content[at - 2] == _MORE else 0
            yield code.co_names[high | content[at + 1]]
        at = content.find(_STORE, at + 1)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("keras", "tensorflow", "builtins", "keras_dist_callbacks", "optree")

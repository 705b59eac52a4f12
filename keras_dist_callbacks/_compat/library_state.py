"""Which attributes of Keras' objects belong to the library, which to the user, and which are saved elsewhere.

A user's class that extends one of Keras has both: what Keras' own methods set on `self` is Keras', all else is the
user's.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import keras_callbacks

_OF_A_CALLBACK = frozenset(["model", "_model", "params", "validation_data"])
_OF_A_LAYER = frozenset(
    [
        *("built", "stop_training", "name", "_name", "optimizer", "loss", "train_function", "test_function"),
        *("predict_function", "inputs", "outputs", "autocast", "supports_masking", "input_spec", "dtype_policy"),
    ]
)
"""What Keras changes while it trains, and what is visited from where it belongs."""

_PRIVATE_SETTINGS = frozenset(["_fn_kwargs", "_trainable", "_user_loss", "_user_metrics", "_user_weighted_metrics"])
_OWNED = ("Dataset", "Strategy", "StrategyBase", "Graph", "TensorSpec", "DTypePolicy", "Variable", "Node", "Tracker")
_LARGEST_SETTING = 32


def is_owned(value: Any) -> bool:
    """Whether an object belongs to what the capture of variables, graphs and data saves, or to this package."""
    module = type(value).__module__
    names = {base.__name__ for base in type(value).__mro__}
    return module.startswith("keras_dist_callbacks.") or bool(names & set(_OWNED) and _is_library(module))


def is_opaque(value: Any) -> bool:
    """Whether an object of TensorFlow's keeps a state that cannot be inspected: an iterator, a queue, a table."""
    import tensorflow as tf

    module = type(value).__module__
    return module.startswith("tensorflow.") and not isinstance(value, tf.Module | tf.Variable)


def attributes(value: Any, *, of_training: bool) -> Iterator[tuple[str, Any, str]]:
    """The attributes of an instance that may be state: name, value, and the kind of place it is bound in.

    Args:
        value: The instance.
        of_training: It is part of the model in training, whose variables are saved in another way.
    """
    for name, item in _instance_dict(value):
        if _may_be_state(value, name, item, of_training=of_training):
            if name == "min_delta" and isinstance(item, float | int) and keras_callbacks.known(value):
                yield name, abs(item), "magnitude"  # Keras flips its sign when it first compares
            else:
                yield name, item, "attribute"
    for name, item in _slots(value):
        yield name, item, "attribute"
    yield from _parts(value, of_training=of_training)


def _parts(value: Any, *, of_training: bool) -> Iterator[tuple[str, Any, str]]:
    """The variables of what is not part of the model in training, and the layers within a layer."""
    import keras

    if isinstance(value, keras.Layer | keras.optimizers.Optimizer | keras.random.SeedGenerator) and not of_training:
        for number, variable in enumerate(_variables(value)):
            yield f"variable {number}", variable, ""
    if isinstance(value, keras.Layer):
        for number, layer in enumerate(value._flatten_layers(include_self=False, recursive=False)):
            yield f"layer {number}", layer, ""


def _may_be_state(value: Any, name: str, item: Any, *, of_training: bool) -> bool:
    import keras

    cls = type(value)
    if name in _saved_names(cls) or name.startswith(_MARKS):
        return False
    if isinstance(item, keras.callbacks.History) or (of_training and isinstance(item, keras.optimizers.Optimizer)):
        return False
    if name in (_OF_A_CALLBACK if isinstance(value, keras.callbacks.Callback) else _OF_A_LAYER) and _is_keras(cls):
        return False
    return name not in _library_names(cls) or _is_setting(name, item)


_MARKS = ("_self_", "_kdc_", "_obj_reference", "_tf_api", "_auto")
"""Beginnings of the names that TensorFlow, Keras and this package set from outside."""


def is_set_by_library(owner: Any, name: str) -> bool:
    """Whether an attribute is one that Keras' own methods set, and so may read."""
    return not isinstance(owner, type | types.ModuleType) and name in _library_names(type(owner))


def _variables(value: Any) -> list[Any]:
    return [value.state] if hasattr(value, "state") else list(value.variables)


def _instance_dict(value: Any) -> list[tuple[str, Any]]:
    try:
        return list(object.__getattribute__(value, "__dict__").items())
    except AttributeError:
        return []


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield name, member.__get__(value)
                except AttributeError:  # not set
                    continue


def _is_setting(name: str, item: Any) -> bool:
    """Whether an attribute that Keras' own methods set is a setting of the user's, and not a part of its workings."""
    import keras

    if name.startswith("_") and name not in _PRIVATE_SETTINGS:
        return False
    if item is None or isinstance(item, bool | int | float | str | np.generic):
        return True
    if isinstance(item, types.FunctionType | types.MethodType | functools.partial):
        return True
    if isinstance(item, list | tuple | dict | set):
        items = list(item.values()) if isinstance(item, dict) else list(item)
        return 0 < len(items) <= _LARGEST_SETTING and all(_is_setting(name, x) for x in items)
    kinds = (keras.regularizers.Regularizer, keras.constraints.Constraint, keras.Loss, keras.Metric)
    schedules = keras.optimizers.schedules.LearningRateSchedule
    return isinstance(item, (*kinds, schedules)) or not _is_library(type(item).__module__)


def _saved_names(cls: type) -> frozenset[str]:
    """Names of attributes of a Keras callback that its entry in the table of callbacks saves."""
    return keras_callbacks.saved_names(cls, _library_names)


def _library_names(cls: Any) -> frozenset[str]:
    return _set_by_library(cls)


@functools.lru_cache(maxsize=1024)
def _set_by_library(cls: Any) -> frozenset[str]:
    """Names of attributes that the library classes which a class extends set on `self`."""
    found: set[str] = set(_set_from_outside() if _is_keras(cls) else ())
    for base in cls.__mro__:
        if _is_library(base.__module__):
            for item in vars(base).values():
                for function in _functions_of(item):
                    found |= _stored_on_self(function.__code__)
    return frozenset(found)


def _functions_of(item: Any) -> Iterator[types.FunctionType]:
    for function in (item, getattr(item, "fget", None), getattr(item, "fset", None), getattr(item, "__func__", None)):
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, types.FunctionType):
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
    items = [item for module in modules for item in vars(module).values()]
    items += [part for item in items if isinstance(item, type) for part in vars(item).values()]
    found = {name for item in items for f in _functions_of(item) for name in _stored_anywhere(f.__code__)}
    return frozenset(name for name in found if name.startswith("_"))


def _stored_on_self(code: types.CodeType) -> set[str]:
    owner, found, before = code.co_varnames[0] if code.co_argcount else None, set(), None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR" and before == owner:
            found.add(instruction.argval)
        before = instruction.argval
    return found


def _stored_anywhere(code: types.CodeType) -> set[str]:
    return {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("keras", "tensorflow", "builtins", "keras_dist_callbacks", "optree")

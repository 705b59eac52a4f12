"""From the callbacks, the model and their functions to every object that they reach."""

from __future__ import annotations

import functools
import operator
import random
import struct
import threading
import types
import weakref
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dist_callbacks._compat import library_state
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.user_state import functions, values
from keras_dist_callbacks.state.user_state import nodes as n
from keras_dist_callbacks.state.user_state.libraries import is_compiled_function, is_library, is_output
from keras_dist_callbacks.state.user_state.nodes import Slot, join
from keras_dist_callbacks.state.user_state.walker import Found, Limits, Look, Looks, Policy, Root, Walker, name_of

_BUILTINS = (types.BuiltinFunctionType, types.MethodWrapperType)
_LIBRARY_CONSTANTS = (
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType, np.dtype),
    *(types.GenericAlias, tf.DType, tf.TensorShape, tf.TypeSpec),
    *(operator.itemgetter, operator.attrgetter, operator.methodcaller, type(Slot.kind)),
)


def walk(
    roots: Mapping[str, Root], policy: Policy, limits: Limits | None = None, *, start: Found | None = None
) -> Found:
    """Looks at everything that the roots reach, on the main thread, between two steps.

    Args:
        roots: By path, in the order in which they are visited: an object has the path by which it is reached first.
        policy: What is not looked into.
        limits: How much is.
        start: An earlier walk, whose paths come before others: an object that is still there has the path from then.
    """
    return Walker(policy, limits or Limits(), start, _LOOKS, look_at_instance).run(roots)


def look_at_library_layer(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a layer of Keras with its settings, and visits the layers within it."""
    settings, others = library_state.settings_of_layer(value)
    walk.add(path, slot, value, "layer", is_traced, ("layer", name_of(type(value)), *settings.items()))
    for name, item in others:
        walk.push(join(path, name), Slot("attribute", value, name), item, is_traced)
    of_training = is_traced and is_of_training(walk, path)
    for name, item, _ in library_state.parts(value, of_training=of_training):
        walk.push(join(path, name), None, item, is_traced)


def is_of_training(walk: Walker, path: str) -> bool:
    """Returns whether Keras lists the variables of what is at a path, as part of the model, its optimizer or metrics.

    A step may use other layers and models, in its loss say, of which callbacks change more than the step uses.
    """
    above = n.parent_of(path)[0]
    while above in walk.found.nodes and type(walk.found.nodes[above].value).__module__ in _WRAPPERS:
        above = n.parent_of(above)[0]
    if path in _LISTED_ROOTS or above in walk.of_training:
        walk.of_training.add(path)
    return path in walk.of_training


_WRAPPERS = ("keras.src.utils.tracking", "tensorflow.python.trackable.data_structures")
"""Where the containers are defined in which Keras and TensorFlow wrap those of a model."""
_LISTED_ROOTS = ("model", "optimizer", "metrics", "weighted metrics")


def look_at_instance(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes an object, by what is known of its class; of any other, visits the attributes."""
    if walk.is_first_of(type(value)):
        for at, function in functions.replaced_methods(type(value)):
            walk.push(at, None, function, is_traced)
    if library_state.is_library_layer(value):
        look_at_library_layer(walk, path, slot, value, is_traced)
        return
    fixed = _fixed_kind(walk, value)
    if fixed is not None:
        walk.add(path, slot, value, fixed, is_traced)
        if fixed == "constant":
            held = static.instance_dict(value).items()
            walk.found.counts |= {join(path, name): item for name, item in held if type(item) in (int, float)}
    elif _only_writes(value) or library_state.is_opaque(value) or not _is_open(type(value)):
        walk.add_unknown(path, slot, value, is_traced)
    else:
        walk.add(path, slot, value, *_kind_of_state(walk, path, value, is_traced))
        if not library_state.is_rich_progress(value):
            push_attributes(walk, path, value, is_traced)


def _kind_of_state(walk: Walker, path: str, value: Any, is_traced: bool) -> tuple[str, bool, tuple[Any, ...]]:
    """Returns what to note of an object, by whether it has `get_state` or the like."""
    if not walk.has_own_state(value):
        return "object", is_traced, ()
    if walk.is_listed(value):
        walk.found.with_own_state |= {path, f"class {name_of(type(value))}"}
        return "object", is_traced, ()  # the table of callbacks saves it
    try:
        state = walk.own_state(value)
    except Exception as error:  # noqa: BLE001 - one of another meaning, with arguments say
        walk.found.unknown[path] = f"its get_state() raised {type(error).__name__}: {error}"
        return "unknown", is_traced, ()
    walk.found.with_own_state |= {path, f"class {name_of(type(value))}"}
    return "own_state", is_traced, ("own_state", repr(n.plain_token(state)))


def _only_writes(value: Any) -> bool:
    """Returns whether an object only writes output, and callbacks know nothing of it that a restore must put back."""
    return is_output(value) and not library_state.is_rich_progress(value)


def _fixed_kind(walk: Walker, value: Any) -> str | None:
    """Returns the kind of an instance that is not looked into; None of any other."""
    if _only_writes(value) and is_library(type(value).__module__):  # the user's own may keep more
        return "constant"
    if is_compiled_function(value) and is_library(value.__module__):
        return "constant"
    if walk.is_asserted(value):
        return "asserted"
    return "owned" if library_state.is_owned(value) else None


def push_attributes(walk: Walker, path: str, value: Any, is_traced: bool) -> None:
    """Visits the attributes of an object, and its class if that is one of the user's."""
    cls = type(value)
    if not is_library(cls.__module__):
        walk.push(f"class {name_of(cls)}", None, cls, is_traced)
    of_training = is_traced and library_state.is_layer(value) and is_of_training(walk, path)
    is_listed = walk.is_listed(value) and not walk.has_own_state(value)
    for name, item, kind in library_state.attributes(value, of_training=of_training, is_listed=is_listed):
        walk.push(join(path, name), Slot(kind, value, name) if kind else None, item, is_traced)


def _is_open(cls: type) -> bool:
    """Whether all that instances hold is in their `__dict__` and slots: nothing that a class of C keeps for itself."""
    items = [item for base in cls.__mro__ if "__slots__" in vars(base) for item in vars(base).values()]
    slots = [item for item in items if type(item) is types.MemberDescriptorType]
    pointers = len(slots) + bool(cls.__dictoffset__) + bool(cls.__weakrefoffset__)
    is_small = cls.__itemsize__ == 0 and cls.__basicsize__ <= object.__basicsize__ + pointers * _POINTER
    return is_small and not static.hides_dict(cls)


_POINTER = struct.calcsize("P")
_KINDS: tuple[tuple[Any, Look], ...] = (
    (n.CONTAINERS, values.look_at_container),
    (np.ndarray, values.look_at_array),
    ((random.Random, np.random.Generator, np.random.RandomState), values.look_at_random),
    ((keras.Variable, tf.Variable), values.look_at_variable),
    (tf.Tensor, values.look_at_tensor),
    (tf.random.Generator, values.look_at_generator_of_tensorflow),
    (type(tf.function(lambda: None)), values.look_at_traced_function),
    (type(tf.custom_gradient(lambda x: x)), functions.look_at_wrapper),
    (tf.data.Dataset, values.noting("dataset")),
    ((keras.KerasTensor, tf.distribute.Strategy, tf.lookup.StaticHashTable), values.noting("owned")),
    (tf.lookup.experimental.MutableHashTable, values.look_at_table),
    (types.FunctionType, functions.look_at_function),
    (types.MethodType, functions.look_at_method),
    (_BUILTINS, functions.look_at_builtin),
    (functools.partial, functions.look_at_partial),
    (type, functions.look_at_class),
    (types.ModuleType, functions.look_at_module),
    (
        (staticmethod, classmethod, property, functools.cached_property, functools._lru_cache_wrapper),
        functions.look_at_wrapper,
    ),
    (n.ITERATORS, values.look_at_iterator),
    (types.GeneratorType, values.look_at_generator),
    (threading.Event, values.look_at_event),
    (type(threading.Lock()), values.look_at_lock),
    ((threading.local, threading.Semaphore, threading.Barrier), Walker.add_unknown),
    (np.ufunc, functions.look_at_ufunc),
    (weakref.ReferenceType, values.look_at_weak_reference),
    (_LIBRARY_CONSTANTS, functions.look_at_constant),
)
_LOOKS: Looks = [(frozenset(kinds if isinstance(kinds, tuple) else (kinds,)), look) for kinds, look in _KINDS]

"""How a walk looks at values: containers, arrays, random states, iterators, tensors and variables."""

from __future__ import annotations

import collections
import random
import sys
import types
import weakref
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import graphs, library_state, variables
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_values import key_text
from keras_dist_callbacks.state.user_state import nodes as n
from keras_dist_callbacks.state.user_state.libraries import is_library
from keras_dist_callbacks.state.user_state.nodes import Slot, join
from keras_dist_callbacks.state.user_state.reads import reads_of
from keras_dist_callbacks.state.user_state.walker import Look, Walker, name_of


def look_at_container(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a container: flat ones with their content, of others each item is visited."""
    cls = type(value)
    if not is_library(cls.__module__):  # one of the user's, which may have attributes too
        walk.push(f"class {name_of(cls)}", None, cls, is_traced)
        for name, item in static.instance_dict(value).items():
            walk.push(join(path, f".{name}"), Slot("attribute", value, name), item, is_traced)
    kind = static.class_of(value)
    if issubclass(kind, bytearray):
        walk.add(path, slot, value, "container", is_traced, n.flat_token(value))
        return
    if issubclass(kind, dict):
        look_at_dict(walk, path, slot, value, is_traced)
        return
    items = static.contents(value)
    if n.is_flat(items):
        _look_at_flat(walk, path, slot, value, is_traced)
    elif issubclass(kind, set | frozenset):
        walk.add_unknown(path, slot, value, is_traced, "a set of objects")
    else:
        walk.add(path, slot, value, "container", is_traced, (type(value).__name__, len(items)))
        is_tuple = issubclass(kind, tuple)
        for index, item in enumerate(items):
            walk.push(join(path, index), None if is_tuple else Slot("item", value, index), item, is_traced)


def _look_at_flat(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    token = n.flat_token(value)
    walk.add(path, slot, value, "container", is_traced, token)
    if not static.is_a(value, set | frozenset):
        return
    if walk.token_at_start(path, token) != token:
        walk.found.changed_sets[path] = value
    items = static.contents(value)
    if sys.flags.hash_randomization and len(items) > 1 and {str, bytes} & set(map(type, items)):
        walk.found.sets_of_texts.add(path)


def look_at_dict(walk: Walker, path: str, slot: Slot | None, value: dict[Any, Any], is_traced: bool) -> None:
    """Notes a dict, and visits its values by their keys; ids and objects as keys are unknown."""
    if static.is_a(value, collections.defaultdict):
        _push_factory(walk, path, value, is_traced)
    items = static.pairs(value)
    held = [key for key, _ in items]
    by_id = any(type(key) is int and key > _SMALLEST_ADDRESS for key in held)
    if by_id and not library_state.are_slots(value, None if slot is None else slot.owner):
        walk.add_unknown(path, slot, value, is_traced, "a dict whose keys may be the ids of objects")
        return
    if not n.is_flat(held):
        keys = [_key_of(key) for key in held]
        if None in keys:
            walk.add_unknown(path, slot, value, is_traced, "a dict whose keys are objects")
            return
    else:
        keys = [repr(key) if type(key) is not str else key for key in held]
        if n.is_flat(item for _, item in items):
            walk.add(path, slot, value, "container", is_traced, n.flat_token(value))
            return
    if len(set(keys)) < len(keys):
        walk.add_unknown(path, slot, value, is_traced, "a dict with keys that have the same text")
        return
    walk.add(path, slot, value, "container", is_traced, (type(value).__name__, tuple(keys)))
    for text, (key, item) in zip(keys, items, strict=True):
        walk.push(join(path, text), Slot("item", value, key), item, is_traced)


def _push_factory(walk: Walker, path: str, value: Any, is_traced: bool) -> None:
    factory = vars(collections.defaultdict)["default_factory"].__get__(static.target(value))
    if factory is not None and not static.is_a(factory, type):
        walk.push(join(path, "default_factory"), None, factory, is_traced)


_SMALLEST_ADDRESS = 2**32


def _key_of(key: Any) -> str | None:
    if n.is_immutable(key) or (type(key) is tuple and all(map(n.is_immutable, key))):
        return key_text(key)
    return name_of(key) if static.is_a(key, type | types.FunctionType) else None


def look_at_array(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes an array with a digest of its content."""
    if type(value) not in (np.ndarray, np.memmap):  # one with a mask, for instance
        walk.add_unknown(path, slot, value, is_traced)
    elif not n.is_numeric(value):
        items = value.reshape(-1).tolist()
        if value.dtype.hasobject and n.is_flat(items) and walk.allows(8 * len(items)):
            walk.add(path, slot, value, "texts", is_traced, ("texts", value.shape, *n.flat_token(items)))
        elif value.dtype.kind in "USmM" and walk.allows(value.nbytes):
            walk.add(
                path, slot, value, "texts", is_traced, ("texts", value.shape, *n.flat_token(list(map(str, items))))
            )
        else:
            kind = "a structured array" if value.dtype.names else "an array of objects"
            walk.add_unknown(path, slot, value, is_traced, kind)
    elif walk.allows(value.nbytes):
        walk.add(path, slot, value, "array", is_traced, n.array_token(value))
        if not value.flags.c_contiguous and not walk.was_there(path, value):
            walk.found.unknown[path] = "an array whose order in memory is not saved"
    else:
        walk.add_unknown(path, slot, value, is_traced, "an array too large to compare")


def look_at_random(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a random generator with its state."""
    if static.is_a(value, random.SystemRandom):
        walk.add(path, slot, value, "constant", is_traced)
    else:
        walk.add(path, slot, value, "random", is_traced, n.random_token(value))


def look_at_event(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes whether an event is set: it orders threads, and is unknown once training has set or cleared it."""
    token = ("event", n.is_set(value))
    if walk.token_at_start(path, token) in (token, None):
        walk.add(path, slot, value, "constant", is_traced, token)
    else:
        walk.add_unknown(path, slot, value, is_traced, "an event that training has set or cleared")


def look_at_lock(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a lock, which is unknown once training took or released it."""
    token = ("lock", value.locked())
    if walk.token_at_start(path, token) in (token, None):
        walk.add(path, slot, value, "constant", is_traced, token)
    else:
        walk.add_unknown(path, slot, value, is_traced, "a lock that training took or released")


def look_at_iterator(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes an iterator with its position, which can be compared and not restored."""
    walk.add(path, slot, value, "iterator", is_traced, n.iterator_token(value))


def look_at_generator(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a Python generator with its position, which can be compared and not restored."""
    walk.add(path, slot, value, "generator", is_traced, n.generator_token(value))


def look_at_weak_reference(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Visits what a weak reference refers to."""
    walk.add(path, slot, value, "constant", is_traced)
    walk.push(join(path, "referent"), None, weakref.ref.__call__(value), is_traced)


def look_at_variable(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a variable with its content, unless it is saved with the model; visits what the user put on it."""
    for name, item in variables.attributes_of_the_user(value):
        walk.push(join(path, name), Slot("attribute", value, name), item, is_traced)
    component = variables.components(value)[0]
    if walk.is_saved(value) or component.dtype.name in {"resource", "variant"}:
        walk.add(path, slot, value, "owned", is_traced, ("owned",))
        return
    if component.dtype.name == "string":
        walk.add(path, slot, value, "texts of TensorFlow", is_traced, ("texts", repr(component.numpy())))
        return
    tokens = tuple(n.array_token(variables.read(c)) for c in variables.components(value))
    walk.add(path, slot, value, "variable", is_traced, ("variable", *tokens))


def look_at_generator_of_tensorflow(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Visits the state of a `tf.random.Generator`."""
    walk.add(path, slot, value, "object", is_traced)
    walk.push(join(path, "state"), None, value.state, is_traced)


def look_at_tensor(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a tensor with a digest of its content."""
    if not static.has(value, "numpy") or not value.dtype.is_numpy_compatible:
        walk.add(path, slot, value, "owned", is_traced)
        return
    array = value.numpy()
    if isinstance(array, np.ndarray | np.generic) and n.is_numeric(np.asarray(array)):
        walk.add(path, slot, value, "tensor", is_traced, ("tensor", *n.array_token(np.asarray(array))))
    else:
        walk.add(path, slot, value, "texts of TensorFlow", is_traced, ("texts", repr(array)))


def look_at_table(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a mutable lookup table with its content."""
    parts = [np.asarray(part).reshape(-1).tolist() for part in graphs.table_content(value)]
    if walk.allows(8 * sum(map(len, parts))):
        walk.add(path, slot, value, "table", is_traced, ("table", *map(n.flat_token, parts)))
    else:
        walk.add_unknown(path, slot, value, is_traced, "a lookup table too large to compare")


def noting(kind: str) -> Look:
    """Only notes an object, as one of a kind."""
    return lambda walk, path, slot, value, is_traced: walk.add(path, slot, value, kind, is_traced)


def look_at_traced_function(walk: Walker, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """Notes a `tf.function`, with the names that it read when it was traced, and visits the Python function."""
    walk.add(path, slot, value, "constant", is_traced)
    if drawn := graphs.random_operations(value):
        walk.found.unknown[path] = f"it draws by TensorFlow's {drawn[0]}, whose state cannot be saved"
    function = value.python_function
    function = function.__func__ if type(function) is types.MethodType else function
    if type(function) is types.FunctionType:  # and not an object that can be called
        walk.found.traced_functions.add(function)
        if graphs.concrete_functions(value):
            walk.found.names_in_functions |= reads_of(function.__code__).names
            walk.found.names_in_functions.update(function.__code__.co_freevars)
    walk.push(join(path, "python_function"), None, value.python_function, is_traced)

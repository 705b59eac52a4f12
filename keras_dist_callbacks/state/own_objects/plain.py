"""Plain values: which cannot change, what distinguishes two of them, and the names of functions and classes."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import marshal
import operator
import pathlib
import random
import re
import types
import uuid
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash

from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_objects.libraries import is_library, library_base
from keras_dist_callbacks.state.own_objects.reads import code_digest

_SCALARS = frozenset(
    [
        *(type(None), bool, int, float, complex, str, bytes),
        *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64),
    ]
)
_IMMUTABLE = (
    *(type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum, pathlib.PurePath),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, range, slice),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern),
)


def is_immutable(value: Any) -> bool:
    """Returns whether a value cannot change, so that only the place where it is bound can."""
    return issubclass(type(value), _IMMUTABLE) or (type(value) in (tuple, frozenset) and not value)


def is_member(value: Any) -> bool:
    """Returns whether a value is a member of an Enum."""
    return issubclass(type(value), enum.Enum)


def immutable_token(value: Any) -> tuple[Any, ...]:
    """Returns what distinguishes a value that cannot change from others."""
    if issubclass(type(value), np.generic):
        return (value.dtype.str, value.tobytes())
    return (type(value).__qualname__, text_of(value))


def text_of(value: Any) -> Any:
    """Returns a text or bytes as they are, the name of a member of an Enum, and what Python writes for other values.

    Of an instance of a class of the user's, what the class of a library would write that it extends.
    """
    cls = type(value)
    if issubclass(cls, enum.Enum):
        held = static.instance_dict(value)
        return held.get("_name_") or repr(text_of(held["_value_"]))
    if issubclass(cls, str | bytes):
        return str.__str__(value) if issubclass(cls, str) else bytes(memoryview(value))
    return library_base(cls).__repr__(value)


def attributes_of_immutable(value: Any) -> list[tuple[str, Any]]:
    """Returns what a member of an Enum, or an instance of a subclass of the user's, holds besides its value."""
    if type(value) in _SCALARS or is_library(type(value).__module__):
        return []
    of_enum = ("_value_", "_name_", "_sort_order_", "__objclass__")
    return [(name, item) for name, item in static.instance_dict(value).items() if name not in of_enum]


def is_flat(items: Iterable[Any]) -> bool:
    """Returns whether all items are plain numbers, strings and the like."""
    return set(map(type, items)) <= _SCALARS


def items_of(value: Any) -> list[Any]:
    """Returns all that a container holds, keys included."""
    items = static.contents(value)
    return items + [item for _, item in static.pairs(value)] if static.is_a(value, dict) else items


def flat_token(value: Any) -> list[Any]:
    """Returns what distinguishes a container of plain values from others."""
    cls = static.class_of(value)
    if issubclass(cls, bytearray):
        return ["bytes", xxhash.xxh3_128_hexdigest(value)]
    content = items_of(value)
    if issubclass(cls, set | frozenset):
        content.sort(key=repr)
    kinds = sorted(kind.__name__ for kind in set(map(type, content)))
    size = [_LENGTH.__get__(value)] if issubclass(cls, collections.deque) else []
    return [type(value).__name__, *size, *kinds, xxhash.xxh3_128_hexdigest(marshal.dumps(content, 2))]


_LENGTH = vars(collections.deque)["maxlen"]


def array_token(array: np.ndarray[Any, Any]) -> list[Any]:
    """Returns what distinguishes a numeric array from others."""
    found = np.ascontiguousarray(array)
    return [array.dtype.str, array.shape, xxhash.xxh3_128_hexdigest(found.reshape(-1).view(np.uint8).data)]


def is_numeric(array: np.ndarray[Any, Any]) -> bool:
    """Returns whether an array holds numbers, and nothing that only an interpreter knows."""
    return array.dtype.kind in "biufcV" and not array.dtype.hasobject and array.dtype.names is None


def random_state(generator: Any, *, seeds: bool = False) -> Any:
    """Returns the state of a random generator of Python or numpy, as plain values.

    Args:
        generator: It.
        seeds: Of one that training has made, also how it was seeded, which what it spawns depends on.
    """
    if static.is_a(generator, random.Random):  # as `getstate` returns it
        state = _GETSTATE(generator)
        return [random.Random.VERSION, list(state), static.attribute(generator, "gauss_next")]
    if not static.is_a(generator, np.random.Generator):
        return _plain(generator.get_state(False))
    seed = generator.bit_generator.seed_seq
    children = getattr(seed, "n_children_spawned", 0)
    state = {**_plain(generator.bit_generator.state), **({_CHILDREN: children} if children else {})}
    if seeds and type(seed) is np.random.SeedSequence:
        state[_SEED] = [_plain(seed.entropy), list(seed.spawn_key), seed.pool_size]
    return state


_GETSTATE = random.Random.__bases__[0].getstate  # type: ignore[attr-defined]
_CHILDREN, _SEED = "children", "seed"


def set_random_state(generator: Any, state: Any) -> None:
    """Puts back what `random_state` returned."""
    if isinstance(generator, random.Random):
        generator.setstate((state[0], tuple(state[1]), state[2]))
    elif isinstance(generator, np.random.Generator):
        missing = state.get(_CHILDREN, 0) - getattr(generator.bit_generator.seed_seq, "n_children_spawned", 0)
        if missing < 0:
            raise LookupError("it has spawned more generators than the interrupted run's")
        if missing:
            generator.spawn(missing)
        generator.bit_generator.state = {name: value for name, value in state.items() if name not in (_CHILDREN, _SEED)}
    else:
        generator.set_state(state)


def new_random(kind: str, state: Any) -> Any:
    """Returns a random generator of Python or numpy with a state."""
    if kind == "Random":
        made: Any = random.Random()  # noqa: S311 - it is the user's
    elif kind == "RandomState":
        made = np.random.RandomState()
    elif kind == "Generator" and _SEED in state and state["bit_generator"] in _BIT_GENERATORS:
        entropy, key, size = state[_SEED]
        seed = np.random.SeedSequence(
            entropy, spawn_key=key, pool_size=size, n_children_spawned=state.get(_CHILDREN, 0)
        )
        made = np.random.Generator(getattr(np.random, state["bit_generator"])(seed))
    else:
        raise LookupError(f"a {kind} cannot be made again")
    set_random_state(made, state)
    return made


_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def iterator_token(iterator: Any) -> Any:
    """Returns how far an iterator, a counter or a generator is."""
    if not isinstance(iterator, types.GeneratorType):
        return repr(iterator) if isinstance(iterator, itertools.count) else operator.length_hint(iterator)
    frame = iterator.gi_frame
    held = {} if frame is None else frame.f_locals
    plain = {name: value for name, value in held.items() if type(value) in _SCALARS}
    return None if frame is None else [frame.f_lasti, repr(plain)]


def base_of(array: np.ndarray[Any, Any]) -> Any:
    """Returns the object in whose memory an array is; the array itself if it has its own."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if array.base is None else array.base


def identity(value: Any) -> Any:
    """Returns what distinguishes an object from others and keeps it not alive: a weak reference, or its address.

    Another object that has the address of a list later, at the same path, has taken its place.
    """
    try:
        return _Identity(weakref.ref(value))
    except TypeError:
        return id(value)


class _Identity:
    """Equal for one object, which is not asked."""

    def __init__(self, reference: weakref.ref[Any]) -> None:
        self._reference, self._hash = reference, id(reference())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Identity) and self._reference() is not None and self._reference() is other._reference()
        )


def name_of(value: Any) -> str:
    """Returns the full name of a function, class or module."""
    if type(value) is types.FunctionType:
        module, name = value.__module__, value.__qualname__
    else:
        module, name = (_names_of_class if static.is_a(value, type) else _names_of)(value)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


def _names_of(value: Any) -> tuple[Any, Any]:
    module, name = (static.attribute(value, name) for name in ("__module__", "__qualname__"))
    return module, name or static.attribute(value, "__name__") or type(value).__name__


@functools.lru_cache(maxsize=4096)  # of each object's class, in each look
def _names_of_class(cls: type) -> tuple[Any, Any]:
    """By what `type` itself says: a class may have names of its own for its objects, as that of generators has."""
    cls = static.target(cls)
    return vars(type)["__module__"].__get__(cls), vars(type)["__qualname__"].__get__(cls)


def label_of(value: Any) -> str:
    """Returns by what an object is known that cannot be made again, besides its path: its name, or its class'."""
    if type(value) is types.FunctionType:
        return f"{name_of(value)} {code_digest(value.__code__)[:8]}"  # lambdas have one name
    if static.is_a(value, type | types.ModuleType | types.BuiltinFunctionType):
        return name_of(value)
    return f"an object of {name_of(type(value))}"

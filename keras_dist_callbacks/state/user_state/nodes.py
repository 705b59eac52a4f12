"""What a walk records of one object: where it is bound, of what kind it is, and a token that two walks can compare."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import itertools
import marshal
import operator
import pathlib
import random
import re
import types
import uuid
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

from keras_dist_callbacks._compat import library_state
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_values import segment
from keras_dist_callbacks.state.user_state.libraries import is_library, library_base

_SCALARS = frozenset(
    [
        *(type(None), bool, int, float, complex, str, bytes),
        *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64),
    ]
)
IMMUTABLE = (
    *(type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum, pathlib.PurePath),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, range, slice),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern),
)
"""Values that cannot change: only the place where they are bound can."""

CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, bytearray)
ITERATORS: tuple[type, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    type(reversed([])),
    type(iter(np.zeros(1))),
    itertools.count,
)
_HIDDEN_SEGMENTS = ("self", "function", "func", "python_function", "__func__", "__wrapped__", "fget", "fset")


class Slot(NamedTuple):
    """Where a value is bound.

    Attributes:
        kind: `"attribute"`, `"item"`, `"global"`, `"cell"`, `"default"`, `"keyword"`, or `"magnitude"`: an attribute
            of which only the absolute value counts.
        owner: The object, container, namespace, cell or function.
        key: Its name, key or index there.
    """

    kind: str
    owner: Any
    key: Any = None

    def bind(self, value: Any) -> None:
        """Puts a value there."""
        if self.kind == "attribute":
            library_state.set_attribute(self.owner, self.key, value)
        elif self.kind == "magnitude":
            library_state.set_attribute(self.owner, self.key, np.copysign(value, getattr(self.owner, self.key)).item())
        elif self.kind == "cell":
            self.owner.cell_contents = value
        elif self.kind == "default":
            defaults = list(self.owner.__defaults__)
            defaults[self.key] = value
            self.owner.__defaults__ = tuple(defaults)
        else:
            self.owner[self.key] = value

    def clear(self) -> None:
        """Takes the value away: the name is not bound any more."""
        if self.kind in ("attribute", "magnitude"):
            delattr(self.owner, self.key)
        elif self.kind == "cell":
            del self.owner.cell_contents
        else:
            del self.owner[self.key]


class Node(NamedTuple):
    """One object as a walk found it.

    Attributes:
        slot: Where it is bound; None where nothing can be put in its place.
        value: The object.
        kind: How it is compared, saved and restored.
        token: Two nodes of one path with the same token are the same value.
        is_traced: Whether functions that TensorFlow traces may have read it.
    """

    slot: Slot | None
    value: Any
    kind: str
    token: tuple[Any, ...]
    is_traced: bool = False


def remembered(node: Node) -> Node:
    """Returns a node that keeps nothing alive but a number or text: its value is a weak reference or an identity."""
    slot = None if node.slot is None else node.slot._replace(owner=None)
    token = ("own_state",) if node.kind == "own_state" else node.token  # which may hold all of the state
    try:
        value = node.value if node.kind == "value" else weakref.ref(node.value)
    except TypeError:  # a list or dict; one that has its address later, at the same path, has taken its place
        value = id(node.value)
    return node._replace(slot=slot, value=value, token=token)


def recalled(nodes: Mapping[str, Node], now: Mapping[str, Node]) -> dict[str, Node]:
    """Returns nodes that `remembered` has returned, with the objects that are still there.

    Args:
        nodes: By path.
        now: What is there.
    """
    objects, found = {id(node.value): node.value for node in now.values()}, {}
    for path, node in nodes.items():
        slot, value, present, holder = node.slot, node.value, now.get(path), now.get(parent_of(path)[0])
        if node.kind != "value":
            value = value() if isinstance(value, weakref.ref) else objects.get(value)
        if slot is not None and present is not None:
            slot = present.slot
        elif slot is not None:
            slot = slot._replace(owner=holder.value) if holder is not None and slot.kind == "attribute" else None
        found[path] = node._replace(slot=slot, value=value)
    return found


def join(path: str, *segments: object) -> str:
    """Returns a path below another one."""
    return "/".join([path, *map(segment, segments)])


def parent_of(path: str) -> tuple[str, str]:
    """Returns the path above, and the last segment."""
    above, _, last = path.rpartition("/")
    return above, last.replace("~1", "/").replace("~0", "~")


def with_parents(path: str) -> list[str]:
    """Returns a path and all above it."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def words(path: str) -> tuple[str, str]:
    """Returns a path as its owner and its place there, such as `("MyCallback", "rates")`."""
    root, *segments = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/"))
    shown = [_segment_in_words(segment) for segment in segments if segment not in _HIDDEN_SEGMENTS]
    kind, _, name = root.partition(" ")
    if kind == "callback":
        name = name.removesuffix("()")
        return f"the callback {name}", ".".join(shown)
    if kind == "class":
        return f"the class {name.rpartition('.')[2]}", ".".join(shown)
    if kind == "module":
        return f"the module {name}", ".".join(shown)
    return f"the {root}", ".".join(shown)


def _segment_in_words(segment: str) -> str:
    kind, _, name = segment.partition(" ")
    if kind in ("closure", "default") and name:
        return f"{name} ({kind})"
    return "learning_rate" if segment == "_learning_rate" else segment


def is_immutable(value: Any) -> bool:
    """Returns whether a value is of one of the types `IMMUTABLE`, or the empty tuple, one object for all of Python."""
    return issubclass(type(value), IMMUTABLE) or (type(value) in (tuple, frozenset) and not value)


def immutable_token(value: Any) -> tuple[Any, ...]:
    """Returns the token of a value of one of the types `IMMUTABLE`."""
    cls = type(value)
    if issubclass(cls, enum.Enum):
        return ("enum", cls.__qualname__, text_of(value))
    if issubclass(cls, np.generic):
        return ("value", value.dtype.str, value.tobytes())
    return ("value", cls.__name__, text_of(value))


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
    return [(name, item) for name, item in static.instance_dict(value).items() if name not in _OF_AN_ENUM]


_OF_AN_ENUM = ("_value_", "_name_", "_sort_order_", "__objclass__")


def plain_token(value: Any) -> Any:
    """Returns what an object has returned as its own state, so that two such answers can be compared."""
    if static.is_a(value, dict):
        return {key: plain_token(item) for key, item in static.pairs(value)}
    if static.is_a(value, list | tuple):
        return [plain_token(item) for item in static.contents(value)]
    if static.is_a(value, np.ndarray):
        return plain_token(value.tolist()) if value.dtype.hasobject else array_token(value)
    return value


def is_flat(items: Iterable[Any]) -> bool:
    """Returns whether all items are plain numbers, strings and the like."""
    return set(map(type, items)) <= _SCALARS


def flat_token(value: Any) -> tuple[Any, ...]:
    """Returns the token of a container of plain values."""
    cls = static.class_of(value)
    if issubclass(cls, bytearray):
        return ("bytes", xxhash.xxh3_128_hexdigest(value))
    content = static.contents(value)
    count = len(content)
    if issubclass(cls, dict):
        content += [item for _, item in static.pairs(value)]
    elif issubclass(cls, set | frozenset):
        content.sort(key=repr)
    kinds = ",".join(kind.__name__ for kind in dict.fromkeys(map(type, content)))
    if len(kinds) > 8:
        kinds = ",".join(sorted(kinds.split(",")))
    size = (_LENGTH.__get__(value),) if issubclass(cls, collections.deque) else ()
    return (type(value).__name__, count, *size, kinds, xxhash.xxh3_128_hexdigest(marshal.dumps(content, 2)))


_LENGTH = vars(collections.deque)["maxlen"]


def array_token(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Returns the token of a numeric array."""
    found = np.ascontiguousarray(array)
    digest = xxhash.xxh3_128_hexdigest(found.reshape(-1).view(np.uint8).data)
    return ("array", array.dtype.str, array.shape, digest)


def is_numeric(array: np.ndarray[Any, Any]) -> bool:
    """Returns whether an array holds numbers, and nothing that only an interpreter knows."""
    return array.dtype.kind in "biufcV" and not array.dtype.hasobject and array.dtype.names is None


def random_token(generator: Any) -> tuple[Any, ...]:
    """Returns the token of a random generator of Python or numpy: its state."""
    return ("random", type(generator).__name__, xxhash.xxh3_128_hexdigest(repr(random_state(generator)).encode()))


def random_state(generator: Any) -> Any:
    """Returns the state of a random generator of Python or numpy, as plain values."""
    if static.is_a(generator, random.Random):  # as `getstate` returns it
        return random.Random.VERSION, _GETSTATE(generator), static.attribute(generator, "gauss_next")
    if not static.is_a(generator, np.random.Generator):
        return _plain(generator.get_state(False))
    children = getattr(generator.bit_generator.seed_seq, "n_children_spawned", 0)
    return {**_plain(generator.bit_generator.state), **({_CHILDREN: children} if children else {})}


_GETSTATE = random.Random.__bases__[0].getstate  # type: ignore[attr-defined]


def set_random_state(generator: Any, state: Any) -> None:
    """Puts back what `random_state` returned."""
    if isinstance(generator, random.Random):
        generator.setstate((state[0], tuple(state[1]), state[2]))
    elif isinstance(generator, np.random.Generator):
        spawned = getattr(generator.bit_generator.seed_seq, "n_children_spawned", 0)
        missing = state.get(_CHILDREN, 0) - spawned
        if missing < 0:
            raise LookupError("it has spawned more generators than the interrupted run's")
        if missing:
            generator.spawn(missing)
        generator.bit_generator.state = {name: value for name, value in state.items() if name != _CHILDREN}
    else:
        generator.set_state(state)


_CHILDREN = "children"


def new_random(kind: str, state: Any) -> Any:
    """Returns a random generator of Python or numpy with a state."""
    if kind == "Random":
        made: Any = random.Random()  # noqa: S311 - it is the user's
    elif kind == "RandomState":
        made = np.random.RandomState()
    elif (
        kind == "Generator"
        and _CHILDREN not in state
        and state["bit_generator"] in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    ):
        made = np.random.Generator(getattr(np.random, state["bit_generator"])())
    else:
        raise LookupError(f"a {kind} cannot be made again")
    set_random_state(made, state)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def is_set(event: Any) -> bool:
    """Returns whether a `threading.Event` is set."""
    return bool(static.attribute(event, "_flag"))


def iterator_token(iterator: Any) -> tuple[Any, ...]:
    """Returns the token of an iterator, or of a counter: how far it is."""
    place = repr(iterator) if isinstance(iterator, itertools.count) else operator.length_hint(iterator)
    return ("iterator", type(iterator).__name__, place)


def generator_token(generator: types.GeneratorType[Any, Any, Any]) -> tuple[Any, ...]:
    """Returns the token of a Python generator: where it is in its code, and its plain variables."""
    frame = generator.gi_frame
    if frame is None:
        return ("generator", "finished")
    plain = {name: value for name, value in frame.f_locals.items() if type(value) in _SCALARS}
    return ("generator", frame.f_lasti, repr(plain))


def base_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Returns the array whose memory another one is a part of; None if that is its own."""
    base = array.base
    while isinstance(base, np.ndarray) and isinstance(base.base, np.ndarray):
        base = base.base
    return base if isinstance(base, np.ndarray) else None

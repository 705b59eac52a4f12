"""What a Python value may hide: whether it can be seen whole, and whether it has changed."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import logging
import pathlib
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import xxhash

_LONG = 64
_DEEP = 50


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """A long list of numbers, such as the losses of all steps: quick to hash, and no part of the manifest."""
    if type(value) is not list or len(value) < _LONG:
        return None
    (kind, *others) = set(map(type, value))
    if others or kind not in (float, int):
        return None
    try:
        return np.array(value, np.float64 if kind is float else np.int64)
    except OverflowError:
        return None


def digest(value: Any) -> str | None:
    """A hash of a plain value; None if it is not plain."""
    found = xxhash.xxh3_128()
    return found.hexdigest() if _feed(value, found.update) else None


def settings_digest(value: Any) -> str | None:
    """The same for what is made of named plain values: a parsed command line, a dataclass, a namespace."""
    if isinstance(value, argparse.Namespace | types.SimpleNamespace):
        return digest([type(value).__name__, vars(value)])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return digest([type(value).__name__, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}])
    return None


def _feed(value: Any, update: Callable[[bytes], Any], depth: int = 0) -> bool:
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        update(f"{type(value).__name__} {value!r};".encode(errors="surrogatepass"))
        return not isinstance(value, np.generic) or (value.dtype.kind in "biuf" and value.dtype.itemsize <= 8)
    if isinstance(value, np.ndarray):
        update(f"array {value.dtype} {value.shape};".encode())
        if value.dtype.kind not in "biufc":
            return False
        update(np.ascontiguousarray(value).tobytes())
        return True
    if depth > _DEEP:
        return False
    numbers = as_array(value)
    if numbers is not None:
        update(f"list {numbers.dtype} {numbers.shape};".encode())
        update(numbers.tobytes())
        return True
    if type(value) in (list, tuple):
        update(f"{type(value).__name__} {len(value)};".encode())
        return all(_feed(item, update, depth + 1) for item in value)
    if type(value) is dict:
        update(f"dict {len(value)};".encode())
        return all(
            isinstance(key, str) and not key.startswith("$") and _feed([key, item], update, depth + 1)
            for key, item in value.items()
        )
    return False


@dataclasses.dataclass(frozen=True)
class ValueSummary:
    """What a value looks like at one moment: the plain parts hashed, the others held."""

    plain: str
    objects: tuple[Any, ...]

    def is_same(self, other: ValueSummary) -> bool:
        """Whether nothing was changed or put in another's place; of objects that were not, who knows."""
        same = self.plain == other.plain and len(self.objects) == len(other.objects)
        return same and all(ours is theirs for ours, theirs in zip(self.objects, other.objects, strict=True))


def summarize(value: Any) -> ValueSummary:
    """Looks at a value, and into lists, tuples and dicts."""
    objects: list[Any] = []
    found = xxhash.xxh3_128()
    _visit(value, found.update, objects)
    return ValueSummary(found.hexdigest(), tuple(objects))


def _visit(value: Any, update: Callable[[bytes], Any], objects: list[Any], depth: int = 0) -> None:
    plain = digest(value) or settings_digest(value)
    if plain is not None:
        update(plain.encode())
    elif type(value) in (list, tuple) and depth <= _DEEP:
        update(f"{type(value).__name__} {len(value)};".encode())
        for item in value:
            _visit(item, update, objects, depth + 1)
    elif type(value) is dict and depth <= _DEEP:
        update(f"dict {len(value)};".encode())
        for key, item in value.items():
            _visit(key, update, objects, depth + 1)
            _visit(item, update, objects, depth + 1)
    else:
        update(b"object;")
        objects.append(value)


_STATELESS = (
    *(type, types.ModuleType, types.BuiltinFunctionType, types.MethodType, bytes, range, frozenset, complex),
    *(np.ufunc, pathlib.PurePath, re.Pattern, logging.Logger, datetime.date, datetime.timedelta, datetime.time),
)


def may_hold_state(value: Any, is_saved: Callable[[Any], bool]) -> bool:
    """Whether an object that is not plain may be a state of training that nobody saves."""
    import keras
    import tensorflow as tf

    if isinstance(value, types.FunctionType):
        return _holds_state(value, is_saved)
    if isinstance(value, list | tuple):
        return any(digest(item) is None and may_hold_state(item, is_saved) for item in value)
    if isinstance(value, keras.Layer | keras.optimizers.Optimizer | keras.Variable | tf.Variable):
        return not is_saved(value)
    if isinstance(value, (tf.data.Dataset, tf.Tensor, tf.summary.SummaryWriter, tf.distribute.Strategy, *_STATELESS)):
        return False
    return not callable(value) or hasattr(value, "__dict__")


def closures(callback: Any, is_saved: Callable[[Any], bool]) -> Iterator[str]:
    """Methods of a class made within a function, which hold on to something mutable around them."""
    for name in dir(type(callback)):
        method = getattr(type(callback), name, None)
        if name.startswith("on_") and isinstance(method, types.FunctionType) and _holds_state(method, is_saved):
            yield name


def referenced_globals(owner: Any) -> dict[str, tuple[dict[str, Any], ValueSummary]]:
    """The module-level names that an object's functions use, each with its namespace and what its value is."""
    found = {}
    for function in _functions(owner):
        for name in _names(function.__code__):
            if name in function.__globals__:
                found[name] = (function.__globals__, summarize(function.__globals__[name]))
    return found


def _functions(owner: Any) -> Iterator[types.FunctionType]:
    own = (base for base in type(owner).__mro__ if base.__module__.partition(".")[0] not in ("keras", "builtins"))
    for value in (*vars(owner).values(), *(value for base in own for value in vars(base).values())):
        if isinstance(value, types.FunctionType):
            yield value


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def changed_globals(
    around: Mapping[str, tuple[dict[str, Any], ValueSummary]], is_saved: Callable[[Any], bool]
) -> Iterator[str]:
    """Which module-level names have changed since, or may hide a state."""
    for name, (namespace, began) in around.items():
        now = summarize(namespace.get(name))
        others = [item for item in now.objects if not isinstance(item, types.FunctionType)]
        if not now.is_same(began) or any(may_hold_state(item, is_saved) for item in others):
            yield f"the module's {name}"


def _holds_state(function: types.FunctionType, is_saved: Callable[[Any], bool]) -> bool:
    return any(_is_state(cell, is_saved) for cell in function.__closure__ or ())


def _is_state(cell: types.CellType, is_saved: Callable[[Any], bool]) -> bool:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return False
    if isinstance(value, list | dict | set | bytearray | np.ndarray):
        return True
    return digest(value) is None and may_hold_state(value, is_saved)

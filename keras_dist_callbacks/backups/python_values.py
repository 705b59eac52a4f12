"""Values of the user's Python code as JSON and arrays, and back: more types than `json_values`, and references.

There is no pickle: nothing is imported, and a class or function is only taken from those that the restoring process has
found in its own objects.
"""

from __future__ import annotations

import collections
import datetime
import enum
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from keras_dist_callbacks.backups.codec import dtype_of
from keras_dist_callbacks.backups.snapshot import JSON, SharedArray, SharedTensor
from keras_dist_callbacks.base import static
from keras_dist_callbacks.base.errors import BackupError

_DEEPEST = 100
_LONG = 64
_SEQUENCES = {"$tuple": tuple, "$set": set, "$frozenset": frozenset, "$list": list}
_TEXTS: dict[str, Callable[[Any], Any]] = {
    "$int": int,
    "$float": float,
    "$bytes": bytes.fromhex,
    "$bytearray": bytearray.fromhex,
    "$complex": complex,
    "$path": pathlib.PurePath,
    "$Path": pathlib.Path,
    "$str_": np.str_,
    "$datetime": datetime.datetime.fromisoformat,
    "$date": datetime.date.fromisoformat,
    "$time": datetime.time.fromisoformat,
}


_FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, list, dict, set)}


def kind_of_mapping(value: Any) -> str | None:
    """Returns the name under which a dict of one of Python's own types can be made again; None for other dicts."""
    if type(value) is collections.defaultdict:
        name = getattr(value.default_factory, "__name__", "")
        return f"defaultdict {name}" if _FACTORIES.get(name) is value.default_factory else None
    return type(value).__name__ if type(value) in (collections.OrderedDict, collections.Counter) else None


class UnstorableError(BackupError, ValueError):
    """A value holds something that a backup cannot hold."""


class References(Protocol):
    """What stands for objects that a value only refers to."""

    def find(self, value: Any, path: str) -> JSON | None:
        """Returns the reference to store instead of a value; None to store the value itself."""
        ...


def segment(key: object) -> str:
    """Returns a key as part of a path."""
    return key_text(key).replace("~", "~0").replace("/", "~1")


def key_text(key: Any) -> str:
    """Returns a dict's key as a text, which no method of the user's makes."""
    cls = type(key)
    if issubclass(cls, str):
        return str.__str__(key)
    if issubclass(cls, enum.Enum):
        return f"{cls.__qualname__}.{static.instance_dict(key).get('_name_')}"
    if cls is tuple:
        return f"({', '.join(repr(item) if type(item) is str else key_text(item) for item in key)})"
    base: Any = next(base for base in cls.__mro__ if not base.__flags__ & _MADE_BY_CODE)
    if base is object and cls.__module__.partition(".")[0] in sys.stdlib_module_names:
        base = cls
    return str(base.__repr__(key))


_MADE_BY_CODE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not a class of C


def encode(value: Any, where: str, tensors: dict[str, SharedTensor], find: References, depth: int = 0) -> JSON:
    """`value` as JSON; its arrays are put into `tensors`.

    Args:
        value: What to store.
        where: Its path, which begins the names of its arrays.
        tensors: Gets the arrays.
        find: References.
        depth: How deep in the entire `value` is.

    Raises:
        UnstorableError: It holds something else than plain values, containers and arrays.
    """
    if value is None or type(value) in (bool, str):
        return value
    if type(value) in (int, float):
        return _number(value)
    reference = find.find(value, where)
    if reference is not None:
        return reference
    if depth > _DEEPEST:
        raise UnstorableError(f"{where} is nested more than {_DEEPEST} levels deep")
    if static.is_a(value, list | tuple | set | frozenset | collections.deque | dict):
        return _container(value, where, tensors, find, depth + 1)
    return _leaf(value, where, tensors)


def _number(value: float) -> JSON:
    if type(value) is int:
        return value if abs(value) < 2**53 else {"$int": str(value)}
    return value if math.isfinite(value) else {"$float": repr(value)}


def _container(value: Any, where: str, tensors: dict[str, SharedTensor], find: References, depth: int) -> JSON:
    cls = static.class_of(value)
    if issubclass(cls, dict):
        # No segment has a bare "~", and a key is not its value.
        placed = [(k, v, f"{where}/{segment(k)}") for k, v in static.pairs(value)]
        pairs = [
            [encode(k, f"{place}/~", tensors, find, depth), encode(v, place, tensors, find, depth)]
            for k, v, place in placed
        ]
        kind = kind_of_mapping(value)
        return {"$dict": pairs} if kind is None else {"$mapping": [kind, pairs]}
    items = static.contents(value)
    numbers = _as_array(items)
    if numbers is not None and issubclass(cls, list):
        return {"$numbers": _put(numbers, where, tensors)}
    encoded = [encode(item, f"{where}/{i}", tensors, find, depth) for i, item in enumerate(items)]
    if issubclass(cls, collections.deque):
        return {"$deque": [value.maxlen, encoded]}
    kind = next(name for name, base in _SEQUENCES.items() if issubclass(cls, base))
    return encoded if kind == "$list" else {kind: encoded}


def _as_array(items: list[Any]) -> np.ndarray[Any, Any] | None:
    """A long list of numbers, such as the losses of all steps, is a tensor: quick to write, and no part of the JSON."""
    if len(items) < _LONG:
        return None
    (kind, *others) = set(map(type, items))
    if others or kind not in (float, int):
        return None
    try:
        return np.array(items, np.float64 if kind is float else np.int64)
    except OverflowError:
        return None


def _leaf(value: Any, where: str, tensors: dict[str, SharedTensor]) -> JSON:
    cls = type(value)
    if cls is np.str_:
        return {"$str_": str(value)}
    if issubclass(cls, np.ndarray | np.generic):
        return _array(value, where, tensors)
    if cls in (bytes, bytearray):
        return {f"${cls.__name__}": value.hex()}
    if cls is complex:
        return {"$complex": repr(value)}
    if cls in _OF_PATHS:
        return {"$Path" if issubclass(cls, pathlib.Path) else "$path": str(value)}
    if cls is datetime.timedelta:
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if cls in (datetime.datetime, datetime.date, datetime.time):
        return {f"${cls.__name__}": value.isoformat()}
    if issubclass(cls, enum.Enum):
        return {"$member": [cls.__qualname__, static.instance_dict(value).get("_name_")]}
    raise UnstorableError(f"{where}: a {cls.__name__} cannot be stored")


_OF_PATHS = (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)


def _array(value: Any, where: str, tensors: dict[str, SharedTensor]) -> JSON:
    array = np.asarray(value)
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and all(type(item) is str for item in array.reshape(-1))):
        return {"$texts": [list(array.shape), [str(item) for item in array.reshape(-1)]]}
    try:
        survives = array.dtype.kind in "biufcV" and dtype_of(array.dtype.name) == array.dtype
    except (TypeError, ValueError):
        survives = False
    if not survives:
        raise UnstorableError(f"{where}: an array of {array.dtype} cannot be stored")
    if isinstance(value, np.generic):
        return {"$scalar": _put(np.array(array), where, tensors)}
    return {"$array": with_layout(array, _put(np.array(array, order="C"), where, tensors))}


def with_layout(array: np.ndarray[Any, Any], name: str) -> JSON:
    """Returns the name of an array's tensor, with its layout if that is not the usual one."""
    found = layout(array)
    return [name, list(found)] if found else name


def layout(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Returns the strides of an array whose order in memory is another than usual, on which sums depend; else nothing.

    Nothing too of a part of a much larger array, whose memory would have to be as large.
    """
    is_usual = (
        array.flags.c_contiguous or _span(array.shape, array.strides, array.itemsize)[1] > _LOOSEST * array.nbytes
    )
    return () if is_usual else array.strides


def laid_out(array: np.ndarray[Any, Any], strides: Sequence[int]) -> np.ndarray[Any, Any]:
    """Returns a copy of an array with these strides."""
    offset, size = _span(array.shape, strides, array.itemsize)
    if len(strides) != array.ndim or size > _LOOSEST * array.nbytes:
        raise LookupError("an array's layout does not match its content")
    found = np.ndarray(array.shape, array.dtype, bytearray(size), offset, tuple(strides))
    found[...] = array
    return found


def _span(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Returns where in its memory the first item of an array is, and how many bytes that has."""
    extents = [(length - 1) * stride for length, stride in zip(shape, strides, strict=False)]
    offset = -sum(extent for extent in extents if extent < 0)
    return offset, offset + sum(extent for extent in extents if extent > 0) + itemsize


_LOOSEST = 4
"""How many times the bytes of its content an array's memory may have for its layout to be kept."""


def _put(array: np.ndarray[Any, Any], where: str, tensors: dict[str, SharedTensor]) -> str:
    name = where
    while name in tensors:
        name += "'"
    tensors[name] = SharedArray(array)
    return name


class Objects(Protocol):
    """What references and objects of the process' own stand for when values are decoded."""

    def resolve(self, kind: str, value: JSON, present: Any) -> Any:
        """Returns the object that `{kind: value}` stands for; raises LookupError if it is not found."""
        ...

    def array(self, name: str, strides: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """Returns the array of a tensor: the same one each time, because several places may hold it."""
        ...


def decode(value: JSON, tensors: Mapping[str, np.ndarray[Any, Any]], objects: Objects, present: Any = None) -> Any:
    """Returns what `encode` was given.

    Args:
        value: JSON.
        tensors: The arrays.
        objects: What references stand for.
        present: What is now in its place.

    Raises:
        LookupError: A reference stands for nothing here.
    """
    if isinstance(value, list):
        return _items(value, tensors, objects, present)
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _TEXTS:
        return _TEXTS[kind](content)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_items(content, tensors, objects, present))
    if kind in ("$dict", "$mapping", "$deque"):
        return _decode_container(kind, content, tensors, objects, present)
    if kind in _PLAIN:
        if kind == "$array":
            return objects.array(content) if isinstance(content, str) else objects.array(*content)
        return _decode_plain(kind, content, tensors)
    return objects.resolve(kind, content, present)


_PLAIN = ("$timedelta", "$texts", "$array", "$scalar", "$numbers")


def _decode_container(kind: str, content: Any, tensors: Mapping[str, Any], objects: Objects, present: Any) -> Any:
    if kind == "$deque":
        return collections.deque(_items(content[1], tensors, objects, present), content[0])
    made: dict[Any, Any] = {}
    if kind == "$mapping":
        name, content = content
        made = _empty_mapping(name)
    known = present if isinstance(present, dict) else {}
    made.update({_key(k, tensors, objects): decode(v, tensors, objects, known.get(_plain(k))) for k, v in content})
    return made


def _empty_mapping(kind: str) -> dict[Any, Any]:
    name, _, factory = kind.partition(" ")
    if name == "defaultdict":
        return collections.defaultdict(_FACTORIES[factory])
    return collections.Counter() if name == "Counter" else collections.OrderedDict()


def _decode_plain(kind: str, content: Any, tensors: Mapping[str, Any]) -> Any:
    if kind == "$timedelta":
        return datetime.timedelta(*content)
    if kind == "$texts":
        return np.array(content[1]).reshape(content[0])
    array = np.array(tensors[content])
    return array[()] if kind == "$scalar" else array.tolist()


def _items(value: list[JSON], tensors: Mapping[str, Any], objects: Objects, present: Any) -> list[Any]:
    known = list(present) if isinstance(present, list | tuple | collections.deque) else []
    return [decode(v, tensors, objects, known[i] if i < len(known) else None) for i, v in enumerate(value)]


def _key(value: JSON, tensors: Mapping[str, Any], objects: Objects) -> Any:
    found = decode(value, tensors, objects)
    return tuple(found) if isinstance(found, list) else found


def _plain(value: JSON) -> Any:
    return value if isinstance(value, str | int | float | bool) else None

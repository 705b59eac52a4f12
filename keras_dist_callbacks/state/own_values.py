"""Python values as JSON with arrays apart, and back: one codec for all that a run saves of the user's objects.

There is no pickle: nothing is imported, and a class or function is only taken from those that the restoring process has
found in its own objects.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import importlib
import math
import pathlib
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from keras_dist_callbacks.backups.packing import dtype_of
from keras_dist_callbacks.backups.snapshot import JSON, SharedArray, SharedTensor
from keras_dist_callbacks.base import static
from keras_dist_callbacks.base.errors import BackupError

_DEEPEST, _SHOWN = 100, 100
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
    "$Fraction": fractions.Fraction,
    "$Decimal": decimal.Decimal,
    "$UUID": uuid.UUID,
    "$range": lambda parts: range(*parts),
    "$slice": lambda parts: slice(*parts),
    "$date_of_numpy": lambda parts: np.array(parts[1], "i8").view(parts[0])[()],
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

    def find(self, value: Any, path: str, tensors: dict[str, SharedTensor]) -> JSON | None:
        """Returns what to store instead of a value; None to store the value itself."""
        ...


class Answer:
    """References in what `get_state()` returns: none; all that has numbers is stored as an array.

    Args:
        copy: Whether arrays must be copied because their owner may write to them later.
    """

    def __init__(self, *, copy: bool = True) -> None:
        self._copy = copy

    def find(self, value: Any, path: str, tensors: dict[str, SharedTensor]) -> JSON | None:
        """See `References`."""
        if isinstance(value, set | frozenset) and not keeps_order(value):
            raise UnstorableError(f"{path}: the order of this set is not kept; use a sorted list")
        if isinstance(value, np.generic | list | tuple | set | frozenset | collections.deque | dict):
            return None
        if isinstance(value, Mapping):
            return encode(dict(value), path, tensors, self)
        plain = next((kind for kind in (int, float, str) if isinstance(value, kind)), None)
        if plain is not None:  # of a class of the user's, as members of an IntEnum are
            return encode(plain(value), path, tensors, self)
        if isinstance(value, enum.Enum):  # no class is known by name
            raise UnstorableError(f"{path}: a {type(value).__name__} cannot be stored")
        is_of_torch = isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))
        array = _numeric(value.detach().cpu() if is_of_torch else value)
        if array is None:
            return None
        kept = np.array(array, order="C") if self._copy else array
        return {"$torch" if is_of_torch else "$array": _put(kept, path, tensors)}


_ADVICE = "use dicts, lists, tuples, numbers, strings, booleans, None and numeric arrays"


def _numeric(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns a value as an array whose type survives, if it is one or can be read as one."""
    if not hasattr(value, "__array__"):
        return None
    try:
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        survives = array.dtype.kind not in "OUSMm" and dtype_of(array.dtype.name) == array.dtype
    except (TypeError, ValueError, AttributeError, NotImplementedError):  # symbolic, ragged, structured
        return None
    return array if survives else None


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
    if type(value) is int:
        return value if abs(value) < 2**53 else {"$int": str(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if depth > _DEEPEST:
        raise UnstorableError(f"{where[:_SHOWN]}...: nested more than {_DEEPEST} levels deep")
    reference = find.find(value, where, tensors)
    return whole(value, where, tensors, find, depth) if reference is None else reference


def whole(value: Any, where: str, tensors: dict[str, SharedTensor], find: References, depth: int = 0) -> JSON:
    """`value` itself as JSON, whatever stands for it elsewhere; for what is in it, `encode`."""
    if static.is_a(value, list | tuple | set | frozenset | collections.deque | dict):
        return _container(value, where, tensors, find, depth + 1)
    return _leaf(value, where, tensors)


def _container(value: Any, where: str, tensors: dict[str, SharedTensor], find: References, depth: int) -> JSON:
    cls = static.class_of(value)
    if issubclass(cls, dict):
        placed = [(k, f"{where}/{segment(k)}", v) for k, v in static.pairs(value)]
        items = [(k, place, encode(v, place, tensors, find, depth)) for k, place, v in placed]
        kind = kind_of_mapping(value)
        if kind is None and all(type(k) is str and not k.startswith("$") for k, *_ in items):
            return {k: item for k, _, item in items}
        # No segment has a bare "~", and a key is not its value.
        pairs = [[encode(k, f"{place}/~", tensors, find, depth), item] for k, place, item in items]
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


def keeps_order(value: Any) -> bool:
    """Returns whether a set that is made again from its items has the same order and size in memory.

    Which item `pop` takes depends on those that it took before, too.
    """
    items = static.contents(value)
    made = set(items)
    return list(made) == items and _table_bytes(made) == _table_bytes(
        set(value) if static.is_a(value, frozenset) else value
    )


def _table_bytes(value: set[Any]) -> int:
    """Returns the size of a set's table, also of the sets in which Keras wraps those that are attributes of a model."""
    return set.__sizeof__(value) - type(value).__basicsize__


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
    if cls in (np.datetime64, np.timedelta64):
        return {"$date_of_numpy": [value.dtype.str, int(value.view("i8"))]}
    if issubclass(cls, np.ndarray | np.generic):
        return _array(value, where, tensors)
    if cls in (bytes, bytearray):
        return {f"${cls.__name__}": value.hex()}
    if cls is complex:
        return {"$complex": repr(value)}
    if cls in (fractions.Fraction, decimal.Decimal, uuid.UUID):
        return {f"${cls.__name__}": str(value)}
    if cls in (range, slice) and all(part is None or type(part) is int for part in _ends(value)):
        return {f"${cls.__name__}": _ends(value)}
    if cls in _OF_PATHS:
        return {"$Path" if issubclass(cls, pathlib.Path) else "$path": str(value)}
    if cls is datetime.timedelta:
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if cls in (datetime.datetime, datetime.date, datetime.time):
        return {f"${cls.__name__}": value.isoformat()}
    if issubclass(cls, enum.Enum):
        held = static.instance_dict(value)
        which = [None, held["_value_"]] if issubclass(cls, enum.Flag) else [held["_name_"]]
        return {"$member": [cls.__qualname__, *which]}
    raise UnstorableError(f"{where}: a {cls.__name__} cannot be stored")


_OF_PATHS = (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)


def _ends(value: range | slice) -> list[Any]:
    return [value.start, value.stop, value.step]


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
        return {"$scalar": [array.dtype.name, array.tobytes().hex()]}
    return {"$array": _put(np.array(array, order="C"), where, tensors)}


def _put(array: np.ndarray[Any, Any], where: str, tensors: dict[str, SharedTensor]) -> str:
    name = where
    while name in tensors:
        name += "'"
    tensors[name] = SharedArray(array)
    return name


def tagged(value: JSON) -> tuple[str, Any] | None:
    """Returns the tag of what stands for a value, and its content; None of plain JSON."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ((kind, content),) = value.items()
    return (kind, content) if kind.startswith("$") else None


class Objects(Protocol):
    """What references and objects of the process' own stand for when values are decoded."""

    def resolve(self, kind: str, value: JSON) -> Any:
        """Returns the object that `{kind: value}` stands for; raises LookupError if it is not found."""
        ...

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """Returns the array of a tensor: the same one each time, because several places may hold it."""
        ...


class Made:
    """Objects in what `get_state()` has returned: arrays, each time made again.

    Args:
        tensors: The arrays.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._tensors = tensors

    def resolve(self, kind: str, value: JSON) -> Any:
        """See `Objects`."""
        if kind != "$torch":
            raise LookupError(f"a backup has no value of the kind {kind[1:]} there")
        try:
            return importlib.import_module("torch").from_numpy(self.array(value))
        except ImportError as error:
            raise BackupError("the saved state holds tensors of torch, which is not installed") from error

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """See `Objects`."""
        return np.array(self._tensors[name])


def to_json(value: Any, where: str, tensors: dict[str, SharedTensor], *, copy: bool = True) -> JSON:
    """Returns what `get_state()` returned, or the like, as JSON.

    Args:
        value: It.
        where: What it is, for names and messages.
        tensors: Gets its arrays, under names that begin with `where`.
        copy: Whether arrays must be copied because their owner may write to them later.

    Raises:
        BackupError: It holds something that cannot be stored.
    """
    try:
        return encode(value, where, tensors, Answer(copy=copy))
    except UnstorableError as error:
        raise UnstorableError(f"{error}; {_ADVICE}") from None


def from_json(value: JSON, tensors: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """Returns what `to_json` was given."""
    return decode(value, tensors, Made(tensors))


def decode(value: JSON, tensors: Mapping[str, np.ndarray[Any, Any]], objects: Objects) -> Any:
    """Returns what `encode` was given.

    Args:
        value: JSON.
        tensors: The arrays.
        objects: What references stand for.

    Raises:
        LookupError: A reference stands for nothing here.
    """

    def items(values: list[JSON]) -> list[Any]:
        return [decode(item, tensors, objects) for item in values]

    def pair(values: list[JSON]) -> tuple[Any, Any]:
        return decode(values[0], tensors, objects), decode(values[1], tensors, objects)

    if isinstance(value, list):
        return items(value)
    if not isinstance(value, dict):
        return value
    tag = tagged(value)
    if tag is None:
        return {key: decode(item, tensors, objects) for key, item in value.items()}
    kind, content = tag
    if kind in _TEXTS:
        return _TEXTS[kind](content)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](items(content))
    match kind:
        case "$dict":
            return dict(map(pair, content))
        case "$mapping":
            made = _empty_mapping(content[0])
            made.update(dict(map(pair, content[1])))
            return made
        case "$deque":
            return collections.deque(items(content[1]), content[0])
        case "$timedelta":
            return datetime.timedelta(*content)
        case "$texts":
            return np.array(content[1]).reshape(content[0])
        case "$scalar":
            return np.frombuffer(bytes.fromhex(content[1]), dtype_of(content[0]))[0]
        case "$numbers":
            return np.array(tensors[content]).tolist()
    return objects.array(content) if kind == "$array" else objects.resolve(kind, content)


def _empty_mapping(kind: str) -> dict[Any, Any]:
    name, _, factory = kind.partition(" ")
    if name == "defaultdict":
        return collections.defaultdict(_FACTORIES[factory])
    return collections.Counter() if name == "Counter" else collections.OrderedDict()

"""Values that a backup can hold, as JSON and arrays, and back. There is no pickle."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dist_callbacks.backups.codec import dtype_of
from keras_dist_callbacks.backups.snapshot import JSON, SharedArray, SharedTensor
from keras_dist_callbacks.base.errors import BackupError

_ARRAY, _TUPLE, _DICT, _SCALAR, _TORCH = "$array", "$tuple", "$dict", "$scalar", "$torch"
_ADVICE = "use dicts, lists, tuples, numbers, strings, booleans, None and numeric arrays; of a set, a sorted list"
_DEEPEST, _SHOWN = 100, 100


def to_json(value: Any, where: str, tensors: dict[str, SharedTensor], *, copy: bool = True, depth: int = 0) -> JSON:
    """`value` as JSON; its arrays are put into `tensors` under names that begin with `where`.

    Args:
        value: What to store.
        where: What it is, for names and messages.
        tensors: Gets the arrays.
        copy: Whether arrays must be copied because their owner may write to them later.
        depth: How deep in the entire `value` is.

    Raises:
        BackupError: It holds something that is neither JSON nor an array.
    """
    if depth > _DEEPEST:
        raise BackupError(f"{where[:_SHOWN]}...: nested more than {_DEEPEST} levels deep")
    if _is_scalar(value):
        return {_SCALAR: [value.dtype.name, value.item()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        items = [(k, to_json(v, f"{where}/{k}", tensors, copy=copy, depth=depth + 1)) for k, v in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(items)
        return {_DICT: [[_key_to_json(key, where), item] for key, item in items]}
    if isinstance(value, list | tuple):
        items = [to_json(v, f"{where}/{i}", tensors, copy=copy, depth=depth + 1) for i, v in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    return _put_array(value, where, tensors, copy=copy)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8


def _key_to_json(key: Any, where: str) -> JSON:
    parts = key if isinstance(key, tuple) else (key,)
    if not all(part is None or isinstance(part, bool | int | float | str) or _is_scalar(part) for part in parts):
        raise BackupError(
            f"{where}: the key {key!r} of a dict cannot be stored; use strings, numbers, "
            "booleans, None and tuples of these"
        )
    return to_json(key, where, {})


def _put_array(value: Any, where: str, tensors: dict[str, SharedTensor], *, copy: bool) -> JSON:
    kind = _TORCH if _is_of_torch(value) else _ARRAY
    array = _numeric(value.detach().cpu() if kind == _TORCH else value)
    if array is None:
        raise BackupError(f"{where}: a {type(value).__name__} cannot be stored; {_ADVICE}")
    name = where
    while name in tensors:  # {"a/b": x} and {"a": {"b": x}}
        name += "'"
    tensors[name] = SharedArray(np.array(array, order="C") if copy else array)
    return {kind: name}


def from_json(value: JSON, tensors: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """Returns what `to_json` was given."""
    if isinstance(value, list):
        return [from_json(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        return np.array(tensors[value[_ARRAY]])
    if _TORCH in value:
        return _tensor_of_torch(np.array(tensors[value[_TORCH]]))
    if _TUPLE in value:
        return tuple(from_json(v, tensors) for v in value[_TUPLE])
    if _DICT in value:
        return {from_json(key, tensors): from_json(item, tensors) for key, item in value[_DICT]}
    if _SCALAR in value:
        name, item = value[_SCALAR]
        return np.dtype(name).type(item)
    return {k: from_json(v, tensors) for k, v in value.items()}


def _is_of_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _tensor_of_torch(array: np.ndarray[Any, Any]) -> Any:
    try:
        return importlib.import_module("torch").from_numpy(array)
    except ImportError as error:
        raise BackupError("the state of an input or callback holds tensors of torch, which is not installed") from error


def _numeric(value: Any) -> np.ndarray[Any, Any] | None:
    """`value` as an array whose type survives, or None."""
    if not hasattr(value, "__array__"):
        return None
    try:
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        survives = array.dtype.kind not in "OUSMm" and dtype_of(array.dtype.name) == array.dtype
    except (TypeError, ValueError, AttributeError, NotImplementedError):  # symbolic, ragged, structured
        return None
    return array if survives else None

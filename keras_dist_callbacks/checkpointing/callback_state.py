"""The state of every callback in fit's list, by identity instead of position.

State is what `get_state()` returns, what a registered extractor returns, or the known attributes of Keras'
own callbacks. It becomes JSON; arrays in it become tensors of the snapshot. There is no pickle.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_dist_callbacks._compat.callback_attributes import attributes_of
from keras_dist_callbacks.checkpointing.snapshot import JSON, HeldArray, HeldTensor
from keras_dist_callbacks.errors import BackupError, BackupMismatchError

GetState = Callable[[Any], dict[str, Any]]
SetState = Callable[[Any, dict[str, Any]], None]
_ARRAY, _TUPLE, _SCALAR = "$array", "$tuple", "$scalar"


@dataclass(frozen=True)
class _Entry:
    get: GetState
    set: SetState
    identity: tuple[str, ...]


_registered: dict[type, _Entry] = {}


def register_callback_state(
    callback_class: type, get: GetState, set: SetState, *, identity: Iterable[str] = ()
) -> None:
    """Tells backups how to save and restore a callback class that has no `get_state` of its own.

    Args:
        callback_class: The class; subclasses are included unless registered themselves.
        get: Returns the state as a dict of JSON values and arrays.
        set: Puts a state that `get` returned back into a callback.
        identity: Names of attributes that tell two callbacks of this class apart, such as `("monitor",)`.
    """
    _registered[callback_class] = _Entry(get, set, tuple(identity))


def identify(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Each callback by a name made of its class, identifying arguments and, where these repeat, a number."""
    named: dict[str, Any] = {}
    counts: collections.Counter[str] = collections.Counter()
    for callback in callbacks:
        base = _identity(callback)
        counts[base] += 1
        named[base if counts[base] == 1 else f"{base}#{counts[base] - 1}"] = callback
    return named


def capture_callbacks(callbacks: Iterable[Any]) -> tuple[dict[str, JSON], dict[str, HeldTensor]]:
    """The state of each callback that has one, and the arrays it contains.

    Raises:
        BackupError: A state holds something that is neither JSON nor an array; the message says where.
    """
    state: dict[str, JSON] = {}
    tensors: dict[str, HeldTensor] = {}
    for name, callback in identify(callbacks).items():
        entry = _entry(callback)
        if entry is not None:
            state[name] = to_json(entry.get(callback), f"callbacks/{name}", tensors)
    return state, tensors


def restore_callbacks(
    callbacks: Iterable[Any], state: Mapping[str, JSON], tensors: Mapping[str, np.ndarray[Any, Any]]
) -> list[str]:
    """Gives each callback its state back.

    Returns:
        What did not match, one sentence each: callbacks that are new, and ones that are gone.

    Raises:
        BackupMismatchError: A callback does not accept its saved state.
    """
    present = {name: c for name, c in identify(callbacks).items() if _entry(c) is not None}
    for name, callback in present.items():
        entry = _entry(callback)
        if name not in state or entry is None:
            continue
        try:
            entry.set(callback, from_json(state[name], tensors))
        except Exception as error:
            raise BackupMismatchError(
                f"the callback {name} does not accept its saved state ({type(error).__name__}: {error}); the backup "
                "is untouched. Remove the callback or mend its set_state"
            ) from error
    new = [f"the callback {n} was not in the interrupted run; it starts afresh" for n in present if n not in state]
    gone = [f"the callback {n} of the interrupted run is not in the list now" for n in state if n not in present]
    return new + gone


def _identity(callback: Any) -> str:
    cls = type(callback)
    parts = []
    for name in _identity_names(callback):
        value = getattr(callback, name, None)
        if value is not None:
            parts.append(f"{name}={value}")
    return f"{cls.__name__}({', '.join(parts)})"


def _identity_names(callback: Any) -> tuple[str, ...]:
    own = getattr(callback, "state_identity", None)
    if own is not None:
        return tuple(own)
    for cls in type(callback).__mro__:
        if cls in _registered:
            return _registered[cls].identity
    known = attributes_of(callback)
    return known.identity if known else ()


def _entry(callback: Any) -> _Entry | None:
    if callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None)):
        return _Entry(lambda c: dict(c.get_state()), lambda c, s: c.set_state(s), ())
    for cls in type(callback).__mro__:
        if cls in _registered:
            return _registered[cls]
    known = attributes_of(callback)
    if known is None:
        return None
    names = known.state

    def set_attributes(target: Any, state: dict[str, Any]) -> None:
        for name in names:
            if name in state:
                setattr(target, name, state[name])

    return _Entry(lambda c: {n: getattr(c, n) for n in names if hasattr(c, n)}, set_attributes, known.identity)


def to_json(value: Any, where: str, tensors: dict[str, HeldTensor]) -> JSON:
    """`value` as JSON; its arrays are put into `tensors` under names that begin with `where`.

    Raises:
        BackupError: It holds something that is neither JSON nor an array.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return {_SCALAR: [value.dtype.name, value.item()]}
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) and not k.startswith("$") for k in value):
            raise BackupError(f"{where}: the keys of a dict must be strings that do not begin with '$'")
        return {k: to_json(v, f"{where}/{k}", tensors) for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = [to_json(v, f"{where}/{i}", tensors) for i, v in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if hasattr(value, "__array__"):
        array = np.array(value.numpy() if hasattr(value, "numpy") else value)
        if array.dtype.kind not in "OUSMm":
            tensors[where] = HeldArray(array)
            return {_ARRAY: where}
    raise BackupError(f"{where}: a {type(value).__name__} cannot be stored; use JSON values and numeric arrays")


def from_json(value: JSON, tensors: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """What `to_json` was given."""
    if isinstance(value, list):
        return [from_json(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        return np.array(tensors[value[_ARRAY]])
    if _TUPLE in value:
        return tuple(from_json(v, tensors) for v in value[_TUPLE])
    if _SCALAR in value:
        name, item = value[_SCALAR]
        return np.dtype(name).type(item)
    return {k: from_json(v, tensors) for k, v in value.items()}

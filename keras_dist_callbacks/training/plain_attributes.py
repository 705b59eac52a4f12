"""Plain attributes of users' callbacks that have no `get_state`: those that training changes are saved and restored.

What is not plain (a generator, a file, an object of a class of one's own) cannot be looked into: a continuation is
then exact if it keeps no state.
"""

from __future__ import annotations

import datetime
import logging
import pathlib
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from keras_dist_callbacks.backups.snapshot import JSON, HeldTensor
from keras_dist_callbacks.backups.storable import from_json, to_json

TOPIC = "callback_attributes"
_NEVER = {"model", "_model", "params", "history"}
_SHOWN, _LONG = 40, 64
_NUMBERS = "$numbers"


@dataclass(frozen=True)
class Watched:
    """An object of the user's whose attributes are looked at.

    Attributes:
        owner: The object.
        leave: Names that are saved in another way.
    """

    owner: Any
    leave: frozenset[str] = frozenset()


class PlainAttributes:
    """The attributes of what a fit calls, beginning with what they are now: after all `on_train_begin`.

    Attributes:
        conditions: As of the last `capture`: attributes that may hold a state, and those that were saved without the
            callback's say, to be read behind "exact if".
    """

    def __init__(self, watched: Mapping[str, Watched]) -> None:
        self._watched = watched
        self._began = {name: {key: _began(value) for key, value in _attributes(w)} for name, w in watched.items()}
        self.conditions: list[str] = []

    def capture(self, is_saved: Callable[[Any], bool]) -> tuple[dict[str, JSON], dict[str, HeldTensor]]:
        """What has changed since the begin, with what it was then.

        Args:
            is_saved: Tells whether all of an object's variables are saved in another way.
        """
        topic: dict[str, JSON] = {}
        tensors: dict[str, HeldTensor] = {}
        self.conditions = []
        for name, watched in self._watched.items():
            changed: dict[str, JSON] = {}
            hidden = list(_closures(watched.owner, is_saved))
            for key, value in _attributes(watched):
                digest, began = _digest(value), self._began[name].get(key, _ABSENT)
                if digest is None:
                    hidden += [key] * _may_change(value, is_saved)
                elif digest != began[0]:
                    changed[key] = {"began": list(began), "now": _to_json(value, f"attributes/{name}/{key}", tensors)}
            if changed:
                topic[name] = changed
            if changed or hidden:
                self.conditions.append(_condition(name, list(changed), hidden))
        return ({TOPIC: topic} if topic else {}), tensors

    def restore(self, saved: Mapping[str, JSON], tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Puts back what began as it does now.

        Returns:
            What began otherwise, one sentence each.
        """
        notes = []
        for name, found in saved.items():
            if name not in self._watched:
                continue
            for key, record in found.items():
                now = self._began[name].get(key, _ABSENT)
                if now[0] == record["began"][0]:
                    setattr(self._watched[name].owner, key, _from_json(record["now"], tensors))
                else:
                    notes.append(
                        f"the attribute {key} of the {name} began as {record['began'][1]} in the interrupted "
                        f"run and as {now[1]} now, so it was not restored"
                    )
        return notes


_ABSENT = ("absent", "absent")


def _condition(name: str, changed: list[str], hidden: list[str]) -> str:
    saved = f" but {', '.join(changed)}, which was restored" if changed else ""
    where = f" (in {', '.join(hidden)})" if hidden else ""
    return f"the {name} keeps no state{where}{saved}; get_state and set_state would make it certain"


def _attributes(watched: Watched) -> Iterator[tuple[str, Any]]:
    for key, value in vars(watched.owner).items():
        if key not in _NEVER and key not in watched.leave and not key.startswith("_self_"):  # TensorFlow's own
            yield key, value


def _began(value: Any) -> tuple[str | None, str]:
    text = repr(value) if not isinstance(value, np.ndarray) else f"an array of shape {value.shape}"
    return _digest(value), text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _to_json(value: Any, where: str, tensors: dict[str, HeldTensor]) -> JSON:
    numbers = _as_array(value)
    return to_json(value, where, tensors) if numbers is None else {_NUMBERS: to_json(numbers, where, tensors)}


def _from_json(value: JSON, tensors: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, dict) and _NUMBERS in value:
        return from_json(value[_NUMBERS], tensors).tolist()
    return from_json(value, tensors)


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
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


def _digest(value: Any) -> str | None:
    """A hash of a plain value; None if it is not plain."""
    digest = xxhash.xxh3_128()
    return digest.hexdigest() if _feed(value, digest.update) else None


def _feed(value: Any, update: Callable[[bytes], Any], depth: int = 0) -> bool:
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        update(f"{type(value).__name__} {value!r};".encode(errors="surrogatepass"))
        return not isinstance(value, np.generic) or value.dtype.kind in "biuf"
    if isinstance(value, np.ndarray):
        update(f"array {value.dtype} {value.shape};".encode())
        if value.dtype.kind not in "biufc":
            return False
        update(np.ascontiguousarray(value).tobytes())
        return True
    if depth > 50:
        return False
    numbers = _as_array(value)
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


_STATELESS = (
    *(type, types.ModuleType, types.BuiltinFunctionType, types.MethodType, bytes, range, frozenset, complex),
    *(np.ufunc, pathlib.PurePath, re.Pattern, logging.Logger, datetime.date, datetime.timedelta, datetime.time),
)


def _may_change(value: Any, is_saved: Callable[[Any], bool]) -> bool:
    """Whether an object that is not plain may be a state of training that nobody saves."""
    import keras
    import tensorflow as tf

    if isinstance(value, types.FunctionType):
        return _holds_state(value, is_saved)
    if isinstance(value, list | tuple):
        return any(_digest(item) is None and _may_change(item, is_saved) for item in value)
    if isinstance(value, keras.Layer | keras.optimizers.Optimizer | keras.Variable | tf.Variable):
        return not is_saved(value)
    if isinstance(value, (tf.data.Dataset, tf.Tensor, tf.summary.SummaryWriter, *_STATELESS)):
        return False
    return not callable(value) or hasattr(value, "__dict__")


def _closures(callback: Any, is_saved: Callable[[Any], bool]) -> Iterator[str]:
    """Methods of a class made within a function, which hold on to something mutable around them."""
    for name in dir(type(callback)):
        method = getattr(type(callback), name, None)
        if name.startswith("on_") and isinstance(method, types.FunctionType) and _holds_state(method, is_saved):
            yield name


def _holds_state(function: types.FunctionType, is_saved: Callable[[Any], bool]) -> bool:
    return any(_is_state(cell, is_saved) for cell in function.__closure__ or ())


def _is_state(cell: types.CellType, is_saved: Callable[[Any], bool]) -> bool:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return False
    if isinstance(value, list | dict | set | bytearray | np.ndarray):
        return True
    return _digest(value) is None and _may_change(value, is_saved)

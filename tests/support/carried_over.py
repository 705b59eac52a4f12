"""An object that training has changed, and another process' object that what was saved of it is put into."""

from __future__ import annotations

import collections
import decimal
import enum
import fractions
import json
import pathlib
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dist_callbacks.backups.snapshot import JSON
from keras_dist_callbacks.state.own_objects import changes
from keras_dist_callbacks.state.own_objects.kinds import look_at
from keras_dist_callbacks.state.own_objects.look import Look, Policy, Root

POLICY = Policy(is_asserted=lambda value: False, own_state=lambda value: None, saved_keys=frozenset)
Make = Callable[[], Any]
Act = Callable[[Any], Any]


class Holder:
    """What a script's callback is."""

    def __init__(self, **state: Any) -> None:
        vars(self).update(state)


def put(holder: Any, **state: Any) -> None:
    vars(holder).update(state)


def puts(**state: Any) -> Act:
    return lambda holder: put(holder, **state)


def nothing(holder: Any) -> None:
    """Changes nothing."""


def looked_at(holder: Any, start: Look | None = None) -> Look:
    return look_at({"callback Holder()": Root(holder)}, POLICY, start=start)


@dataclass
class CarriedOver:
    """What became of a change.

    Attributes:
        before: What is asked of an object that was not changed, as a picture.
        ours: Of the changed one.
        theirs: Of the one that the change was put into.
        records: What was saved.
        lost: By path below the object, why it could not be saved or put back.
        unknown: By path below the object, what could not be looked into after the change; before it, nothing.
    """

    before: Any
    ours: Any
    theirs: Any
    records: dict[str, JSON]
    lost: dict[str, str]
    unknown: dict[str, str]


def carried_over(make: Make, act: Act, then: Act = lambda holder: holder) -> CarriedOver:
    """Changes an object, and puts what was saved of that into another one.

    Args:
        make: Makes an object, as each process does.
        act: Changes it.
        then: What is compared; the object itself unless given.
    """
    before = picture(then(make()))
    ours = make()
    start = looked_at(ours)
    assert start.unknown == {}
    act(ours)
    now = looked_at(ours, start)
    found = changes.changes_between(start, now)
    records = json.loads(json.dumps(found.records))
    arrays = {name: tensor.array() for name, tensor in found.tensors.items()}
    expected = picture(then(ours))
    theirs = make()
    begun = looked_at(theirs)
    failed, _ = changes.restore_and_compare(records, arrays, lambda: looked_at(theirs, begun))
    lost, unknown = _below({**found.lost, **failed}), _below(now.unknown)
    return CarriedOver(before, expected, picture(then(theirs)), records, lost, unknown)


def _below(found: dict[str, str]) -> dict[str, str]:
    return {path.removeprefix("callback Holder()/"): why for path, why in found.items()}


_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, pathlib.PurePath)
_OF_LIBRARIES = (np.generic, decimal.Decimal, fractions.Fraction, uuid.UUID)


def picture(value: Any, seen: dict[Any, int] | None = None) -> Any:
    """Plain values that are equal for two objects if these hold the same.

    That is types, values, the order of items and keys, which places hold one object, and which arrays one memory.
    """
    seen = {} if seen is None else seen
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, (*_PLAIN, *_OF_LIBRARIES)):
        return kind, repr(value)
    if isinstance(value, tuple):  # two equal ones are as good as one
        return kind, [picture(item, seen) for item in value]
    if id(value) in seen:
        return kind, seen[id(value)]
    seen[id(value)] = len(seen)
    content = _content(value, seen)
    held = _attributes(value) if type(value).__module__.startswith("tests.") else {}
    return kind, seen[id(value)], content, [(name, picture(held[name], seen)) for name in sorted(held)]


def _content(value: Any, seen: dict[Any, int]) -> Any:
    if isinstance(value, dict):
        pairs = [(picture(key, seen), picture(item, seen)) for key, item in value.items()]
        return pairs, picture(getattr(value, "default_factory", None), seen)
    if isinstance(value, set | frozenset):  # no order: tests that ask for it make a list
        return sorted(map(repr, value))
    if isinstance(value, list | collections.deque | bytearray):
        return getattr(value, "maxlen", None), [picture(item, seen) for item in value]
    if isinstance(value, np.ndarray):
        base = value
        while isinstance(base.base, np.ndarray):
            base = base.base
        return value.dtype.str, value.shape, repr(value.tolist()), seen.setdefault(("memory", id(base)), len(seen))
    if isinstance(value, tf.Tensor | tf.Variable | keras.Variable):
        return value.dtype, repr(value.numpy().tolist())
    if isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
        return [value.random() for _ in range(3)]
    if isinstance(value, tf.random.Generator):
        return float(value.uniform(()))
    return getattr(value, "__qualname__", None)  # of functions, classes and what only libraries know


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for base in type(value).__mro__ for name in vars(base).get("__slots__", ()) if hasattr(value, name)]
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}

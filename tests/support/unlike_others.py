"""Objects of which almost any question calls code that raises, counts or answers to anything."""

from __future__ import annotations

import collections
import enum
import functools
import pathlib
import random
import threading
import types
import unittest.mock
from typing import Any

import numpy as np

CALLED: list[str] = []
"""What of these was called."""
_QUESTIONS = (
    *(
        "__repr__",
        "__str__",
        "__bool__",
        "__len__",
        "__iter__",
        "__eq__",
        "__ne__",
        "__hash__",
        "__dir__",
        "__contains__",
    ),
    *(
        "__format__",
        "__getattribute__",
        "__lt__",
        "__gt__",
        "__call__",
        "__index__",
        "__float__",
        "__int__",
        "__array__",
    ),
    *("__setattr__", "__delattr__", "__instancecheck__", "__getitem__", "__copy__", "__reduce_ex__", "__sizeof__"),
)


class AskedError(Exception):
    """Code of the user's was called."""


def _refuse(name: str) -> Any:
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        CALLED.append(name)
        raise AskedError(name)

    return method


def refusing(base: Any, *but: str, **more: Any) -> Any:
    """Returns a class that extends another one, all of whose methods that Python itself calls raise."""
    names = [name for name in (*_QUESTIONS, "__getattr__") if name not in but]
    methods = {name: _refuse(name) for name in names}
    for name in ("items", "keys", "values", "get", "getstate", "is_set", "name", "value", "isoformat", "variables"):
        methods[name] = property(_refuse(name))
    return type(
        f"Refusing{base.__name__.title()}", (base,), {**methods, "__class__": property(_refuse("__class__")), **more}
    )


class AttrDict(dict):  # type: ignore[type-arg]
    """As in many notebooks: a missing attribute is a KeyError."""

    __getattr__ = dict.__getitem__  # type: ignore[assignment]
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


class Slotted(dict):  # type: ignore[type-arg]
    """The same without a `__dict__`."""

    __slots__ = ()
    __getattr__ = dict.__getitem__  # type: ignore[assignment]


class OwnDict(dict):  # type: ignore[type-arg]
    """Its attributes are its items."""

    def __init__(self, *arguments: Any, **items: Any) -> None:
        super().__init__(*arguments, **items)
        self.__dict__ = self  # type: ignore[assignment]


class Lazy:
    """Stands for another object, as proxies of web frameworks do: the class is its object's, once there is one."""

    def __getattr__(self, name: str) -> Any:
        CALLED.append(name)
        raise RuntimeError("working outside of the application's context")

    __class__ = property(lambda self: self.__getattr__("__class__"))  # type: ignore[assignment]


class HidesDict:
    """Its `__dict__` is code."""

    __dict__ = property(_refuse("__dict__"))  # type: ignore[assignment]


class Mode(enum.Enum):
    """A member whose text is code."""

    ONE = 1

    def __repr__(self) -> str:
        raise AskedError("__repr__")

    __str__ = __repr__


def lazy_module() -> types.ModuleType:
    """A module whose missing names are code."""
    module = types.ModuleType("lazy_module_of_the_user")
    module.__getattr__ = lambda name: _refuse(name)(None)  # type: ignore[method-assign]
    return module


def all_of_them() -> dict[str, Any]:
    """Returns one of each, by name."""
    plain = refusing(object)
    made = object.__new__(plain)
    object.__setattr__(made, "number", 1)
    array = np.empty(1, object)
    array[0] = made
    return {
        "object": made,
        "dict": refusing(dict)(a=1),
        "ordered dict": collections.OrderedDict.__new__(refusing(collections.OrderedDict)),
        "list": refusing(list)([1, 2]),
        "list of objects": refusing(list)([object.__new__(plain)]),
        "tuple": refusing(tuple)((1, 2)),
        "set": refusing(set)([1, 2]),
        "deque": refusing(collections.deque)([1, 2]),
        "int": refusing(int, "__hash__")(3),
        "float": refusing(float, "__hash__")(3.5),
        "text": refusing(str, "__hash__")("three"),
        "path": pathlib.PurePosixPath("a/b"),
        "random": random.Random.__new__(refusing(random.Random, "__hash__"), 1),
        "partial": functools.partial(len, made),
        "method": types.MethodType(made, made),
        "array of objects": array,
        "AttrDict": AttrDict(lr=0.1),
        "AttrDict within": AttrDict(inner=AttrDict(lr=0.1), names=["a"]),
        "AttrDict with numbers": AttrDict({0: "cat", 1: "dog"}),
        "slotted": Slotted(lr=0.1),
        "its own __dict__": OwnDict({0: "cat", "lr": 0.1}),
        "proxy": Lazy(),
        "hidden __dict__": HidesDict(),
        "mode": Mode.ONE,
        "dict with a mode": {Mode.ONE: 1, "a": object.__new__(plain)},
        "mock": unittest.mock.MagicMock(),
        "mock with spec": unittest.mock.MagicMock(spec=dict),
        "lazy module": lazy_module(),
        "event": threading.Event.__new__(refusing(threading.Event)),
    }

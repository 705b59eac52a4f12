"""Looks at objects of the user's without calling any code of theirs.

`getattr`, `hasattr`, `isinstance`, `==`, `repr`, `len`, `bool` and a loop all call methods that a class may define as
it likes: `__getattr__` may raise KeyError, a property may count, a proxy answers to any name. What is found here is
what lies in the `__dict__`, in slots and in the class.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import types
from pathlib import Path
from typing import Any

_ABSENT = object()
_OF_C = (types.MemberDescriptorType, types.GetSetDescriptorType)
_CONTAINERS = (collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque, bytearray)


def class_of(value: Any) -> type:
    """Returns the class of an object; of a `wrapt` proxy, as TensorFlow puts around containers, that of its target."""
    cls: Any = type(value)
    return cls if _wrapped_in(cls) is None else type(target(value))


def target(value: Any) -> Any:
    """Returns what a `wrapt` proxy stands for, and any other object itself."""
    cls: Any = type(value)
    place = _wrapped_in(cls)
    if place is None:
        return value
    try:
        return target(place.__get__(value))
    except (AttributeError, ValueError):  # it was not initialized
        return value


@functools.lru_cache(maxsize=4096)
def _wrapped_in(cls: Any) -> Any:
    """Returns the place where proxies of a class hold what they stand for; None of any other class."""
    found = [vars(base).get("__wrapped__") for base in cls.__mro__ if base.__name__ == "ObjectProxy"]
    return next((place for place in found if isinstance(place, _OF_C)), None)


def is_a(value: Any, kinds: Any) -> bool:
    """Returns whether an object is an instance of a class or of one of several; `__class__` is not asked.

    Args:
        value: The object.
        kinds: As for `isinstance`.
    """
    return issubclass(class_of(value), kinds)


def has(value: Any, name: str) -> bool:
    """Returns whether an object, its class or a module has an attribute, be it a property."""
    return _lookup(target(value), name) is not _ABSENT


def holds(value: Any, name: str) -> bool:
    """Returns whether an object, class or module has an attribute itself, and not only by its class."""
    if is_a(value, type):
        return name in vars(value)
    slot = _in_class(class_of(value), name)
    is_slot = isinstance(slot, types.MemberDescriptorType)
    return name in instance_dict(value) or (is_slot and attribute(value, name, _ABSENT) is not _ABSENT)


def attribute(value: Any, name: str, default: Any = None) -> Any:
    """Returns an attribute of an object, its class or a module, as it lies there: a function of a class is not bound.

    Args:
        value: The object.
        name: The attribute's.
        default: Returned where there is none, or only code that computes it.
    """
    value = target(value)
    found = _lookup(value, name)
    if found is _ABSENT and type(value) is types.MethodType:
        return attribute(value.__func__, name, default)
    if isinstance(found, _OF_C) and issubclass(type(value), found.__objclass__):
        with contextlib.suppress(Exception):  # a slot that was never set; what a library of C says otherwise
            return found.__get__(value)
        return default
    return default if found is _ABSENT or isinstance(found, property | functools.cached_property) else found


def _lookup(value: Any, name: str) -> Any:
    """Returns what `inspect.getattr_static` does, of objects in a fraction of its time: a save asks for dozens."""
    if issubclass(type(value), type):
        return inspect.getattr_static(value, name, _ABSENT)
    cls: Any = type(value)
    place, in_class = _place_of_dict(cls), _in_class(cls, name)
    own = _ABSENT if place is None else dict.get(place.__get__(value), name, _ABSENT)
    return in_class if own is _ABSENT or _is_data_descriptor(in_class) else own


def _is_data_descriptor(value: Any) -> bool:
    defined = [_in_class(type(value), name) is not _ABSENT for name in ("__get__", "__set__", "__delete__")]
    return defined[0] and any(defined[1:])


def _in_class(cls: Any, name: str) -> Any:
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return _ABSENT


def place_in_script(function: Any) -> list[str]:
    """Returns by what users find a function: its name or that of its class, and the line where its code begins.

    A lambda has no name but its line, such as `train.py:12`; an object that is called, and what is not written in
    Python, have no line.
    """
    code = attribute(function, "__code__")
    if code is None:
        return [attribute(function, "__name__") or class_of(function).__name__]
    line = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    return [line] if code.co_name == "<lambda>" else [code.co_name, line]


def instance_dict(value: Any) -> dict[str, Any]:
    """Returns a copy of the `__dict__` of an object that is no class; empty where it has none."""
    return {name: item for name, item in dict.items(own_dict(value)) if type(name) is str}


def own_dict(value: Any) -> dict[Any, Any]:
    """Returns the `__dict__` itself, of which nothing may be changed; empty where it has none."""
    value = target(value)
    cls: Any = type(value)
    place = _place_of_dict(cls)
    found: dict[Any, Any] = {} if place is None else place.__get__(value)
    return found


def is_its_own_dict(value: Any) -> bool:
    """Returns whether the items of a dict are its attributes too, as where `__init__` sets `self.__dict__ = self`."""
    cls: Any = type(value)
    place = _place_of_dict(cls)
    return place is not None and place.__get__(value) is value


def hides_dict(cls: Any) -> bool:
    """Returns whether objects of a class have a `__dict__` that only code of theirs shows."""
    return bool(cls.__dictoffset__) and _place_of_dict(cls) is None


@functools.lru_cache(maxsize=4096)
def _place_of_dict(cls: Any) -> Any:
    found = (vars(base).get("__dict__") for base in cls.__mro__)
    return next((place for place in found if isinstance(place, _OF_C)), None)


def contents(value: Any) -> list[Any]:
    """Returns the items of a list, tuple, set, deque or bytearray, or the keys of a dict, whatever its class."""
    value = target(value)
    return list(_container_base(type(value)).__iter__(value))


def pairs(value: Any) -> list[tuple[Any, Any]]:
    """Returns keys and values of a dict, whatever its class."""
    value = target(value)
    return list(_container_base(type(value)).items(value))


def _container_base(cls: type) -> Any:
    return next(kind for kind in _CONTAINERS if issubclass(cls, kind))

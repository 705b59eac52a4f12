"""Whether arguments and records are what they must be."""

from __future__ import annotations

import dataclasses
import numbers
import os
import re
import reprlib
import signal
import threading
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.process import Shared, shared

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

LONGEST_SECONDS = 1e7
"""Some months; the waits of the operating system and of TensorFlow take no more than some times that."""
_LARGEST_COUNT = 2**63 - 1
Seconds = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS, description="a number of seconds above 0 up to 1e+07")]
SecondsFromZero = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS, description="a number of seconds from 0 up to 1e+07")]
Rate = Annotated[float, Meta(gt=0, le=2.0**60, description="a number of bytes per second above 0, and finite")]
Count = Annotated[int, Meta(ge=0, le=_LARGEST_COUNT, description="an integer of 0 or more, below 2**63")]
Some = Annotated[int, Meta(ge=1, le=_LARGEST_COUNT, description="an integer of 1 or more, below 2**63")]
Bytes = Annotated[int, Meta(ge=0, le=_LARGEST_COUNT, description="a number of bytes of 0 or more, below 2**63")]
Text = Annotated[str, Meta(min_length=1, description="a str that is not empty")]
Verbosity = Count | bool
_LONGEST_SHOWN = 60
_FLAGS_OF_NUMPY = {"numpy.bool", "numpy.bool_"}  # by name: what only starts processes does without importing numpy


class _Shortened(reprlib.Repr):
    def repr_str(self, value: str, level: int) -> str:
        return super().repr_str(_without_credentials(value), level)

    def repr_bytes(self, value: bytes, level: int) -> str:
        return _without_credentials(repr(value[:_LONGEST_SHOWN]))

    def repr_dict(self, value: Mapping[Any, Any], level: int) -> str:
        return f"a {type(value).__name__} with the keys {self.repr1(list(value), level - 1)}"


def _without_credentials(text: str) -> str:
    return re.sub("://.+", "://...", text, flags=re.DOTALL)


def format_value(value: Any) -> str:
    """Returns a value in short, without what may be a credential."""
    short = _Shortened()
    short.maxstring = short.maxother = _LONGEST_SHOWN
    try:
        text = short.repr_dict(value, short.maxlevel) if isinstance(value, Mapping) else short.repr(value)
    except Exception:  # noqa: BLE001 - a huge int, or an object of the user's: the message is about the argument
        text = f"a value of the type {type(value).__name__}"
    return _without_credentials(text)


def invalid_argument(name: str, value: Any, allowed: str, *, default: object = None) -> ConfigError:
    """Returns the error for a value that is not allowed.

    Args:
        name: Of the argument.
        value: What was given.
        allowed: What would do, after "must be".
        default: What it is if nothing is given; None if that does not help.
    """
    advice = "" if default is None else f"; the default is {default!r}"
    return ConfigError(f"{name} must be {allowed}, got {format_value(value)}{advice}")


def is_bool(value: Any) -> TypeGuard[bool]:
    """Returns whether it is True or False, of Python or numpy."""
    return isinstance(value, bool) or f"{type(value).__module__}.{type(value).__qualname__}" in _FLAGS_OF_NUMPY


def check(name: str, value: Any, kind: Any, allowed: str = "", *, default: object = None, strict: bool = True) -> Any:
    """Returns a value as a `kind`; numbers, truth values and texts of numpy as Python's.

    Args:
        name: Of the argument.
        value: What was given.
        kind: A type that msgspec knows.
        allowed: What would do, for the message. Defaults to what the type says.
        default: What it is if nothing is given.
        strict: Whether a text such as `"5"` is refused where a number is wanted.

    Raises:
        ConfigError: It does not fit.
    """
    try:
        return convert(_plain(value), kind, strict=strict)
    except (ValueError, OverflowError):
        raise invalid_argument(name, value, allowed or _describe(kind), default=default) from None


def check_fields(frozen: Any, but: Collection[str] = ()) -> None:
    """Checks the fields of a frozen dataclass by their types, from its `__post_init__`.

    Args:
        frozen: The object.
        but: Fields that are checked elsewhere.

    Raises:
        ConfigError: A value does not fit.
    """
    kinds = get_type_hints(type(frozen), include_extras=True)
    for one in dataclasses.fields(frozen):
        if one.name not in but:
            default = None if one.default is dataclasses.MISSING else one.default
            value = check(one.name, getattr(frozen, one.name), kinds[one.name], default=default)
            object.__setattr__(frozen, one.name, value)


def number_of(things: str, least: int = 0, most: int = _LARGEST_COUNT) -> Any:
    """Returns the type of an integer, for `check`."""
    end = ", below 2**63" if most == _LARGEST_COUNT else f" up to {most}"
    return Annotated[int, Meta(ge=least, le=most, description=f"a number of {things} of {least} or more{end}")]


def _plain(value: Any) -> Any:
    if is_bool(value):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return str(value) if isinstance(value, str) else value


def _describe(kind: Any) -> str:
    """Returns a type in words."""
    if get_origin(kind) in (Union, types.UnionType):
        *others, last = map(_describe, get_args(kind))
        return f"{', '.join(others)}, or {last}"
    if get_origin(kind) is Literal:
        *others, last = map(repr, get_args(kind))
        return f"{', '.join(others)} or {last}" if others else last
    if get_origin(kind) is Annotated:
        return str(kind.__metadata__[0].description)
    return {bool: "True or False", types.NoneType: "None"}.get(kind, str(kind))


def verbosity(name: str, value: Any) -> int:
    """0 for silence, 1 or more for messages; True and False too, as Keras takes them.

    Raises:
        ConfigError: It is something else.
    """
    return int(check(name, value, Verbosity))


def path(name: str, value: Any, if_empty: str = "") -> str:
    """Returns a path or URL, as a `str` or `os.PathLike[str]`; its text.

    Args:
        name: Of the argument.
        value: What was given.
        if_empty: The message for an empty one, if there is more to say.

    Raises:
        ConfigError: It is something else, empty, or has a NUL character in it.
    """
    try:
        given = os.fspath(value)
    except TypeError:
        given = None
    if not isinstance(given, str):
        raise invalid_argument(name, value, "a path or URL, as a str or an os.PathLike of str")
    if not given:
        raise ConfigError(if_empty or f"an empty path was given for {name}")
    if "\0" in given:
        raise ConfigError(f"{name} has a NUL character at position {given.index(chr(0))}; no path may contain one")
    return given


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Returns a copy of a mapping of names; empty for None. What was given is never shown: it may hold credentials.

    Raises:
        ConfigError: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a dict or None, got a value of the type {type(value).__name__}")
    strange = [type(key).__name__ for key in value if not isinstance(key, str)]
    if strange:
        raise ConfigError(f"{name} must be a dict whose keys are names (str), got a key of the type {strange[0]}")
    return dict(value)


def function(name: str, value: _Function, what: str = "a function") -> _Function:
    """Something that can be called.

    Raises:
        ConfigError: It cannot.
    """
    if not callable(value):
        raise invalid_argument(name, value, what)
    return value


def function_or_none(name: str, value: _Function | None) -> _Function | None:
    """As `function`, or None."""
    return None if value is None else function(name, value, "a function, or None")


def instance(name: str, value: Any, kind: type[_T], *, also: str = "") -> _T:
    """Returns an object of a class.

    Raises:
        ConfigError: It is of another one.
    """
    if not isinstance(value, kind):
        end = f", or {also}" if also else ""
        raise invalid_argument(name, value, f"a {kind.__module__.partition('.')[0]}.{kind.__name__}{end}")
    return value


def parse_signal(name: str, value: Any) -> signal.Signals:
    """Returns the signal that a number or a name stands for.

    Raises:
        ConfigError: It was not found.
    """
    try:
        if isinstance(value, str) and not value.isdecimal():
            return signal.Signals[value]
        return signal.Signals(convert(_plain(value), int, strict=False))
    except (KeyError, ValueError):
        raise invalid_argument(name, value, "a signal's number or name such as 'SIGTERM' or 'SIGUSR1'") from None


@dataclass
class _KnownTypes(Shared):
    """Types that msgspec has looked at."""

    kinds: set[Any] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def in_child(self) -> _KnownTypes:
        return _KnownTypes(self.kinds)  # another thread may have held the lock


def convert(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """`value` as a `kind`, with every field, range and pattern checked.

    msgspec looks at a Struct when it first meets one, and another thread that meets it meanwhile ends the process with
    SIGSEGV (measured with msgspec 0.22: 8 of 40 processes with 8 threads). So one thread at a time looks.

    Args:
        value: Plain values, as `json.loads` returns them.
        kind: A type that msgspec knows.
        strict: Whether a text such as `"5"` is refused where a number is wanted.

    Raises:
        ValueError: It does not fit; the message says where in it. msgspec's own error is one.
    """
    known = shared(_KnownTypes)
    if kind not in known.kinds:
        with known.lock:
            msgspec.json.Decoder(kind)
            known.kinds.add(kind)
    return msgspec.convert(value, kind, strict=strict)

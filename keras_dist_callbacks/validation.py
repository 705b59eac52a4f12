"""Whether arguments and records are what they must be."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import os
import re
import reprlib
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

import msgspec

from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.process import Shared, shared

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

LONGEST_SECONDS = 1e7
"""Some months; the waits of the operating system and of TensorFlow take no more than some times that."""
_LARGEST_COUNT = 2**63 - 1
_HIGHEST_RATE = 2.0**60
_LONGEST_SHOWN = 60
_FLAGS_OF_NUMPY = {"numpy.bool", "numpy.bool_"}  # by name: what only starts processes does without importing numpy


class _Shortened(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _LONGEST_SHOWN

    def repr_str(self, value: str, level: int) -> str:
        return super().repr_str(_without_credentials(value), level)

    def repr_bytes(self, value: bytes, level: int) -> str:
        return _without_credentials(repr(value[:_LONGEST_SHOWN]))

    def repr_dict(self, value: Mapping[Any, Any], level: int) -> str:
        return f"a {type(value).__name__} with the keys {self.repr1(list(value), level - 1)}"


def _without_credentials(text: str) -> str:
    return re.sub("://.+", "://...", text, flags=re.DOTALL)


def format_value(value: Any) -> str:
    """A value in short, without what may be a credential."""
    short = _Shortened()
    try:
        text = short.repr_dict(value, short.maxlevel) if isinstance(value, Mapping) else short.repr(value)
    except Exception:  # noqa: BLE001 - a huge int, or an object of the user's: the message is about the argument
        text = f"a value of the type {type(value).__name__}"
    return _without_credentials(text)


def invalid_argument(name: str, value: Any, allowed: str, *, default: object = None) -> ConfigError:
    """The error for a value that is not allowed.

    Args:
        name: Of the argument.
        value: What was given.
        allowed: What would do, behind "must be".
        default: What it is if nothing is given; None if that does not help.
    """
    advice = "" if default is None else f"; the default is {default!r}"
    return ConfigError(f"{name} must be {allowed}, got {format_value(value)}{advice}")


def is_bool(value: Any) -> TypeGuard[bool]:
    """Whether it is True or False, of Python or numpy."""
    return isinstance(value, bool) or f"{type(value).__module__}.{type(value).__qualname__}" in _FLAGS_OF_NUMPY


def check_bool(name: str, value: Any) -> bool:
    """True or False.

    Raises:
        ConfigError: It is neither.
    """
    if not is_bool(value):
        raise invalid_argument(name, value, "True or False")
    return bool(value)


def number(
    name: str,
    value: Any,
    allowed: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    default: object = None,
) -> float:
    """A real number with `above < number` and `least <= number <= most`; infinite only as far as these let it.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(value, numbers.Real) and not is_bool(value):
        try:
            converted = float(value)
        except OverflowError:
            converted = math.nan
        if above < converted and least <= converted <= most:
            return converted
    raise invalid_argument(name, value, allowed, default=default)


def seconds(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    most: float = LONGEST_SECONDS,
    also: str = "",
    default: object = None,
) -> float:
    """A time in seconds.

    Args:
        name: Of the argument.
        value: What was given.
        least: The shortest that is allowed. Defaults to any above 0.
        most: The longest that is allowed.
        also: What else the caller allows, for the message.
        default: What it is if nothing is given.

    Raises:
        ConfigError: It is something else.
    """
    begin = "above 0" if least is None else f"from {least:g}"
    allowed = f"a number of seconds {begin} up to {most:g}{_or(also)}"
    bounds = {"above": 0.0} if least is None else {"least": least}
    return number(name, value, allowed, most=most, default=default, **bounds)


def rate(name: str, value: Any, *, also: str = "", default: object = None) -> float:
    """Bytes per second.

    Raises:
        ConfigError: It is something else than a number above 0, or infinite.
    """
    allowed = f"a number of bytes per second above 0, and finite{_or(also)}"
    return number(name, value, allowed, above=0, most=_HIGHEST_RATE, default=default)


def count(
    name: str,
    value: Any,
    *,
    least: int = 0,
    most: int = _LARGEST_COUNT,
    of: str = "",
    also: str = "",
    default: object = None,
) -> int:
    """A whole number.

    Args:
        name: Of the argument.
        value: What was given.
        least: The smallest that is allowed.
        most: The largest that is allowed.
        of: What is counted, for the message.
        also: What else the caller allows, for the message.
        default: What it is if nothing is given.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(value, numbers.Integral) and not is_bool(value) and least <= int(value) <= most:
        return int(value)
    allowed = f"{f'a number of {of}' if of else 'a whole number'} of {least} or more{_up_to(value, most)}"
    raise invalid_argument(name, value, allowed + _or(also), default=default)


def _up_to(value: Any, most: int) -> str:
    """The end of a range, where it is worth a word."""
    if most < _LARGEST_COUNT:
        return f" up to {most}"
    return ", below 2**63" if isinstance(value, numbers.Integral) and int(value) > most else ""


def verbosity(name: str, value: Any) -> int:
    """0 for silence, 1 or more for messages; True and False too, as Keras takes them.

    Raises:
        ConfigError: It is something else.
    """
    return int(value) if is_bool(value) else count(name, value, also="True or False")


def flag_or(name: str, value: Any, word: str) -> bool | str:
    """True, False or a word.

    Raises:
        ConfigError: It is something else.
    """
    if is_bool(value):
        return bool(value)
    if isinstance(value, str) and value == word:
        return word
    raise invalid_argument(name, value, f"True, False or {word!r}")


def choice(name: str, value: Any, allowed: Collection[str], *, also: str = "") -> str:
    """One of some words.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(value, str) and value in allowed:
        return str(value)
    *others, last = [*map(repr, allowed), *([also] if also else [])]
    raise invalid_argument(name, value, f"{', '.join(others)} or {last}")


def count_or(name: str, value: Any, words: Collection[str], of: str, *, least: int = 1) -> int | str:
    """A whole number, or one of some words.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(value, str) and value in words:
        return str(value)
    if isinstance(value, numbers.Integral) and not is_bool(value) and least <= int(value) <= _LARGEST_COUNT:
        return int(value)
    end = _up_to(value, _LARGEST_COUNT)
    raise invalid_argument(name, value, f"{' or '.join(map(repr, words))} or a number of {of} of {least} or more{end}")


def text(name: str, value: Any, allowed: str) -> str:
    """A string that is not empty.

    Raises:
        ConfigError: It is something else.
    """
    if not isinstance(value, str) or not value:
        raise invalid_argument(name, value, allowed)
    return str(value)


def path(name: str, value: Any, if_empty: str = "") -> str:
    """A path or URL, as a `str` or `os.PathLike[str]`; its text.

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
    """A copy of a mapping of names; empty for None. What was given is never shown: it may hold credentials.

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


def texts(name: str, value: Any, allowed: str) -> tuple[str, ...]:
    """Several strings, in a list or the like; a single string is refused.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise invalid_argument(name, value, allowed)
    given = tuple(value)
    if not all(isinstance(item, str) for item in given):
        raise invalid_argument(name, value, allowed)
    return given


def function(name: str, value: _Function, what: str = "a function") -> _Function:
    """Something that can be called.

    Raises:
        ConfigError: It cannot.
    """
    if not callable(value):
        raise invalid_argument(name, value, what)
    return value


def instance(name: str, value: Any, kind: type[_T], *, also: str = "") -> _T:
    """An object of a class.

    Raises:
        ConfigError: It is of another one.
    """
    if not isinstance(value, kind):
        raise invalid_argument(name, value, f"a {kind.__module__.partition('.')[0]}.{kind.__name__}{_or(also)}")
    return value


def parse_signal(name: str, value: Any) -> signal.Signals:
    """The signal that a number or a name stands for.

    Raises:
        ConfigError: There is none.
    """
    try:
        if isinstance(value, str):
            return signal.Signals(int(value)) if value.isdecimal() else signal.Signals[value]
        if isinstance(value, numbers.Integral) and not is_bool(value):
            return signal.Signals(int(value))
    except (KeyError, ValueError) as error:
        raise invalid_argument(name, value, "a signal's number or name such as 'SIGTERM' or 'SIGUSR1'") from error
    raise invalid_argument(name, value, "a signal's number or name such as 'SIGTERM' or 'SIGUSR1'")


def set_frozen_fields(frozen: object, **checked: Any) -> None:
    """Puts checked values into a frozen dataclass, from its `__post_init__`."""
    for name, value in checked.items():
        object.__setattr__(frozen, name, value)


def _or(also: str) -> str:
    return f", or {also}" if also else ""


_C = TypeVar("_C", bound=Callable[..., Any])

OF_WRITE_OPTIONS = {
    name: f"write_options=kdc.WriteOptions({name}={{0}})"
    for name in (
        "retry",
        "fsync",
        "max_bytes_per_second",
        "max_failed_saves",
        "when_busy",
        "max_held_bytes",
        "max_local_state",
    )
}
OF_SHUTDOWN_OPTIONS = {
    "save_before_preemption": "shutdown_options=kdc.ShutdownOptions(save_before_preemption={0})",
    "preemption_signals": "shutdown_options=kdc.ShutdownOptions(signals={0})",
    "signals": "shutdown_options=kdc.ShutdownOptions(signals={0})",
    "preemption_notice": "shutdown_options=kdc.ShutdownOptions(notice={0})",
    "notice": "shutdown_options=kdc.ShutdownOptions(notice={0})",
    "grace_period": "shutdown_options=kdc.ShutdownOptions(grace_period={0})",
    "save_on_exception": "shutdown_options=kdc.ShutdownOptions(save_on_exception={0})",
}
OF_STRATEGY = {
    name: f"kdc.make_strategy({name}={{0}}), or KDC_{name.upper()} in the environment"
    for name in ("startup_timeout", "heartbeat_timeout", "peer_timeout", "timeout")
}
OF_READERS = {"write_options": "retry=kdc.RetryPolicy(...); the other options are about writing"}


def explains_arguments(moved: Mapping[str, str] | None = None) -> Callable[[_C], _C]:
    """Decorates a function, or a class for its constructor; its signature stays as it is.

    Args:
        moved: For arguments that are given in another place: that place, with `{0}` where the value goes.
    """

    def decorate(target: _C) -> _C:
        call: Callable[..., Any] = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
        known = [name for name in inspect.signature(call).parameters if name != "self"]

        @functools.wraps(call)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in known:
                    raise TypeError(_advice(target.__name__, name, kwargs[name], known, moved or {}))
            return call(*args, **kwargs)

        if not isinstance(target, type):
            return checked  # type: ignore[return-value]
        target.__init__ = checked  # type: ignore[misc]
        return target

    return decorate


def _advice(owner: str, name: str, value: Any, known: list[str], moved: Mapping[str, str]) -> str:
    text = f"{owner}() has no argument {name!r}"
    if name in moved:
        shown = repr(value) if isinstance(value, bool | int | float | str | None) else "..."
        return f"{text}: give {moved[name].format(shown)}"
    close = difflib.get_close_matches(name, [*known, *moved], n=1)
    if close and close[0] in moved:
        return f"{text}: give {moved[close[0]].format('...')}"
    return f"{text}: did you mean {close[0]!r}?" if close else f"{text}; it has {', '.join(known)}"


@dataclass
class _Known(Shared):
    """Types that msgspec has looked at."""

    kinds: set[Any] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def in_child(self) -> _Known:
        return _Known(self.kinds)  # another thread may have held the lock


def convert(value: Any, kind: Any) -> Any:
    """`value` as a `kind`, with every field, range and pattern checked.

    msgspec looks at a Struct when it first meets one, and another thread that meets it meanwhile ends the process with
    SIGSEGV (measured with msgspec 0.22: 8 of 40 processes with 8 threads). So one thread at a time looks.

    Args:
        value: Plain values, as `json.loads` returns them.
        kind: A type that msgspec knows.

    Raises:
        ValueError: It does not fit; the message says where in it. msgspec's own error is one.
    """
    known = shared(_Known)
    if kind not in known.kinds:
        with known.lock:
            msgspec.json.Decoder(kind)
            known.kinds.add(kind)
    return msgspec.convert(value, kind)

"""What differs between the starts of two runs: edited code, other settings, another environment's values."""

from __future__ import annotations

import collections
import datetime
import enum
import os
import pathlib
import random
import re
import socket
import stat
import sys
import tempfile
import time
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import keras
import numpy as np
import tensorflow as tf
import xxhash

from keras_dist_callbacks._compat import graphs, variables
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_objects.libraries import library_base
from keras_dist_callbacks.state.own_objects.look import Look
from keras_dist_callbacks.state.own_objects.places import join
from keras_dist_callbacks.state.own_objects.plain import is_immutable, items_of, name_of, text_of

_COMPILED = ("model", "optimizer", "loss", "metrics")
_OF_TRAINING = (*_COMPILED, "callback ")
_SHOWN = 60
_VARIABLE = "number in a variable"
_VARIABLES = (keras.Variable, tf.Variable)
_NOT_COMPARED = (*_VARIABLES, types.FunctionType, type)
"""As values: of functions, the code is."""
_CLOCKS = (time.perf_counter, time.monotonic)
_PRECISE = 10
_NEAR = 2 * 86_400.0
_DATE = re.compile(r"(20\d\d)([-_.]?)(\d\d)\2(\d\d)(?:[-_T .]?\d\d[-_:h.]?\d\d(?:[-_:m.]?\d\d)?)?")
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{8,40}\b"
)
_RANDOM_NAME = re.compile(r"[a-z0-9_]{8}$")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Edits:
    """What differs between the starts of two runs.

    Attributes:
        settings: Numbers and switches of training, by path: what they were and what they are now.
        others: Other values that differ, by path: what they were and what they are now, of numbers only.
        code: Functions that differ, as `file: name`.
        callbacks: Callbacks that only one of the two runs has.
    """

    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    others: dict[str, tuple[str, str] | None] = field(default_factory=dict)
    code: list[str] = field(default_factory=list)
    callbacks: list[str] = field(default_factory=list)


def describe(start: Look, of_input: Look, callbacks: Iterable[str], *, is_loaded: bool = False) -> dict[str, Any]:
    """Returns what a backup holds of a run's start, as JSON; without what differs from run to run by its nature.

    Args:
        start: What the callbacks, the model and compile's arguments reach.
        of_input: What the Python code of the input reaches.
        callbacks: The names of the user's callbacks.
        is_loaded: Variables have the values of a checkpoint, and not those that the script gave them.
    """
    values: dict[str, list[str]] = {}
    for look in (of_input, start):
        # Constraints and regularizers of variables are settings of their layers, too.
        named = (path for path, place in look.places.items() if (place.kind != "option" if place else "/" in path))
        found = {path: look.value_at(path) for path in named if path not in look.unknown}
        values |= {path: _text(look, path, v) for path, v in found.items() if not static.is_a(v, _NOT_COMPARED)}
        held = {path: value for path, value in look.variables.items() if f"{path}/" not in look.traced}
        values |= {path: ["variable", look.digests[f"{path}/"]] for path in held}
        values |= _settings_of_layers(look) | _tables(look)
    values |= {} if is_loaded else _settings_in_variables(start)
    code = {**of_input.code.digests, **start.code.digests}
    return {"python": list(sys.version_info[:2]), "callbacks": list(callbacks), "values": values, "code": code}


def with_first(now: dict[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the description of one of several `fit()` calls, with what the first one knew already."""
    parts = {part: {**now[part], **first[part]} for part in ("values", "code")}
    return {**now, **parts, "callbacks": list(dict.fromkeys([*first["callbacks"], *now["callbacks"]]))}


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> Edits:
    """Returns what differs between two descriptions."""
    edits = Edits()
    ours, theirs = now["values"], before["values"]
    one_sided = {f"callback {name}" for name in set(before["callbacks"]) ^ set(now["callbacks"])}
    edits.callbacks.extend(sorted(name.removeprefix("callback ") for name in one_sided))
    for path in dict.fromkeys([*theirs, *ours]):
        was, is_now = theirs.get(path), ours.get(path)
        if _is_equal(was, is_now) or _is_ignored(path, was, is_now) or path.partition("/")[0] in one_sided:
            continue
        numbers = (was[1], is_now[1]) if _is_number(was) and _is_number(is_now) else None
        if path.startswith(_COMPILED) and _is_option(was, is_now):
            numbers = (was[1], is_now[1])
        if numbers is not None and path.startswith(_OF_TRAINING):
            edits.settings[path] = numbers
        else:
            edits.others[path] = numbers
    if before["python"] == now["python"]:
        was_code, code = _with_renamed_file(before["code"], now["code"]), now["code"]
        edits.code.extend(name for name in dict.fromkeys([*was_code, *code]) if was_code.get(name) != code.get(name))
    return edits


def _with_renamed_file(before: Mapping[str, str], now: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the code before, under the name that its file has now, where one file was renamed."""
    old, new = ({name.partition(": ")[0] for name in code} for code in (before, now))
    if len(old - new) != 1 or len(new - old) != 1:
        return before
    (was,), (renamed,) = old - new, new - old
    return {
        f"{renamed}{name.removeprefix(was)}" if name.startswith(f"{was}: ") else name: before[name] for name in before
    }


def _settings_in_variables(start: Look) -> dict[str, list[str]]:
    """The numbers with which variables of training begin that no optimizer trains, such as a weight of a loss."""
    rates = {path for path in start.objects if path.startswith("optimizer/") and path.endswith("/_learning_rate")}
    left = {path for path in start.variables if f"{path}/" not in start.traced}
    found = {path: value for path, value in start.objects.items() if path not in rates | left}
    numbers = {p: variables.setting(value) for p, value in found.items() if static.is_a(value, _VARIABLES)}
    return {path: [_VARIABLE, repr(number)] for path, number in numbers.items() if number is not None}


def _tables(look: Look) -> dict[str, list[str]]:
    """Returns what the lookup tables hold that nothing changes."""
    found = {path: v for path, v in look.objects.items() if static.is_a(v, tf.lookup.StaticHashTable)}
    return {path: ["table", str(graphs.table_digest(table))] for path, table in found.items()}


def _settings_of_layers(look: Look) -> dict[str, list[str]]:
    """Returns the settings of Keras' layers outside of the model, such as those of the input's augmentation."""
    return {
        join(path, name): _text(look, path, value)
        for path, settings in look.settings.items()
        if not path.startswith("model/")
        for name, value in settings.items()
        if name not in ("name", "trainable", "built")
    }


def _is_ignored(path: str, was: Any, is_now: Any) -> bool:
    if path.startswith("fit/params") or path.endswith("/verbose"):  # epochs may be raised
        return True
    return None in (was, is_now) and (was or is_now)[0] == _VARIABLE  # one of the two models was loaded


_FAMILIES = {
    **dict.fromkeys(("bool", "bool_"), "bool"),
    **dict.fromkeys(("int", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))), "int"),
    **dict.fromkeys(("float", "float16", "float32", "float64"), "float"),
    **dict.fromkeys(("complex", "complex64", "complex128"), "complex"),
    _VARIABLE: _VARIABLE,
}
_PATHS = (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
_TEXTS = frozenset(["str", "str_", *(cls.__name__ for cls in _PATHS)])
_NONE = ["NoneType", "None"]


def _is_option(was: Any, is_now: Any) -> bool:
    """Returns whether a number was None in one of the runs, as an option is that is not used."""
    return (was == _NONE and _is_number(is_now)) or (is_now == _NONE and _is_number(was))


def _is_number(text: Any) -> TypeGuard[list[str]]:
    return isinstance(text, list) and text[0] in _FAMILIES


def _is_equal(was: Any, is_now: Any) -> bool:
    """Returns whether two values are equal: a number of numpy's to Python's, a path to its text, as after JSON."""
    if was is None or is_now is None:
        return was is is_now
    return bool(was[1] == is_now[1] and _family(was[0]) == _family(is_now[0]))


def _family(kind: str) -> str:
    return "str" if kind in _TEXTS else _FAMILIES.get(kind, kind)


def _text(look: Look, path: str, value: Any) -> list[str]:
    """Describes what is at a place: a number or text by itself, all else by a digest."""
    if is_immutable(value) and not static.is_a(value, tuple | frozenset):
        return _text_of_value(value)
    shown = _shown(look, value, [])
    return [shown[0], _digest(repr(shown))]


def _shown(look: Look, value: Any, above: list[int]) -> list[Any]:
    """Describes a value: a container, list or tuple alike, by what is in it; other objects by their path."""
    if static.is_a(value, list | tuple | collections.deque | dict | set | frozenset) and id(value) not in above:
        kinds = {"list": list | tuple, "dict": dict, "set": set | frozenset}
        kind = next((name for name, bases in kinds.items() if static.is_a(value, bases)), type(value).__name__)
        items = [_shown(look, item, [*above, id(value)]) for item in items_of(value)]
        return [kind, *(sorted(items, key=repr) if kind == "set" else items)]
    if type(value) in _PATHS:
        return ["str", str(value)]
    if is_immutable(value) and issubclass(type(value), str):
        return ["str", text_of(value)]
    if is_immutable(value):
        kind, text = _text_of_value(value)
        return [_family(kind), text]
    if static.is_a(value, types.FunctionType | type):
        return ["name", name_of(value)]
    if static.is_a(value, tf.Tensor):
        return ["tensor", repr(value)]
    path = look.path_of(value)
    is_data = static.is_a(value, np.ndarray | random.Random | np.random.Generator | np.random.RandomState)
    return ["object", path or name_of(type(value)), is_data and look.digests.get(f"{path}/")]


def _text_of_value(value: Any) -> list[str]:
    cls = type(value)
    if issubclass(cls, enum.Enum):
        return [cls.__name__, str(text_of(value))]
    if issubclass(cls, float):
        value = float.__float__(value)
    if issubclass(cls, datetime.date) or (issubclass(cls, float) and _is_time(value)):
        return ["time", ""]
    if issubclass(cls, np.generic):
        return [cls.__name__, repr(value.item() if isinstance(value, np.generic) else value)]
    text = str(library_base(cls).__str__(value) if issubclass(cls, pathlib.PurePath) else text_of(value))
    if issubclass(cls, bool | int | float):
        return [cls.__name__, repr(value) if issubclass(cls, float) else text]
    text = normalized(text)
    return [cls.__name__, text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... {_digest(text)}"]


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode(errors="surrogatepass"))


def _is_time(value: float) -> bool:
    """Returns whether a number was read off a clock of this run: a setting is neither so large nor so precise."""
    if abs(value - time.time()) < _NEAR:
        return True
    return len(repr(value)) >= _PRECISE and any(abs(value - clock()) < _NEAR / 48 for clock in _CLOCKS)


def normalized(text: str) -> str:
    """Returns a text without what differs from run to run: times, process and host, directories, addresses."""
    if "/" in text and _is_temporary(text):
        return "<temporary>"
    text = _ID.sub("<id>", _ADDRESS.sub("", _DATE.sub(_date, text)))
    text = re.sub(rf"\b{os.getpid()}\b", "<pid>", text.replace(socket.gethostname(), "<host>"))
    text = re.sub(r"\d{10}(?:\.\d+)?", lambda m: "<time>" if abs(float(m[0]) - time.time()) < _NEAR else m[0], text)
    return text.rstrip("/").rpartition("/")[2] if "/" in text else text


def _is_temporary(path: str) -> bool:
    """Returns whether `tempfile` made a path: only its owner may read it, and it ends with eight random characters."""
    found = Path(path)
    if str(found.parent) != tempfile.gettempdir() or not _RANDOM_NAME.search(path) or not found.exists():
        return False
    return stat.S_IMODE(found.stat().st_mode) in (0o600, 0o700)


def _date(match: re.Match[str]) -> str:
    try:
        date = datetime.date(int(match[1]), int(match[3]), int(match[4]))
    except ValueError:
        return match[0]
    return "<time>" if abs((date - datetime.date.today()).days) <= 2 else match[0]

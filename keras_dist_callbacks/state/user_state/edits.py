"""What differs between the starts of two runs: edited code, other settings, another environment's values."""

from __future__ import annotations

import datetime
import enum
import os
import pathlib
import re
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import xxhash

from keras_dist_callbacks._compat import graphs, variables
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.user_state.changes import digest_of
from keras_dist_callbacks.state.user_state.libraries import library_base
from keras_dist_callbacks.state.user_state.nodes import Node, is_flat, join, parent_of, text_of
from keras_dist_callbacks.state.user_state.walker import Found

_COMPILED = ("model", "optimizer", "loss", "metrics")
_OF_TRAINING = (*_COMPILED, "callback ")
_SHOWN = 60
_VARIABLE = "number in a variable"
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


def describe(start: Found, of_input: Found, callbacks: Iterable[str], *, is_loaded: bool = False) -> dict[str, Any]:
    """Returns what a backup holds of a run's start, as JSON; without what differs from run to run by its nature.

    Args:
        start: What the callbacks, the model and compile's arguments reach.
        of_input: What the Python code of the input reaches.
        callbacks: The names of the user's callbacks.
        is_loaded: Variables have the values of a checkpoint, and not those that the script gave them.
    """
    nodes = {**of_input.nodes, **start.nodes}
    whole = {path for path, node in nodes.items() if node.kind == "container" and _is_whole(node.value)}
    values = {
        path: _text_of_items(node.value) if path in whole else _text(node)
        for path, node in nodes.items()
        if node.kind in _KINDS and not _is_of_step(node) and parent_of(path)[0] not in whole
    }
    values.update({} if is_loaded else _settings_in_variables(start))
    values.update(_settings_of_layers(nodes))
    values.update(_tables(nodes))
    code = {**of_input.code, **start.code}
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


def _settings_in_variables(start: Found) -> dict[str, list[str]]:
    """The numbers with which variables of training begin that no optimizer trains, such as a weight of a loss."""
    found = {path: node.value for path, node in start.nodes.items() if node.kind == "owned" or _is_of_step(node)}
    rates = {path for path in found if path.startswith("optimizer/") and path.endswith("/_learning_rate")}
    numbers = {path: variables.setting(value) for path, value in found.items() if path not in rates}
    return {path: [_VARIABLE, repr(number)] for path, number in numbers.items() if number is not None}


def _tables(nodes: Mapping[str, Node]) -> dict[str, list[str]]:
    """Returns what the lookup tables hold that nothing changes."""
    found = {path: graphs.table_digest(node.value) for path, node in nodes.items() if node.kind == "owned"}
    return {path: ["table", digest] for path, digest in found.items() if digest}


def _settings_of_layers(nodes: Mapping[str, Node]) -> dict[str, list[str]]:
    """Returns the settings of Keras' layers outside of the model, such as those of the input's augmentation."""
    found = {path: node for path, node in nodes.items() if node.kind == "layer" and not path.startswith("model/")}
    return {
        join(path, name): _text_of_value(value, node)
        for path, node in found.items()
        for name, value in node.token[2:]
        if name not in ("name", "trainable", "built")
    }


_KINDS = frozenset(["value", "container", "array", "texts", "random", "variable", "tensor", "ref"])


def _is_of_step(node: Node) -> bool:
    """Returns whether it is a variable of what TensorFlow traces, whose values a backup holds."""
    return node.kind == "variable" and node.is_traced


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


def _text(node: Node) -> list[str]:
    if node.kind == "value":
        return _text_of_value(node.value, node)
    if node.kind == "container" and static.is_a(node.value, list | tuple):
        return [node.kind, f"{len(static.contents(node.value))} items"]
    return [node.kind, digest_of(node)]


def _is_whole(value: Any) -> bool:
    """Returns whether a container holds nothing but numbers and texts, and so is described by them."""
    if static.is_a(value, bytearray):
        return False
    return all(type(item) in _PATHS or is_flat([item]) for item in _items(value))


def _items(value: Any) -> list[Any]:
    items = static.contents(value)
    if static.is_a(value, dict):
        return items + [item for _, item in static.pairs(value)]
    return sorted(items, key=repr) if static.is_a(value, set | frozenset) else items


def _text_of_items(value: Any) -> list[str]:
    """Describes a container of numbers and texts: the same for a list and a tuple."""
    kinds = {"list": list | tuple, "dict": dict, "set": set | frozenset}
    kind = next((name for name, bases in kinds.items() if static.is_a(value, bases)), type(value).__name__)
    found = [(_family(type(item).__name__), _text_of_item(item)) for item in _items(value)]
    return ["container", f"{kind} {_digest(repr(found))}"]


def _text_of_item(item: Any) -> str:
    if type(item) in _PATHS or isinstance(item, str):
        return str(item)
    return repr(item.item() if isinstance(item, np.generic) else item)


def _text_of_value(value: Any, node: Node) -> list[str]:
    cls = type(value)
    if issubclass(cls, enum.Enum):
        return [cls.__name__, str(text_of(value))]
    if issubclass(cls, float):
        value = float.__float__(value)
    if issubclass(cls, datetime.date) or (issubclass(cls, float) and _is_time(value)):
        return ["time", ""]
    if issubclass(cls, np.generic):
        return [cls.__name__, _text_of_item(value)]
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

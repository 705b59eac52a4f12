"""What differs between the starts of two runs: edited code, other settings, another environment's values."""

from __future__ import annotations

import datetime
import os
import re
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keras_dist_callbacks.training.user_state.changes import digest_of
from keras_dist_callbacks.training.user_state.nodes import Node
from keras_dist_callbacks.training.user_state.walker import Found

_OF_TRAINING = ("model", "optimizer", "loss", "metrics", "callback ")
_SHOWN = 60
_CLOCKS = (time.perf_counter, time.monotonic)
_PRECISE = 10
_NEAR = 2 * 86_400.0
_DATE = re.compile(r"(20\d\d)([-_.]?)(\d\d)\2(\d\d)(?:[-_T .]?\d\d[-_:h.]?\d\d(?:[-_:m.]?\d\d)?)?")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
_RANDOM_NAME = re.compile(r"[a-z0-9_]{8}$")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Edits:
    """What differs between the starts of two runs.

    Attributes:
        settings: Numbers and switches of training, by path: what they were and what they are now.
        others: Paths of other values that differ.
        code: Functions that differ, as `file: name`.
        callbacks: Callbacks that only one of the two runs has.
    """

    settings: dict[str, tuple[str, str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    callbacks: list[str] = field(default_factory=list)


def describe(start: Found, of_input: Found, callbacks: Iterable[str]) -> dict[str, Any]:
    """What a backup holds of a run's start, as JSON; without what differs from run to run by its nature."""
    nodes = {**of_input.nodes, **start.nodes}
    values = {path: _text(node) for path, node in nodes.items() if node.kind in _KINDS}
    code = {**of_input.code, **start.code}
    return {"python": list(sys.version_info[:2]), "callbacks": list(callbacks), "values": values, "code": code}


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> Edits:
    """What differs between two descriptions."""
    edits = Edits()
    ours, theirs = now["values"], before["values"]
    one_sided = {f"callback {name}" for name in set(before["callbacks"]) ^ set(now["callbacks"])}
    edits.callbacks.extend(sorted(name.removeprefix("callback ") for name in one_sided))
    for path in dict.fromkeys([*theirs, *ours]):
        was, is_now = theirs.get(path), ours.get(path)
        if was == is_now or _is_ignored(path) or path.partition("/")[0] in one_sided:
            continue
        if path.startswith(_OF_TRAINING) and _is_number(was) and _is_number(is_now):
            edits.settings[path] = (was[1], is_now[1])
        else:
            edits.others.append(path)
    if before["python"] == now["python"]:
        names = dict.fromkeys([*before["code"], *now["code"]])
        edits.code.extend(name for name in names if before["code"].get(name) != now["code"].get(name))
    return edits


_KINDS = frozenset(["value", "container", "array", "texts", "random", "variable", "tensor", "iterator", "ref"])


def _is_ignored(path: str) -> bool:
    return path.startswith(("fit/params", "module os/environ"))  # epochs may be raised


def _is_number(text: Any) -> bool:
    return isinstance(text, list) and text[0] in ("bool", "int", "float", "complex", "float32", "float64")


def _text(node: Node) -> list[str]:
    if node.kind == "value":
        value = node.value
        if isinstance(value, float) and _is_time(value):
            return ["time", ""]
        if isinstance(value, datetime.date):
            return ["time", ""]
        if isinstance(value, bool | int | float | np.generic):
            return [type(value).__name__, repr(value.item() if isinstance(value, np.generic) else value)]
        text = normalized(str(value))
        return [type(value).__name__, text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... {digest_of(node)}"]
    return [node.kind, digest_of(node)]


def _is_time(value: float) -> bool:
    """Whether a number was read off a clock of this run: a setting is neither so large nor so precise."""
    if abs(value - time.time()) < _NEAR:
        return True
    return len(repr(value)) >= _PRECISE and any(abs(value - clock()) < _NEAR / 48 for clock in _CLOCKS)


def normalized(text: str) -> str:
    """A text without what differs from run to run: times, process and host, directories, addresses."""
    text = _ID.sub("<id>", _ADDRESS.sub("", _DATE.sub(_date, text)))
    text = re.sub(rf"\b{os.getpid()}\b", "<pid>", text.replace(socket.gethostname(), "<host>"))
    text = re.sub(r"\d{10}(?:\.\d+)?", lambda m: "<time>" if abs(float(m[0]) - time.time()) < _NEAR else m[0], text)
    if "/" not in text:
        return text
    return "<temporary>" if _is_temporary(text) else text.rstrip("/").rpartition("/")[2]


def _is_temporary(path: str) -> bool:
    """Whether `tempfile` made a path: only its owner may read it, and it ends with eight random characters."""
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

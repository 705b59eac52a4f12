"""Records that a hostile neighbour writes: valid seals around JSON in which one thing is invalid."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[Any, ...]

_HERE = "@here@"
_DEEP = 3000
_NUMBERS = ["-1", "-2147483648", "9007199254740993", "9223372036854775808", "1" + "0" * 30, "0.5", "NaN", "-Infinity"]
_TEXTS = ['""', json.dumps("../../etc/passwd"), json.dumps("x" * 5000), r'"\u0000"', r'"\ud800"', '"\u202ex"', '"²"']
_OTHERS = ["null", "true", '"x"', "-7", "1.5", "[]", "{}", "[[]]", '{"a":1}', "[null]", '{"$array":"nothing"}']


def mutations(body: Any, rng: random.Random, free: Callable[[Path], bool]) -> Iterator[tuple[str, bytes]]:
    """Texts of `body` in which one thing was changed so that no reader may take it, each with what was done.

    Args:
        body: The record.
        rng: Chooses.
        free: Whether any value of the same kind is as good at that place, such as in a text that is only shown.
    """
    paths = list(_paths(body))
    dicts = [path for path in ((), *paths) if isinstance(_at(body, path), dict) and _at(body, path)]
    dicts = [path for path in dicts if not path or not free(path)]
    while True:
        how = rng.choice(["type", "range", "depth", "double", "rename", "unicode", "spelling"])
        path = rng.choice(dicts if how in {"double", "rename"} else paths)
        found = _CHANGES[how](_at(body, path), rng, bool(path) and free(path))
        if found is not None:
            yield f"{how} of {'/'.join(map(str, path))[:120]}: {found[:80]}", _text(body, path, found)


def _type(value: Any, rng: random.Random, free: bool) -> str | None:
    others = [text for text in _OTHERS if _kind(json.loads(text)) != _kind(value)]
    if value is None or free:  # what may be None may mostly be something else too
        return None
    return rng.choice([text for text in others if text != "null"])


def _range(value: Any, rng: random.Random, free: bool) -> str | None:
    if free or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return rng.choice(_NUMBERS if isinstance(value, int) else ["NaN", "Infinity", "-1e308"])


def _depth(value: Any, rng: random.Random, free: bool) -> str:
    begin, end = rng.choice([("[", "]"), ('{"a":', "}")])
    return begin * _DEEP + json.dumps(value) + end * _DEEP


def _double(value: Any, rng: random.Random, free: bool) -> str:
    key = rng.choice(list(value))
    rest = "".join(f",{json.dumps(k)}:{json.dumps(v)}" for k, v in value.items())
    return f"{{{json.dumps(key)}:{rng.choice(['1', json.dumps(value[key])])}{rest}}}"


def _rename(value: Any, rng: random.Random, free: bool) -> str | None:
    key = rng.choice(list(value))
    if "/" in key or "(" in key:  # tensors and callbacks have names that only their owner knows
        return None
    other = rng.choice([key + "²", key.upper() + "_", "", "\u202e" + key, "__class__"])
    return json.dumps({other if k == key else k: v for k, v in value.items()})


def _unicode(value: Any, rng: random.Random, free: bool) -> str | None:
    return rng.choice(_TEXTS) if isinstance(value, str) and not free else None


def _spelling(value: Any, rng: random.Random, free: bool) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        return None
    return f"{value}e0" if isinstance(value, int) else f'"\\u{ord(value[0]):04X}{json.dumps(value[1:])[1:]}'


_CHANGES: dict[str, Callable[[Any, random.Random, bool], str | None]] = {
    "type": _type, "range": _range, "depth": _depth, "double": _double,
    "rename": _rename, "unicode": _unicode, "spelling": _spelling,
}  # fmt: skip


def _kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _text(body: Any, path: Path, fragment: str) -> bytes:
    if not path:
        return fragment.encode("utf-8", "surrogatepass")
    changed = copy.deepcopy(body)
    _at(changed, path[:-1])[path[-1]] = _HERE
    text = json.dumps(changed, separators=(",", ":"))
    return text.replace(json.dumps(_HERE), fragment).encode("utf-8", "surrogatepass")

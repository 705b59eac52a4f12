"""What is found in the user's Python code: paths as findings."""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Mapping

from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_objects.edits import Edits
from keras_dist_callbacks.state.own_objects.libraries import is_library
from keras_dist_callbacks.state.own_objects.look import Look
from keras_dist_callbacks.state.own_objects.places import words


def lost(path: str, why: str) -> Finding:
    """Returns that what is at a path has changed and is not saved, or was not put back."""
    owner, place = words(path)
    code = "callback-state" if path.startswith("callback ") else "object-state"
    return Finding(code, owner, (place or "its code", why))


def set_otherwise(paths: Collection[str]) -> list[Finding]:
    """Returns the attributes that `get_state` and `set_state` do not restore."""
    return [Finding("set-otherwise", detail=(f"{place} of {owner}",)) for owner, place in map(words, paths)]


def unseen(path: str, why: str, now: Look, records: Collection[str] = ()) -> Finding:
    """Returns that what is at a path cannot be inspected.

    Args:
        path: The path.
        why: What was found there.
        now: The look that found it.
        records: Paths of what is saved.
    """
    owner, place = words(path)
    assertion = _assertion(path, now, records)
    detail = (place or "its code", why, assertion)
    if assertion:
        return Finding("unseen-state-assertable", owner, detail)
    return Finding("unseen-state-of-callback" if path.startswith("callback ") else "unseen-state", owner, detail)


def code(path: str, why: str) -> Finding:
    """Returns that it is not known what a function does."""
    owner, place = words(path)
    return Finding("code", f"{place} of {owner}" if place else owner, (why,))


def traced(path: str) -> Finding:
    """Returns that a value has changed since a function was traced that may have read it."""
    owner, place = words(path)
    return Finding("traced", owner, (place or "the code",))


def _assertion(path: str, now: Look, records: Collection[str]) -> str:
    """The line by which the user asserts that what is below a path keeps no state; none if other state of it is saved.

    Backups then save nothing of it.
    """
    root = path.partition("/")[0]
    value = now.objects.get(root, now.objects.get(path))
    if value is None or root.startswith(("model", "optimizer")) or any(r.startswith(f"{root}/") for r in records):
        return ""
    if type(value) in (types.FunctionType, functools._lru_cache_wrapper):
        return f"kdc.advanced.stateless_input({value.__name__})"
    cls = value if static.is_a(value, type) else type(value)
    is_users = root.startswith("callback ") or not is_library(cls.__module__)
    return "" if not is_users else f"kdc.advanced.register_callback_state({cls.__name__}, None)"


def of_edits(found: Edits, named: Collection[str]) -> list[Finding]:
    """Returns what differs from the script of the interrupted run.

    Args:
        found: What differs.
        named: Settings that are reported already.
    """
    settings = [
        Finding("setting", detail=(f"{place} of {owner}" if place else owner, *pair))
        for (owner, place), pair in ((words(path), pair) for path, pair in found.settings.items())
        if place.rpartition(".")[2] not in named
    ]
    files = (name.partition(": ")[::2] for name in found.code)
    edited = [Finding("edited-code", file, (function.replace("<locals>.", ""),)) for file, function in files]
    callbacks = [Finding("edited-callbacks", detail=(name,)) for name in found.callbacks]
    others = [
        Finding("edited-values", detail=(_other_value(path, numbers),))
        for path, numbers in found.others.items()
        if path.rpartition("/")[2] not in named
    ]
    return [*settings, *edited, *callbacks, *others]


def _other_value(path: str, numbers: tuple[str, str] | None) -> str:
    owner, place = words(path)
    name = f"{place} of {owner}" if place else owner
    return name if numbers is None else f"{name} (was {numbers[0]}, is {numbers[1]})"


def not_restored(failed: Mapping[str, str]) -> list[Finding]:
    """Returns what could not be put back, by its path and why."""
    return [lost(path, why) for path, why in failed.items()]

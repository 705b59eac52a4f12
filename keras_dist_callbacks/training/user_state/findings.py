"""What the verdict says of the user's Python code: findings about paths, and conditions, as sentences."""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Mapping

from keras_dist_callbacks import static
from keras_dist_callbacks.backups.verdict import Finding, group
from keras_dist_callbacks.terminal import first_few
from keras_dist_callbacks.training.user_state.edits import Edits
from keras_dist_callbacks.training.user_state.libraries import is_library
from keras_dist_callbacks.training.user_state.nodes import words
from keras_dist_callbacks.training.user_state.walker import Found


def not_restored(failed: Mapping[str, str]) -> list[str]:
    """Returns sentences about what could not be put back, by its path and why."""
    return group(finding("lost", path, why, Found()) for path, why in failed.items())[1]


def set_otherwise(paths: Collection[str]) -> list[str]:
    """Returns conditions about attributes that `get_state` and `set_state` do not restore."""
    if not paths:
        return []
    places = [f"{place} of {owner}" for owner, place in map(words, paths)]
    shown = ", ".join(first_few(places))
    return [f"other values after set_state than in the interrupted run do not affect training: {shown}"]


def finding(kind: str, path: str, why: str, now: Found, records: Collection[str] = ()) -> Finding:
    """Returns a finding about what is at a path.

    Args:
        kind: See `Finding`.
        path: The path.
        why: What was found there.
        now: The walk that found it.
        records: Paths of what is saved.
    """
    owner, place = words(path)
    return Finding(kind, owner, place, why, _assertion(path, now, records) if kind == "unknown" else "")


def _assertion(path: str, now: Found, records: Collection[str]) -> str:
    """The line by which the user asserts that what is below a path keeps no state; none if other state of it is saved.

    Backups then save nothing of it.
    """
    root = path.partition("/")[0]
    node = now.nodes.get(root) or now.nodes.get(path)
    if node is None or root.startswith(("model", "optimizer")) or any(r.startswith(f"{root}/") for r in records):
        return ""
    if type(node.value) in (types.FunctionType, functools._lru_cache_wrapper):
        return f"kdc.advanced.stateless_input({node.value.__name__})"
    cls = node.value if static.is_a(node.value, type) else type(node.value)
    is_users = root.startswith("callback ") or not is_library(cls.__module__)
    return "" if not is_users else f"kdc.advanced.register_callback_state({cls.__name__}, None)"


def edit_conditions(found: Edits) -> list[str]:
    """Returns conditions about what differs from the script of the interrupted run."""
    conditions = []
    files: dict[str, list[str]] = {}
    for name in found.code:
        file, _, function = name.partition(": ")
        files.setdefault(file, []).append(f"`{function.replace('<locals>.', '')}`")
    for file, functions in files.items():
        shown = ", ".join(first_few(functions))
        conditions.append(f"the changes in {file} ({shown}) do not affect training")
    if found.callbacks:
        shown = ", ".join(first_few(found.callbacks))
        conditions.append(f"callbacks that only one of the two runs has do not affect training: {shown}")
    if found.others:
        names = [_other_value(path, numbers) for path, numbers in found.others.items()]
        shown = ", ".join(first_few(names))
        conditions.append(f"other values than in the interrupted run do not affect training: {shown}")
    return conditions


def _other_value(path: str, numbers: tuple[str, str] | None) -> str:
    owner, place = words(path)
    name = f"{place} of {owner}" if place else owner
    return name if numbers is None else f"{name} (was {numbers[0]}, is {numbers[1]})"

"""Puts back what training had changed in the user's objects, from the records of a backup."""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_dist_callbacks._compat import variables
from keras_dist_callbacks.backups.snapshot import JSON
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state import own_values
from keras_dist_callbacks.state.callback_state import own_state
from keras_dist_callbacks.state.user_state import nodes
from keras_dist_callbacks.state.user_state.changes import digest_of, digests
from keras_dist_callbacks.state.user_state.libraries import library_base
from keras_dist_callbacks.state.user_state.nodes import Node, Slot, parent_of, with_parents
from keras_dist_callbacks.state.user_state.walker import Found


def restore(records: Mapping[str, JSON], tensors: Mapping[str, np.ndarray[Any, Any]], now: Found) -> dict[str, str]:
    """Puts back what was saved, in place where an object is there already.

    Args:
        records: By path, as `Changes.records`.
        tensors: Of the backup.
        now: What a walk has found in this process.

    Returns:
        By path, why it was not possible.
    """
    records = {path: record for path, record in records.items() if has_root(path, now)}
    objects = _Objects(now, tensors, {path: record[0] for path, record in records.items()})
    failed: dict[str, str] = {}
    for path in records:
        try:
            objects.put(path)
        except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
            failed[path] = str(error) if type(error) is LookupError else f"{type(error).__name__}: {error}"
    return failed


def restore_and_compare(
    records: Mapping[str, JSON],
    tensors: Mapping[str, np.ndarray[Any, Any]],
    look: Callable[[], Found],
    set_states: Callable[[], None] = lambda: None,
) -> tuple[dict[str, str], list[str]]:
    """Puts back what was saved, and looks whether it is there.

    An object with `get_state` and `set_state` is given its state first. What that leaves as it was is put back as in
    any other object; what it changes is only compared.

    Args:
        records: See `restore`.
        tensors: Likewise.
        look: Walks over the objects.
        set_states: Calls `set_state` of the callbacks.

    Returns:
        By path, why it was not possible; and the paths below objects with `set_state` that are not as they were.
    """
    before = look()
    if _build_optimizers(records, before):
        before = look()
    own = {path: record for path, record in records.items() if _tag(record[0]) == "$own"}
    failed = restore(own, tensors, before)
    set_states()
    now = look() if before.with_own_state else before
    changed = _changed_below_own_state(before, now)
    others = {path: record for path, record in records.items() if path not in own and path not in changed}
    failed |= restore(others, tensors, now)
    now = look()
    for path, (_, digest) in records.items():
        if has_root(path, now) and digest not in digests(now, path):
            failed.setdefault(path, "it does not hold the saved value now")
    below_own = [path for path in failed if now.is_below_own_state(path)]
    unsaved = [path for path in changed if records.keys().isdisjoint(with_parents(path))]
    return {path: why for path, why in failed.items() if path not in below_own}, [*below_own, *unsaved]


def _changed_below_own_state(before: Found, now: Found) -> list[str]:
    """Returns what `set_state` has given another value than it had."""
    return [
        path
        for path, node in now.nodes.items()
        if digest_of(was := before.nodes.get(path)) != digest_of(node)
        and (
            (node.kind in _COMPARED_WITHIN and now.is_below_own_state(path))
            or (was is not None and was.kind == "ref" and node.kind != "ref")  # two places no longer have one object
        )
    ]


_COMPARED_WITHIN = ("value", "container", "array", "texts", "random", "tensor", "iterator")


def _build_optimizers(records: Mapping[str, JSON], now: Found) -> bool:
    """Makes the variables of optimizers of models that callbacks train, if there are records of them."""
    models = {path.rpartition("/optimizer/")[0] for path in records if "/optimizer/variable " in path}
    built = False
    for path in models:
        model, optimizer = now.nodes.get(path), now.nodes.get(f"{path}/optimizer")
        if model is not None and optimizer is not None and not optimizer.value.built:
            optimizer.value.build(model.value.trainable_variables)
            built = True
    return built


def has_root(path: str, now: Found) -> bool:
    """Returns whether what a path belongs to is there: a callback may not be in the list any more."""
    root = path.partition("/")[0]
    return not root.startswith("callback ") or root in now.nodes


class _Objects:
    """Finds places by their path, and makes values."""

    def __init__(self, now: Found, tensors: Mapping[str, np.ndarray[Any, Any]], records: Mapping[str, JSON]) -> None:
        self._now = now
        self._tensors = tensors
        self._records = dict(records)  # that are still to be put
        self._made: dict[str, Any] = {}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """See `own_values.Objects`."""
        if name not in self._arrays:
            self._arrays[name] = np.array(self._tensors[name])
        return self._arrays[name]

    def put(self, path: str) -> None:
        """Puts a record in its place, unless another one that refers to it was put before."""
        if path in self._records:
            self._put(path, self._records.pop(path))

    def _put(self, path: str, record: JSON) -> None:
        node = self._now.node(path)
        if record == {"$named": ""}:
            if node is not None and node.slot is not None:
                node.slot.clear()
            return
        is_bound = _tag(record) == "$bind"
        record = record["$bind"] if is_bound else record
        present = None if node is None else node.value
        slot = node.slot if node is not None else self._new_slot(path)
        if self._fill_special(record, node):
            return
        value = own_values.decode(record, self._tensors, self, present)
        is_reference = _tag(record) in ("$ref", "$made")
        can_be_filled = node is not None and node.kind in ("container", "array") and not is_reference
        if can_be_filled and (slot is None or not is_bound) and _fill(present, value):
            self._made[path] = present
            if isinstance(present, np.ndarray):
                self._arrays[record["$array"]] = present
            return
        if slot is None:
            self._leave(present, value, next(iter(record.values())) if is_reference else None)
            return
        slot.bind(value)
        self._made[path] = value
        if isinstance(value, set) and slot.kind == "attribute":
            bound = getattr(slot.owner, slot.key)
            if bound is not value:  # Keras wraps a copy, whose order will be another one when it grows
                _fill(bound, value)

    def _leave(self, present: Any, value: Any, other: str | None) -> None:
        """Leaves an equal array where nothing can be set, such as in a tuple; another place that has it gets it too."""
        node = None if other is None else self._now.node(other)
        can_share = other is None or (node is not None and node.slot is not None)
        if not (can_share and _is_equal_array(present, value)):
            raise LookupError("it cannot be set")
        if node is not None and node.slot is not None and other is not None:
            node.slot.bind(present)
            self._made[other] = present

    def _new_slot(self, path: str) -> Slot:
        """Returns the place of an attribute that this process has not set yet, or of a name that is not bound."""
        above, name = parent_of(path)
        missing = "what it belongs to is not there yet when training resumes"
        owner = self._made[above] if above in self._made else self._holder(above, missing)
        if name.startswith("__"):
            raise LookupError("such a name is not restored")
        if isinstance(owner, dict) and not name.startswith("."):
            return Slot("item", owner, name)
        return Slot("attribute", owner, name.removeprefix("."))

    def _referred(self, path: str) -> Any:
        """Returns what is at a path after the restore."""
        above = next((other for other in with_parents(path) if other in self._made or other in self._records), None)
        if above is None:
            return self._holder(path)
        self.put(above)
        found = self._made.get(path, self._made.get(above, _MISSING))
        if found is _MISSING:
            return self._holder(path)
        if path not in self._made:
            for segment in path[len(above) + 1 :].split("/"):
                found = _part_of(found, parent_of(segment)[1])
        return found

    def _holder(self, path: str, missing: str = "it refers to an object that training has made") -> Any:
        if path.startswith("module "):
            for label, value in self._now.labels.items():
                if label == path.removeprefix("module "):
                    return vars(value)
            found = [n.slot.owner for p, n in self._now.nodes.items() if n.slot and parent_of(p)[0] == path]
            if found:
                return found[0]
        node = self._now.nodes.get(path)
        if node is None:
            raise LookupError(missing)
        return self._now.nodes[str(node.token[1])].value if node.kind == "ref" else node.value

    def _fill_special(self, record: JSON, node: Node | None) -> bool:
        """Changes an object in place that has its own way to be put somewhere."""
        kind, content = own_values.tagged(record) or ("", None)
        if node is None or kind not in _FILLERS:
            return False
        return _FILLERS[kind](node.value, own_values.decode(content, self._tensors, self))

    def resolve(self, kind: str, value: JSON, present: Any) -> Any:
        """See `own_values.Objects`."""
        by_path = {"$made": self._referred, "$named": self._named}
        if kind in by_path:
            return by_path[kind](value)
        if kind in ("$ref", "$keep"):
            self.put(value)
            return self._made[value] if value in self._made else self._holder(value)
        if kind == "$member":
            return self._member(value, present)
        if kind in _MAKERS:
            return _MAKERS[kind](own_values.decode(value, self._tensors, self))
        if kind == "$bound":
            owner = own_values.decode(value[0], self._tensors, self)
            return types.MethodType(self._named(value[2]), owner) if len(value) > 2 else getattr(owner, value[1])
        if kind == "$new":
            return self._new(*value)
        raise LookupError(f"training has made an object there ({kind[1:]}), which a restart cannot make again")

    def _new(self, label: str, fields: JSON, path: str = "") -> Any:
        """Makes an object; what it holds may refer to it by its path."""
        if path in self._made:
            return self._made[path]
        cls = self._named(label)
        if issubclass(cls, tuple):
            return cls._make(own_values.decode(fields, self._tensors, self).values())
        made = object.__new__(cls)
        if path:
            self._made[path] = made
        for name, item in own_values.decode(fields, self._tensors, self).items():
            object.__setattr__(made, name, item)
        return made

    def _named(self, label: str) -> Any:
        if label not in self._now.labels:
            raise LookupError(f"{label} was not found in this run")
        return self._now.labels[label]

    def _member(self, value: JSON, present: Any) -> Any:
        found = (type(node.value) for node in self._now.nodes.values())
        known = [type(present), *(cls for cls in found if issubclass(cls, enum.Enum))]
        known += [item for item in self._now.labels.values() if static.is_a(item, type)]
        for cls in known:
            if issubclass(cls, enum.Enum) and cls.__qualname__ == value[0]:
                return cls[value[1]] if value[1] is not None else cls(value[2])  # of several flags
        raise LookupError(f"no class {value[0]} was found")


def _tag(record: JSON) -> str | None:
    tag = own_values.tagged(record)
    return None if tag is None else tag[0]


_MISSING = object()


def _part_of(value: Any, name: str) -> Any:
    """Returns what a container or an object holds under a segment of a path."""
    if static.is_a(value, dict):
        return {own_values.key_text(key): item for key, item in static.pairs(value)}[name]
    return value[int(name)] if isinstance(value, list | tuple | collections.deque) else static.attribute(value, name)


def _fill_own(present: Any, state: Any) -> bool:
    own = own_state(present)
    if own is None:
        raise LookupError("it has no get_state and set_state now")
    own[1](state)
    return True


def _fill_random(present: Any, content: Any) -> bool:
    kind, state = content
    if type(present).__name__ != kind:
        return False
    nodes.set_random_state(present, state)
    return True


def _fill_variable(present: Any, arrays: Any) -> bool:
    for component, array in zip(variables.components(present), arrays, strict=True):
        variables.assign(component, array)
    return True


_FILLERS: dict[str, Callable[[Any, Any], bool]] = {
    "$own": _fill_own,
    "$random": _fill_random,
    "$variable": _fill_variable,
}


def _tensor(array: Any) -> Any:
    import tensorflow as tf

    return tf.constant(array)


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "$tensor": _tensor,
    "$random": lambda value: nodes.new_random(*value),
}


def _is_equal_array(one: Any, other: Any) -> bool:
    is_array = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    return is_array and one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _fill(present: Any, value: Any) -> bool:
    """Makes a container or array what another one is, because others may hold on to it; False if it cannot be.

    By the methods of the library's class that a class of the user's extends: theirs may count, check or refuse.
    """
    cls = static.class_of(present)
    kind: Any = next((kind for kind in (list, dict, set, np.ndarray) if issubclass(cls, kind)), cls)
    if not isinstance(value, kind):
        return False
    if issubclass(cls, np.ndarray):
        is_alike = present.shape == value.shape and present.dtype == value.dtype
        if not is_alike or not present.flags.writeable:
            return False
        present[...] = value
    elif issubclass(cls, list | bytearray):
        _method(present, "__setitem__")(slice(None), value)
    elif issubclass(cls, dict | set):
        _method(present, "clear")()
        _method(present, "update")(value if isinstance(value, dict) else list(value))  # one by one: same order and size
    elif issubclass(cls, collections.deque) and present.maxlen == value.maxlen:
        _method(present, "clear")()
        _method(present, "extend")(value)
    else:
        return False
    return True


def _method(present: Any, name: str) -> Callable[..., Any]:
    found = getattr(library_base(type(present)), name, None)  # a proxy's class has it not
    return getattr(present, name) if found is None else functools.partial(found, present)

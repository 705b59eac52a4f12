"""What training has changed in the user's objects since it began, as records of a backup, and how it is put back.

`start` is the look after all `on_train_begin` and before any restore, `now` a later one.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dist_callbacks._compat import library_state, variables
from keras_dist_callbacks.backups.snapshot import JSON, SharedTensor
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state import own_values
from keras_dist_callbacks.state.callback_state import own_state
from keras_dist_callbacks.state.own_objects import plain
from keras_dist_callbacks.state.own_objects.libraries import library_base
from keras_dist_callbacks.state.own_objects.look import Look
from keras_dist_callbacks.state.own_objects.places import Place, join, parent_of, with_parents
from keras_dist_callbacks.state.own_values import UnstorableError

_GONE: JSON = {"$gone": ""}
_COMPARED: JSON = {"$compared": ""}
_LEFT: JSON = {"$left": ""}
"""It has changed, and was not saved: a restart leaves it as it finds it."""


@dataclass
class Changes:
    """What has changed.

    Attributes:
        records: By path: what is there now as JSON, and a digest of it.
        tensors: The arrays that the records refer to.
        lost: By path, why a change cannot be saved.
    """

    records: dict[str, JSON] = field(default_factory=dict)
    tensors: dict[str, SharedTensor] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


def changes_between(start: Look, now: Look) -> Changes:
    """Returns what differs between two looks of one run."""
    found = Changes()
    now.storing()
    for key in changed(start, now):
        path = key.removesuffix("/")
        if _is_moved(start, now, key):
            found.lost[path], found.records[key] = "it and another object have changed places", [_LEFT, ""]
            continue
        try:
            found.records[key] = [_record(now, key, found.tensors), now.digest_at(key)]
        except UnstorableError as error:
            found.lost[path], found.records[key] = str(error), [_LEFT, ""]
            if now.is_below_own_state(path):  # its `set_state` may put it where it was
                found.records[key] = [_COMPARED, now.digest_at(key)]
    unseen = start.digests.keys() - now.digests.keys()
    found.records |= {key: [_GONE, "absent"] for key in unseen if _is_gone(start, now, key)}
    found.lost |= _shared_memory(now) | _environment(start, now)
    return found


def changed(start: Look, now: Look) -> list[str]:
    """Returns the places and the contents that are others than at the start, those of settings of layers included."""
    keys = [
        key for key, digest in now.digests.items() if start.digests.get(key) != digest and _is_change(start, now, key)
    ]
    for path, settings in now.settings.items():
        before = start.settings.get(path, {})
        differing = [name for name in before.keys() & settings.keys() if repr(before[name]) != repr(settings[name])]
        keys += [join(path, name) for name in sorted(differing)]
    return keys


def _is_change(start: Look, now: Look, key: str) -> bool:
    """Returns whether something is bound where nothing was, and not only reached by another way than at the start."""
    if key in start.digests or key.endswith("/"):
        return True
    place = now.places[key]
    if place is None or (place.kind == "attribute" and library_state.is_set_by_library(place.owner, place.key)):
        return False  # Keras itself has set an attribute that it did not need before
    if place.kind in ("global", "cell"):
        return not (key in now.late and now.objects.get(key) is now.value_at(key))  # then the script has made it
    # A module or class of a library has no path; nor has a module that a function imports when it is called.
    return parent_of(key)[0] in now.objects or place.key in now.code.stored | now.code.filled


def _is_gone(start: Look, now: Look, key: str) -> bool:
    """Returns whether nothing is there any more, and it is not only reached no longer."""
    place, (above, name) = start.places.get(key), parent_of(key)
    name = name.removeprefix(".")
    if place is None and above in now.objects and name.isidentifier() and not key.endswith("/"):
        place = Place("attribute", now.objects[above], name)  # it was there in an earlier fit of this process
    return place is not None and not place.is_bound


def _is_moved(start: Look, now: Look, key: str) -> bool:
    """Returns whether a part of the model has come from another place: Keras saves the variables of both by theirs."""
    path, value = key.removesuffix("/"), now.value_at(key)
    held = [(path, value)]
    if static.is_a(value, dict):
        held = [(join(path, name), item) for name, item in static.pairs(value)]
    elif static.is_a(value, list | tuple | collections.deque):
        held = [(join(path, place), item) for place, item in enumerate(static.contents(value))]
    return any(
        (library_state.is_layer(item) or static.is_a(item, (keras.Variable, tf.Variable)))
        and start.path_of(item) in now.traced - {at, None}
        and (at in start.places or at in start.objects)
        for at, item in held
    )


def _record(now: Look, key: str, tensors: dict[str, SharedTensor]) -> JSON:
    if key in now.digests:
        return now.record(key, tensors)
    return own_values.encode(now.value_at(key), key, tensors, now)  # a setting of a layer of Keras'


def _shared_memory(now: Look) -> dict[str, str]:
    """New arrays that shared memory with others: they are made again apart from these."""
    found = {}
    for arrays in now.arrays.values():
        for path, array in arrays if len(arrays) > 1 else ():
            others = (other for _, other in arrays if other is not array)
            if not now.was_there(array) and any(np.may_share_memory(array, other) for other in others):
                found[path] = "it shared memory with another array, and is one of its own now; use its copy()"
    return found


def _environment(start: Look, now: Look) -> dict[str, str]:
    if start.environment is None or now.environment is None:  # no code reads it
        return {}
    names = {**start.environment, **now.environment}
    differing = [name for name in names if start.environment.get(name) != now.environment.get(name)]
    why = "training has changed this variable, and backups hold no environment"
    return {join("module os/environ", name): why for name in differing}


# --- the way back


def restore(
    records: Mapping[str, JSON], tensors: Mapping[str, np.ndarray[Any, Any]], look: Callable[[], Look]
) -> dict[str, str]:
    """Puts back what was saved, in the objects that are there already.

    Args:
        records: By path, as `Changes.records`.
        tensors: Of the backup.
        look: Looks at what is there in this process.

    Returns:
        By path, why it was not possible.
    """
    left, failed = list(records), dict[str, str]()
    for _ in range(2):  # some objects are reached only when others are back
        objects = _Objects(look(), tensors)
        failed = {}
        for key in left:
            if objects.has_root(key) and (why := objects.put(key, records[key][0])) is not None:
                failed[key] = why
        if not failed or len(failed) == len(left):
            break
        left = list(failed)
    return {key.removesuffix("/"): why for key, why in failed.items()}


def by_value(records: Mapping[str, JSON]) -> dict[str, JSON]:
    """Returns the records that say what is there, and not only that it has changed or what `get_state` returned."""
    return {key: record for key, record in records.items() if _tag(record[0]) not in ("$own", "$compared", "$left")}


def undo(records: Mapping[str, JSON], start: Look, now: Look) -> dict[str, str]:
    """Takes back what code of this process has changed, and what had not changed when the backup was taken.

    Args:
        records: By path, what had changed.
        start: The first look.
        now: A later one.

    Returns:
        By path, why it was not possible.
    """
    gone = [key for key, place in start.places.items() if key not in now.digests and place and not place.is_bound]
    failed = {}
    for key in [*changed(start, now), *gone]:
        place, is_own = start.place_at(key), now.is_below_own_state(key)
        if key in records and not is_own:  # `set_state` finds all as the script has made it
            continue
        if place is not None:
            try:
                place.bind(start.value_at(key))
            except _ERRORS as error:
                failed[key] = f"{type(error).__name__}: {error}"
        elif key in start.digests and key.endswith("/") and not is_own:
            failed[key.removesuffix("/")] = "code that runs when the interrupted epoch begins has changed it again"
    return failed


def restore_and_compare(
    records: Mapping[str, JSON],
    tensors: Mapping[str, np.ndarray[Any, Any]],
    look: Callable[[], Look],
    set_states: Callable[[], None] = lambda: None,
) -> tuple[dict[str, str], list[str]]:
    """Puts back what was saved, and looks whether it is there.

    An object with `get_state` and `set_state` is given its state first. What that leaves as it was is put back as in
    any other object; what it changes is only compared.

    Args:
        records: See `restore`.
        tensors: Likewise.
        look: Likewise.
        set_states: Calls `set_state` of the callbacks.

    Returns:
        By path, why it was not possible; and the paths below objects with `set_state` that are not as they were.
    """
    records = {key: record for key, record in records.items() if record[0] != _LEFT}
    before = look()
    if _build_optimizers(records, before):
        before = look()
    own = {key: record for key, record in records.items() if _tag(record[0]) == "$own"}
    failed = restore(own, tensors, look)
    set_states()
    now = look() if before.with_own_state else before
    set_by_them = [
        key for key, digest in now.digests.items() if before.digests.get(key) != digest and now.is_below_own_state(key)
    ]
    done = {*own, *set_by_them, *(key for key, record in records.items() if record[0] == _COMPARED)}
    others = {key: record for key, record in records.items() if key not in done}
    failed |= restore(others, tensors, look)
    now = look()
    for key, (_, digest) in records.items():
        if has_root(key, now) and (now.digest_at(key) or "absent") != digest:
            failed.setdefault(key.removesuffix("/"), "it does not hold the saved value now")
    failed = {path: why for path, why in failed.items() if failed.keys().isdisjoint(with_parents(path)[1:])}
    below_own = [path for path in failed if now.is_below_own_state(path)]
    unsaved = [key for key in set_by_them if records.keys().isdisjoint([key, *with_parents(key)])]
    return {path: why for path, why in failed.items() if path not in below_own}, [*below_own, *unsaved]


def has_root(path: str, now: Look) -> bool:
    """Returns whether what a path belongs to is there: a callback may not be in the list any more."""
    root = path.partition("/")[0]
    return not root.startswith("callback ") or root in now.objects


def _build_optimizers(records: Mapping[str, JSON], now: Look) -> bool:
    """Makes the variables of optimizers of models that callbacks train, if there are records of them."""
    built = False
    for path in {key.rpartition("/optimizer/")[0] for key in records if "/optimizer/variable " in key}:
        model, optimizer = now.objects.get(path), now.objects.get(f"{path}/optimizer")
        if model is not None and optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
            built = True
    return built


_ERRORS = (LookupError, TypeError, ValueError, AttributeError, StopIteration)


class _Objects:
    """What references stand for in this process, and what records are made to.

    Args:
        now: What is there.
        tensors: Of the backup.
    """

    def __init__(self, now: Look, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._now, self._tensors = now, tensors
        self._made: dict[str, Any] = {}

    def has_root(self, key: str) -> bool:
        return has_root(key, self._now)

    def put(self, key: str, record: JSON) -> str | None:
        """Puts a record in its place; returns why that was not possible."""
        try:
            if key.endswith("/"):
                self._fill(key.removesuffix("/"), record)
            else:
                self._bind(key, record)
        except _ERRORS as error:
            return str(error) if type(error) is LookupError else f"{type(error).__name__}: {error}"
        return None

    def _fill(self, path: str, record: JSON) -> None:
        if path not in self._now.objects:
            raise LookupError(_NOT_THERE)
        present = self._now.objects[path]
        kind, content = own_values.tagged(record) or ("", None)
        if kind == "$class":
            object.__setattr__(present, "__class__", self._named(str(content)))
            filled = True
        elif kind in _FILLERS:
            filled = _FILLERS[kind](present, self.decode(content))
        else:
            filled = fill(present, self.decode(record))
        if not filled:
            raise LookupError("it is of another type or shape now")

    def _bind(self, key: str, record: JSON) -> None:
        place = self._place(key)
        if record == _GONE:
            if place.is_bound:
                place.unbind()
            return
        value = self.decode(record)
        place.bind(value)
        if isinstance(value, set) and place.kind == "attribute":
            bound = static.attribute(place.owner, place.key)
            if bound is not value:  # Keras wraps a copy, whose order will be another one when it grows
                fill(bound, value)

    def _place(self, key: str) -> Place:
        """Returns a place, be it one that this process has not set yet."""
        place = self._now.place_at(key)
        if place is not None:
            return place
        above, name = parent_of(key)
        if key in self._now.places or name.startswith("__"):
            raise LookupError("it cannot be set")
        if above in self._now.namespaces:
            return Place("global", self._now.namespaces[above], name)
        if above in self._now.objects:
            return Place("attribute", self._now.objects[above], name.removeprefix("."))
        for path, beside in self._now.places.items():  # of a module or a class of a library, which have no path
            if beside is not None and parent_of(path)[0] == above:
                return beside._replace(key=name)
        raise LookupError(_NOT_THERE)

    def decode(self, record: JSON) -> Any:
        """Returns what a record stands for."""
        return own_values.decode(record, self._tensors, self)

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """See `own_values.Objects`."""
        return np.array(self._tensors[name])

    def resolve(self, kind: str, value: JSON) -> Any:
        """See `own_values.Objects`."""
        match kind:
            case "$ref":
                return self._known(value)
            case "$keep":
                return self._kept(*value)
            case "$named":
                return self._named(value)
            case "$same":
                if value not in self._made:
                    raise LookupError("it refers to an object that was not made again")
                return self._made[value]
            case "$once":
                at, record = value
                is_new = _tag(record) == "$new"
                self._made[at] = self._new(*record["$new"], at=at) if is_new else self.decode(record)
                return self._made[at]
            case "$new":
                return self._new(*value)
            case "$factory":
                return collections.defaultdict(self.decode(value[0]), self.decode(value[1]))
            case "$bound":
                owner, name, *by_hand = value
                owner = self.decode(owner)
                return types.MethodType(self.decode(by_hand[0]), owner) if by_hand else getattr(owner, name)
            case "$member":
                return self._member(*value)
            case "$tensor":
                return tf.constant(self.decode(value))
            case "$random":
                return plain.new_random(*self.decode(value))
        raise LookupError(f"training has made an object there ({kind[1:]}), which a restart cannot make again")

    def _known(self, path: str) -> Any:
        if path not in self._now.objects:
            raise LookupError(f"it refers to {path}, which is not there when training resumes")
        return self._now.objects[path]

    def _kept(self, path: str, label: str) -> Any:
        """Returns what cannot be made again: it is at the same path, or is the one with its name."""
        found = self._now.objects.get(path)
        if found is not None and plain.label_of(found) == label:
            return found
        return self._named(label)

    def _named(self, label: str) -> Any:
        if label not in self._now.labels:
            raise LookupError(f"{label} was not found in this run")
        return self._now.labels[label]

    def _new(self, label: str, fields: JSON, content: JSON | None = None, *, at: str = "") -> Any:
        """Makes an object; what it holds may refer to it."""
        cls = self._named(label)
        if issubclass(cls, tuple):
            return cls._make(self.decode(fields).values())
        made = library_base(cls).__new__(cls)
        if at:
            self._made[at] = made
        for name, item in self.decode(fields).items():
            object.__setattr__(made, name, item)
        if content is not None and not fill(made, self.decode(content)):
            raise LookupError(f"a new {label} cannot be made again from a backup")
        return made

    def _member(self, name: str, member: Any, value: Any = None) -> Any:
        classes = {
            **{cls.__qualname__: cls for cls in self._now.labels.values() if static.is_a(cls, type)},
            **self._now.enums,
        }
        cls = classes.get(name)
        if cls is None:
            raise LookupError(f"no class {name} was found")
        return cls[member] if member is not None else cls(value)  # of several flags


_NOT_THERE = "what it belongs to is not there yet when training resumes"


def _tag(record: JSON) -> str | None:
    tag = own_values.tagged(record)
    return None if tag is None else tag[0]


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
    plain.set_random_state(present, state)
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


def fill(present: Any, value: Any) -> bool:
    """Makes a container or array what another one is, because others may hold on to it; False if it cannot be.

    By the methods of the library's class that a class of the user's extends: theirs may count, check or refuse.
    """
    cls = static.class_of(present)
    kind: Any = next((kind for kind in (list, dict, set, collections.deque, np.ndarray) if issubclass(cls, kind)), cls)
    if not isinstance(value, kind):
        return False
    if issubclass(cls, np.ndarray):
        are_texts = present.dtype.kind in "UO" and value.dtype.kind in "UO"
        is_alike = present.shape == value.shape and (are_texts or present.dtype == value.dtype)
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

"""What training has changed in the user's objects since it began, as records of a backup."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from keras_dist_callbacks._compat import library_state, variables
from keras_dist_callbacks.backups.snapshot import JSON, SharedTensor
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state import own_values
from keras_dist_callbacks.state.callback_state import own_state
from keras_dist_callbacks.state.own_values import UnstorableError
from keras_dist_callbacks.state.user_state import nodes
from keras_dist_callbacks.state.user_state.libraries import is_library
from keras_dist_callbacks.state.user_state.nodes import Node, Slot, join, parent_of, with_parents
from keras_dist_callbacks.state.user_state.walker import Found, name_of

_FIXED = ("owned", "asserted", "unknown")
_NOT_STORED = {
    "generator": "a Python generator was advanced, and its position is not saved",
    "iterator": "an iterator was advanced, and its position is not saved; keep a number instead",
    "table": "a lookup table was changed, and its content is not saved",
    "texts of TensorFlow": "texts in a tensor or variable are not saved",
    "dataset": "a dataset that training has made, which cannot be made again from a backup",
    "environment": "training has changed this variable, and backups hold no environment",
}
_NAMED = ("function", "class", "constant")


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

    @property
    def digests(self) -> dict[str, str]:
        """A digest of what is there now, by path."""
        return {path: record[1] for path, record in self.records.items()}


def _own(value: Any) -> Any:
    own = own_state(value)
    if own is None:
        raise UnstorableError("it has no get_state and set_state now")
    return own[0]()


_CONTAINERS = frozenset([list, tuple, dict, set, frozenset, collections.deque, bytearray])
_PARTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "random": ("$random", lambda value: [type(value).__name__, nodes.random_state(value)]),
    "variable": ("$variable", lambda value: [variables.read(c) for c in variables.components(value)]),
    "tensor": ("$tensor", lambda value: np.asarray(value.numpy())),
}
"""How the state of an object is stored that is put back in its own way."""


def changes_between(start: Found, now: Found, tensors: str = "python") -> Changes:
    """Returns what differs between two walks of one run.

    Args:
        start: The earlier walk.
        now: The later one.
        tensors: How the names of the arrays begin.
    """
    return _Comparison(start, now, tensors).run()


def digest_of(node: Node | None) -> str:
    """Returns a text that distinguishes a value from another one in another process."""
    return "absent" if node is None else xxhash.xxh3_64_hexdigest(repr(node.token).encode(errors="surrogatepass"))


def digest_below(found: Found, path: str) -> str:
    """Returns the same for a value with all that is in it."""
    node = found.node(path)
    if node is None or node.kind not in ("container", "object"):
        return digest_of(node)
    tokens = {other: n.token for other, n in found.nodes.items() if other.startswith(f"{path}/")}
    text = repr((node.token, sorted(tokens.items())))
    return xxhash.xxh3_64_hexdigest(text.encode(errors="surrogatepass"))


def digests(found: Found, path: str) -> tuple[str, str]:
    """Both, because a record holds the one or the other."""
    return digest_of(found.node(path)), digest_below(found, path)


class _Comparison:
    def __init__(self, start: Found, now: Found, tensors: str) -> None:
        self._start = start
        self._now = now
        self._tensors = tensors
        self._paths = {id(node.value): path for path, node in now.nodes.items() if node.kind != "ref"}
        self._referred = {node.token[1] for node in now.nodes.values() if node.kind == "ref"}
        self._changes = Changes()
        self._inline: set[str] = set()
        self._at_start = {id(node.value): path for path, node in start.nodes.items() if node.kind != "ref"}
        self._moved: set[str] = set()

    def run(self) -> Changes:
        for path, node in self._now.nodes.items():
            before = self._start.nodes.get(path)
            if node.kind == "container" and node.slot and library_state.are_slots(node.value, node.slot.owner):
                self._inline.add(path)
                continue
            if self._moved and not self._moved.isdisjoint(with_parents(path)):
                continue
            if before is not None and self._is_moved(path, before, node):
                self._moved.add(path)
                self._changes.lost[path] = "it and another object have changed places"
            elif _differs(before, node) and not self._is_inline(path):
                whole = self._replaced_tuple(path)
                self._note(whole, self._start.nodes.get(whole), self._now.nodes[whole])
        for path, before in self._start.nodes.items():
            is_there = getattr(self._now.nodes.get(path), "slot", None) is not None
            if before.slot is not None and not is_there:
                self._note_absence(path)
        records = self._changes.records
        self._changes.records = {path: record for path, record in records.items() if not self._is_below_lost(path)}
        return self._changes

    def _is_moved(self, path: str, before: Node, node: Node) -> bool:
        """Returns whether an object whose content is saved elsewhere, or cannot be, has come from another place."""
        has_identity = node.kind in ("owned", "variable", "layer") or library_state.is_layer(node.value)
        return has_identity and before.value is not node.value and self._at_start.get(id(node.value), path) != path

    def _replaced_tuple(self, path: str) -> str:
        """The path of the tuple that holds what cannot be put back in place, because a tuple is made at once."""
        before, node = self._start.nodes.get(path), self._now.nodes[path]
        above = parent_of(path)[0]
        holder = self._now.nodes.get(above)
        if holder is None or holder.kind != "container" or not static.is_a(holder.value, tuple):
            return path
        is_in_place = before is not None and before.value is node.value and node.kind != "value"
        return path if is_in_place else self._replaced_tuple(above)

    def _is_below_lost(self, path: str) -> bool:
        return any(path.startswith(f"{lost}/") for lost in self._changes.lost)

    def _is_inline(self, path: str) -> bool:
        """Returns whether a record of what is above holds it already."""
        while path:
            path, last = parent_of(path)
            if path in self._inline:
                return not last.startswith(".")  # an attribute of a container of the user's
        return False

    def _note_layer(self, path: str, before: Node, node: Node) -> None:
        """Settings of a layer of Keras' own; what it sets for the first time is not a change."""
        then, now = dict(before.token[2:]), dict(node.token[2:])
        for name in then.keys() & now.keys():
            if then[name] != now[name]:
                setting = self._now.node(join(path, name))
                if setting is not None:
                    self._note(join(path, name), setting, setting)

    def _note(self, path: str, before: Node | None, node: Node) -> None:
        if before is not None and before.kind == node.kind == "layer":
            self._note_layer(path, before, node)
            return
        if node.kind == "ref" and node.slot is None:
            return  # another way to what is bound elsewhere
        if node.kind in _FIXED or (
            before is not None and before.kind in ("owned", "variable") and node.kind == "owned"
        ):
            return
        is_new_variable = before is None and node.kind == "variable" and node.slot is None
        if is_new_variable and not self._is_of_known_optimizer(path):
            self._changes.lost[path] = "a variable that training has made, which is not there when training resumes"
            return
        if before is None and not is_new_variable and not self._is_new_place(path, node):
            return
        try:
            record = self._encode(path, before, node)
        except UnstorableError as error:
            self._changes.lost[path] = str(error)
            return
        is_same = before is not None and before.value is node.value
        if node.kind == "array" and not is_same and type(node.value) is not np.ndarray:
            self._changes.lost[path] = f"a new {type(node.value).__qualname__} cannot be made again from a backup"
            return
        if before is not None and not is_same and before.kind == node.kind in ("array", "container"):
            record = {"$bind": record}
        self._changes.records[path] = [record, self._digest(path, node)]

    def _is_of_known_optimizer(self, path: str) -> bool:
        """Returns whether a restart has the model, trained by a callback, whose optimizer a variable belongs to."""
        model, _, rest = path.rpartition("/optimizer/")
        nodes = [self._start.nodes.get(place) for place in (model, f"{model}/optimizer")]
        return rest.startswith("variable ") and all(node is not None and node.kind != "ref" for node in nodes)

    def _digest(self, path: str, node: Node) -> str:
        return digest_below(self._now, path) if path in self._inline else digest_of(node)

    def _is_new_place(self, path: str, node: Node) -> bool:
        """Whether something is bound where nothing was, and not only reached by another way than at the start."""
        above = self._start.nodes.get(parent_of(path)[0])
        if node.slot is None or self._is_first_use(node.slot):
            return False
        if node.slot.kind in ("global", "cell"):
            return node.kind not in (*_NAMED, "ref", "object", "method", "dataset")
        is_below = above is not None or self._now.nodes.get(parent_of(path)[0]) is not None
        # A module or class of a library has no node; nor has a module that a function imports when it is called.
        return is_below or node.slot.key in self._now.stored | self._now.filled

    def _is_first_use(self, slot: Slot) -> bool:
        """Returns whether Keras itself has set an attribute that it did not need before."""
        return slot.kind == "attribute" and library_state.is_set_by_library(slot.owner, slot.key)

    def _note_absence(self, path: str) -> None:
        above, last = parent_of(path)
        before, holder = self._start.nodes[path], self._now.nodes.get(above)
        if before.kind == "environment" and holder is not None:
            self._changes.lost[path] = _NOT_STORED["environment"]
            return
        slot = before.slot
        if slot is None or holder is None or holder.kind not in ("object", "class") or slot.kind != "attribute":
            return
        if static.has(slot.owner, last):
            return
        if path in self._changes.records:
            self._changes.lost[path] = "it was changed, and is kept in another place now"
        self._changes.records[path] = [{"$named": ""}, "absent"]

    # --- encoding

    def _encode(self, path: str, before: Node | None, node: Node) -> JSON:
        value, kind = node.value, node.kind
        if kind in (*_NAMED, "ref"):
            return self._named(path, node)
        if before is None and not path.startswith("callback ") and library_state.is_layer(value):
            return {"$keep": path}  # the model makes it again when it is built
        if kind in ("method", "object"):
            return (self._method if kind == "method" else self._new_object)(path, value)
        if kind in _NOT_STORED:
            raise UnstorableError(_NOT_STORED[kind])
        if kind in _PARTS:
            tag, parts = _PARTS[kind]
            return {tag: self._value(parts(value), path)}
        if kind == "own_state":  # without references: `set_state` may read all of it, before they are restored
            where = f"{self._tensors}/{path}"
            return {"$own": own_values.encode(_own(value), where, self._changes.tensors, own_values.Answer())}
        if kind == "array" and (before is None or before.value is not value):
            self._note_shared_memory(value, path)
        return self._container_or_value(path, before, node)

    def _method(self, path: str, value: Any) -> JSON:
        owner = self._part(value.__self__, join(path, "self"), path)
        function = value.__func__ if type(value) is types.MethodType else None
        name = str(static.attribute(value if function is None else function, "__name__"))
        in_class = static.attribute(value.__self__, name)
        in_class = in_class.__func__ if isinstance(in_class, classmethod) else in_class
        known = type(function) is types.FunctionType and in_class is not function
        return {"$bound": [owner, name, *([name_of(function)] if known else [])]}

    def _container_or_value(self, path: str, before: Node | None, node: Node) -> JSON:
        if node.kind == "container":
            self._require_type(node.value, before)
            self._inline.add(path)
        return self._value(node.value, path)

    def _note_shared_memory(self, value: np.ndarray[Any, Any], path: str) -> None:
        """A new array is made again apart from others, with which it may have shared memory."""
        base = nodes.base_of(value)
        others = (node.value for other, node in self._now.nodes.items() if node.kind == "array" and other != path)
        of_base = [other for other in others if other is not value and (other is base or nodes.base_of(other) is base)]
        if base is not None and any(np.may_share_memory(other, value) for other in of_base):
            self._changes.lost[path] = "it shared memory with another array, and is one of its own now; use its copy()"

    def _require_type(self, value: Any, before: Node | None) -> None:
        """A container of another type than Python's own is filled in place, but cannot be made again."""
        is_tuple = static.is_a(value, tuple)
        module = type(value).__module__
        is_there = before is not None and (
            before.value is value or (type(before.value) is type(value) and module.startswith("tensorflow."))
        )
        is_there = is_there and not is_tuple
        is_plain = type(value) in _CONTAINERS or own_values.kind_of_mapping(value) is not None
        is_plain = is_plain or module.startswith("keras.")
        if not is_plain and not is_there and not (is_tuple and static.has(value, "_fields")):
            raise UnstorableError(f"a new {type(value).__qualname__} cannot be made again from a backup")

    def _value(self, value: Any, path: str) -> JSON:
        where = f"{self._tensors}/{path}"
        return own_values.encode(value, where, self._changes.tensors, _Finder(self, path, self._tensors))

    def _part(self, value: Any, path: str, whole: str) -> JSON:
        """Part of a value that is stored as one record, or a reference to it."""
        found = self.reference(value, path, whole)
        return self._value(value, path) if found is None else found

    def reference(self, value: Any, path: str, within: str) -> JSON | None:
        """Returns what stands for an object within a container that is stored as one record."""
        if static.is_a(value, tuple) and static.has(value, "_fields"):
            return self._named_tuple(value, path)
        known = self._paths.get(id(value))
        if known is None or path == within:
            return None
        node = self._now.nodes[known]
        if node.kind == "array" and (known == path or self._is_inline(known)):
            before, name = self._start.nodes.get(known), f"{self._tensors}/{known}"
            if before is not None and before.value is value:  # filled in place: others may share its memory
                if before.token != node.token:
                    self._changes.records[known] = [self._shared_array(value, name), digest_of(node)]
                return {"$ref": known}
            self._note_shared_memory(value, known)
            return self._shared_array(value, name)
        if known != path:
            is_value = node.kind in ("value", "array", "tensor", "texts")
            return None if is_value and not static.is_a(value, np.ndarray) else self._pointer("ref", known)
        return self._in_place(value, path, node)

    def _named(self, path: str, node: Node) -> JSON:
        label = str(node.token[1])
        if node.kind == "constant" and self._now.labels.get(label) is not node.value:
            return {"$keep": path}  # it writes output only, and a callback makes it again when the epoch begins
        return self._pointer(node.kind, label)

    def _pointer(self, kind: str, path: str) -> JSON:
        """What stands for a function or class by its name, for what a restart has, or for what the restore makes."""
        if kind != "ref":
            return {"$named": path}
        before = self._start.nodes.get(path)
        return {"$ref" if before is not None and before.value is self._now.nodes[path].value else "$made": path}

    def _in_place(self, value: Any, path: str, node: Node) -> JSON | None:
        """Returns what stands for an object that is known by its place in a value that is stored as one record."""
        if node.kind in _NAMED:
            return self._named(path, node)
        if node.kind == "dataset" and _differs(self._start.nodes.get(path), node):
            raise UnstorableError(_NOT_STORED["dataset"])
        if node.kind in ("owned", "dataset", "layer"):
            return {"$keep": path}
        if node.kind in ("container", "value", "array", "texts"):
            if node.kind == "container":
                self._require_type(value, None)
            return None
        before = self._start.nodes.get(path)
        if before is not None and before.token == node.token:
            return {"$keep": path}
        return self._encode(path, before, node)

    def _shared_array(self, value: Any, name: str) -> JSON:
        """An array that several places hold is stored once, so that it is one array again."""
        tensors = self._changes.tensors
        if name in tensors:
            return {"$array": name}
        return own_values.encode(value, name, tensors, own_values.Answer())

    def _named_tuple(self, value: Any, path: str) -> JSON:
        items = static.contents(value)  # a walk knows them by their places
        parts = [self._part(item, join(path, place), path) for place, item in enumerate(items)]
        values = [[*field] for field in zip(static.attribute(value, "_fields"), parts, strict=True)]
        return {"$new": [_label(type(value)), {"$dict": values}]}

    def _new_object(self, path: str, value: Any) -> JSON:
        """Returns an instance that training has made, if it consists of nothing but its attributes."""
        if not _consists_of_attributes(type(value)):
            raise UnstorableError(f"a new {type(value).__qualname__} cannot be made again from a backup")
        self._inline.add(path)
        held = [(name, item) for name, item, kind in library_state.attributes(value, of_training=False) if kind]
        values = [[name, self._part(item, join(path, name), path)] for name, item in held]
        known_as = [path] if path in self._referred else []
        return {"$new": [_label(type(value)), {"$dict": values}, *known_as]}


def _differs(before: Node | None, node: Node) -> bool:
    if before is None or before.token != node.token:
        return True
    return node.kind == "dataset" and before.value is not node.value


def _consists_of_attributes(cls: type) -> bool:
    return not any("__new__" in vars(base) or is_library(base.__module__) for base in cls.__mro__[:-1])


def _label(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


@dataclass
class _Finder:
    """References within one record."""

    comparison: _Comparison
    path: str
    tensors: str

    def find(self, value: Any, path: str, tensors: dict[str, SharedTensor]) -> JSON | None:
        return self.comparison.reference(value, path.removeprefix(f"{self.tensors}/"), self.path)

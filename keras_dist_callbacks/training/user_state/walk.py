"""From the callbacks, the model and their functions to every object that they reach."""

from __future__ import annotations

import functools
import operator
import os
import random
import struct
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dist_callbacks._compat import library_state, variables
from keras_dist_callbacks.training.user_state import nodes as n
from keras_dist_callbacks.training.user_state.libraries import is_library, is_output
from keras_dist_callbacks.training.user_state.nodes import Node, Slot, join
from keras_dist_callbacks.training.user_state.reads import Reads, code_digest, reads_of

_FUNCTIONS = (types.FunctionType,)
_BUILTINS = (types.BuiltinFunctionType, types.MethodWrapperType)
_LIBRARY_CONSTANTS = (
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType, np.ufunc, np.dtype),
    *(types.GenericAlias, tf.DType, tf.TensorShape, tf.TypeSpec),
    *(operator.itemgetter, operator.attrgetter, operator.methodcaller, type(Slot.kind)),
)


@dataclass(frozen=True)
class Root:
    """Where a walk begins.

    Attributes:
        value: The object.
        is_traced: Whether TensorFlow traces its functions, so that a value which they read stays that of the trace.
    """

    value: Any
    is_traced: bool = False


@dataclass(frozen=True)
class Limits:
    """How much one walk may look at; what lies behind is unknown.

    Attributes:
        nodes: Objects.
        bytes: Bytes of arrays.
        seconds: Time.
    """

    nodes: int = 200_000
    bytes: int = 2**28
    seconds: float = 5.0


@dataclass
class Policy:
    """What a walk does not look into.

    Attributes:
        is_asserted: Whether the user has asserted of an object that it keeps no state.
        own_state: How the state of an object that has its own way is got and set: two functions; None for any other.
        is_saved: Whether all variables of an object are saved in another way.
    """

    is_asserted: Callable[[Any], bool]
    own_state: Callable[[Any], tuple[Callable[[], Any], Callable[[Any], None]] | None]
    is_saved: Callable[[Any], bool]


@dataclass
class Found:
    """What one walk has found.

    Attributes:
        nodes: By path.
        unknown: By path, what could not be looked into: a type, or what its code does.
        labels: Functions, classes and library objects by their full names.
        code: A hash of each function of the user's by `file: name`.
        traced_names: Names that functions which TensorFlow traces use.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    traced_names: set[str] = field(default_factory=set)

    def node(self, path: str) -> Node | None:
        """The node of a path, that of a setting of a layer included, which the layer's own token holds."""
        if path in self.nodes:
            return self.nodes[path]
        above, name = n.parent_of(path)
        layer = self.nodes.get(above)
        if layer is None or layer.kind != "layer":
            return None
        settings = dict(layer.token[2:])
        slot = Slot("attribute", layer.value, name)
        if name not in settings:
            return None
        return Node(slot, settings[name], "value", n.immutable_token(settings[name]), layer.is_traced)


def walk(
    roots: Mapping[str, Root], policy: Policy, limits: Limits | None = None, *, start: Found | None = None
) -> Found:
    """Looks at everything that the roots reach, on the main thread, between two steps.

    Args:
        roots: By path, in the order in which they are visited: an object has the path by which it is reached first.
        policy: What is not looked into.
        limits: How much is.
        start: An earlier walk, whose paths come before others: an object that is still there has the path from then.
    """
    return _Walk(policy, limits or Limits(), start).run(roots)


class _Walk:
    def __init__(self, policy: Policy, limits: Limits, start: Found | None) -> None:
        self.found = Found()
        self._policy = policy
        self._limits = limits
        self._bytes = 0
        self._end = time.monotonic() + limits.seconds
        self._paths: dict[int, str] = {}
        self._alive: list[Any] = []  # an id is unique only while its object lives
        self._queue: deque[tuple[str, Slot | None, Any, bool]] = deque()
        self._known = None if start is None else start.nodes.keys()
        known = {} if start is None else start.nodes
        self._earlier = {id(node.value): path for path, node in known.items() if node.kind not in ("ref", "value")}
        self._later: deque[tuple[str, Slot | None, Any, bool]] = deque()

    def run(self, roots: Mapping[str, Root]) -> Found:
        for is_traced in (True, False):  # what traced functions reach has its path from there
            for path, root in roots.items():
                if root.is_traced == is_traced:
                    self.push(path, None, root.value, is_traced)
            self._drain()
        self._known, self._earlier = None, {}
        self._queue, self._later = self._later, self._queue
        self._drain()
        return self.found

    def _drain(self) -> None:
        while self._queue:
            path, slot, value, is_traced = self._queue.popleft()
            if len(self.found.nodes) > self._limits.nodes or time.monotonic() > self._end:
                self.found.unknown[path] = "there is too much to inspect"
                self._queue.clear()
                return
            self._visit(path, slot, value, is_traced)

    def push(self, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
        queue = self._queue if self._known is None or path in self._known else self._later
        queue.append((path, slot, value, is_traced))

    def _visit(self, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
        if path in self.found.nodes:
            return
        if isinstance(value, n.IMMUTABLE):
            self._add(path, slot, value, "value", n.immutable_token(value), is_traced)
            return
        known = self._paths.get(id(value))
        if known is not None:
            self._add(path, slot, value, "ref", ("ref", known), is_traced)
            return
        earlier = self._earlier.get(id(value), path)
        if earlier != path:
            self._later.append((path, slot, value, is_traced))
            return
        self._paths[id(value)] = path
        self._alive.append(value)
        for kinds, look in _LOOKS:
            if isinstance(value, kinds):
                look(self, path, slot, value, is_traced)
                return
        _look_at_instance(self, path, slot, value, is_traced)

    def _add(
        self, path: str, slot: Slot | None, value: Any, kind: str, token: tuple[Any, ...], is_traced: bool
    ) -> None:
        self.found.nodes[path] = Node(slot, value, kind, token, is_traced)

    def add(
        self, path: str, slot: Slot | None, value: Any, kind: str, is_traced: bool, token: tuple[Any, ...] = ()
    ) -> None:
        self._add(path, slot, value, kind, token or (kind, _name_of(type(value))), is_traced)

    def add_named(self, path: str, slot: Slot | None, value: Any, kind: str, is_traced: bool) -> None:
        label = _name_of(value)
        self.found.labels.setdefault(label, value)
        self._add(path, slot, value, kind, (kind, label), is_traced)

    def add_unknown(self, path: str, slot: Slot | None, value: Any, is_traced: bool, what: str = "") -> None:
        self.found.unknown[path] = what or f"a {_name_of(type(value))}"
        self.add(path, slot, value, "unknown", is_traced)

    def allows(self, size: int) -> bool:
        self._bytes += size
        return self._bytes <= self._limits.bytes

    def is_asserted(self, value: Any) -> bool:
        return self._policy.is_asserted(value)

    def own_state(self, value: Any) -> Any:
        own = self._policy.own_state(value)
        return None if own is None else own[0]()

    def is_saved(self, value: Any) -> bool:
        return self._policy.is_saved(value)


def _name_of(value: Any) -> str:
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__name__
    return f"{module}.{name}" if module and module != "builtins" else str(name)


# --- containers and values


def _look_at_container(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    cls = type(value)
    if not is_library(cls.__module__):  # one of the user's, which may have attributes too
        walk.push(f"class {_name_of(cls)}", None, cls, is_traced)
        for name, item in getattr(value, "__dict__", {}).items():
            walk.push(join(path, f".{name}"), Slot("attribute", value, name), item, is_traced)
    if isinstance(value, bytearray):
        walk.add(path, slot, value, "container", is_traced, n.flat_token(value))
        return
    if isinstance(value, dict):
        _look_at_dict(walk, path, slot, value, is_traced)
        return
    items = list(value)
    if n.is_flat(items):
        walk.add(path, slot, value, "container", is_traced, n.flat_token(value))
    elif isinstance(value, set | frozenset):
        walk.add_unknown(path, slot, value, is_traced, "a set of objects")
    else:
        walk.add(path, slot, value, "container", is_traced, (type(value).__name__, len(items)))
        for index, item in enumerate(items):
            walk.push(
                join(path, index), None if isinstance(value, tuple) else Slot("item", value, index), item, is_traced
            )


def _look_at_dict(walk: _Walk, path: str, slot: Slot | None, value: dict[Any, Any], is_traced: bool) -> None:
    items = dict(value)
    if not n.is_flat(items):
        keys = [_key_of(key) for key in items]
        if None in keys:
            walk.add_unknown(path, slot, value, is_traced, "a dict whose keys are objects")
            return
    else:
        keys = [repr(key) if not isinstance(key, str) else key for key in items]
        if n.is_flat(items.values()):
            walk.add(path, slot, value, "container", is_traced, n.flat_token(items))
            return
    walk.add(path, slot, value, "container", is_traced, (type(value).__name__, tuple(keys)))
    for text, (key, item) in zip(keys, items.items(), strict=True):
        walk.push(join(path, text), Slot("item", value, key), item, is_traced)
    if isinstance(getattr(value, "default_factory", None), _FUNCTIONS):
        walk.push(join(path, "default_factory"), None, value.default_factory, is_traced)  # type: ignore[attr-defined]


def _key_of(key: Any) -> str | None:
    if isinstance(key, str):
        return key
    if isinstance(key, n.IMMUTABLE):
        return repr(key)
    if isinstance(key, tuple) and n.is_flat(key):
        return repr(key)
    return _name_of(key) if isinstance(key, type | types.FunctionType) else None


def _look_at_array(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    if not n.is_numeric(value):
        items = value.reshape(-1).tolist()
        if value.dtype.hasobject and n.is_flat(items) and walk.allows(8 * len(items)):
            walk.add(path, slot, value, "texts", is_traced, ("texts", value.shape, *n.flat_token(items)))
        elif value.dtype.kind in "USmM" and walk.allows(value.nbytes):
            walk.add(
                path, slot, value, "texts", is_traced, ("texts", value.shape, *n.flat_token(list(map(str, items))))
            )
        else:
            walk.add_unknown(path, slot, value, is_traced, "an array of objects")
    elif walk.allows(value.nbytes):
        walk.add(path, slot, value, "array", is_traced, n.array_token(value))
    else:
        walk.add_unknown(path, slot, value, is_traced, "an array too large to compare")


def _look_at_random(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    if isinstance(value, random.SystemRandom):
        walk.add(path, slot, value, "constant", is_traced)
    else:
        walk.add(path, slot, value, "random", is_traced, n.random_token(value))


def _look_at_iterator(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    walk.add(path, slot, value, "iterator", is_traced, n.iterator_token(value))


def _look_at_generator(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    walk.add(path, slot, value, "generator", is_traced, n.generator_token(value))


def _look_at_weak_reference(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    walk.add(path, slot, value, "constant", is_traced)
    walk.push(join(path, "referent"), None, value(), is_traced)


# --- what TensorFlow and Keras own


def _look_at_variable(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    component = variables.components(value)[0]
    if is_traced or walk.is_saved(value) or component.dtype.name in {"string", "resource", "variant"}:
        walk.add(path, slot, value, "owned", is_traced, ("owned",))
        return
    tokens = tuple(n.array_token(variables.read(c)) for c in variables.components(value))
    walk.add(path, slot, value, "variable", is_traced, ("variable", *tokens))


def _look_at_generator_of_tensorflow(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    walk.add(path, slot, value, "object", is_traced)
    walk.push(join(path, "state"), None, value.state, is_traced)


def _look_at_tensor(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    if not hasattr(value, "numpy") or not value.dtype.is_numpy_compatible:
        walk.add(path, slot, value, "owned", is_traced)
        return
    array = value.numpy()
    if isinstance(array, np.ndarray | np.generic) and n.is_numeric(np.asarray(array)):
        walk.add(path, slot, value, "tensor", is_traced, ("tensor", *n.array_token(np.asarray(array))))
    else:
        walk.add(path, slot, value, "owned", is_traced, ("texts", repr(array)))


def _look_at_owned(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    walk.add(path, slot, value, "owned", is_traced)


def _look_at_traced_function(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    walk.add(path, slot, value, "constant", is_traced)
    walk.push(join(path, "python_function"), None, value.python_function, True)


# --- functions, classes, modules


def _look_at_function(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    if is_library(value.__module__):
        walk.add_named(path, slot, value, "constant", is_traced)
        _push_wrapped(walk, path, value, is_traced)
        return
    if walk.is_asserted(value):
        walk.add_named(path, slot, value, "asserted", is_traced)
        return
    walk.add_named(path, slot, value, "function", is_traced)
    reads = reads_of(value.__code__)
    file = Path(value.__code__.co_filename).name
    walk.found.code[f"{file}: {value.__qualname__}"] = code_digest(value.__code__)
    if is_traced:
        walk.found.traced_names |= reads.names
    for index, default in enumerate(value.__defaults__ or ()):
        walk.push(join(path, f"default {_argument(value, index)}"), Slot("default", value, index), default, is_traced)
    for name, default in (value.__kwdefaults__ or {}).items():
        walk.push(join(path, f"default {name}"), Slot("keyword", value.__kwdefaults__, name), default, is_traced)
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        _push_cell(walk, join(path, f"closure {name}"), cell, is_traced)
    for name, item in vars(value).items():
        walk.push(join(path, name), Slot("attribute", value, name), item, is_traced)
    _push_globals(walk, path, value, reads, is_traced)


def _argument(function: types.FunctionType, index: int) -> str:
    code, count = function.__code__, len(function.__defaults__ or ())
    return code.co_varnames[code.co_argcount - count + index]


def _push_cell(walk: _Walk, path: str, cell: Any, is_traced: bool) -> None:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return
    walk.push(path, Slot("cell", cell), value, is_traced)


def _push_wrapped(walk: _Walk, path: str, function: Any, is_traced: bool) -> None:
    """A library's wrapper around a function of the user's holds it in a cell, or as `__wrapped__`."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if isinstance(value, types.FunctionType | types.MethodType | functools.partial) or _is_of_the_user(value):
            walk.push(join(path, f"closure {name}"), None, value, is_traced)


def _is_of_the_user(value: Any) -> bool:
    return not isinstance(value, type) and not is_library(type(value).__module__)


def _push_globals(walk: _Walk, path: str, function: types.FunctionType, reads: Reads, is_traced: bool) -> None:
    namespace = function.__globals__
    module = str(namespace.get("__name__", "?"))
    if reads.dynamic is not None and not (
        reads.dynamic in namespace and not is_library(_module_of(namespace[reads.dynamic]))
    ):
        walk.found.unknown[path] = f"it uses {reads.dynamic}"
    elif reads.reads_files is not None and not is_traced:
        walk.found.unknown[path] = f"it may read a file that training has changed ({reads.reads_files})"
    for name in sorted(reads.global_names & namespace.keys()):
        value = namespace[name]
        if isinstance(value, types.ModuleType):
            _push_used(walk, value, reads, is_traced)
        else:
            walk.push(join(f"module {module}", name), Slot("global", namespace, name), value, is_traced)
    for name in sorted(reads.imports):
        if name in sys.modules:
            _push_used(walk, sys.modules[name], reads, is_traced)


def _module_of(value: Any) -> str | None:
    return getattr(value, "__module__", None) or getattr(value, "__name__", None)


def _push_used(walk: _Walk, module: types.ModuleType, reads: Reads, is_traced: bool) -> None:
    """The names of a module of the user's that a function uses."""
    if is_library(module.__name__):
        _push_used_of_library(walk, module, reads, is_traced)
        return
    for name in sorted(reads.names & vars(module).keys()):
        value = vars(module)[name]
        if isinstance(value, types.ModuleType):
            _push_used(walk, value, reads, is_traced)
        else:
            walk.push(join(f"module {module.__name__}", name), Slot("attribute", module, name), value, is_traced)


def _push_used_of_library(walk: _Walk, module: types.ModuleType, reads: Reads, is_traced: bool) -> None:
    """What the user may have put into a library's module, or into the environment of the process."""
    path = f"module {module.__name__}"
    for name in sorted(reads.names & vars(module).keys()):
        value = vars(module)[name]
        plain = isinstance(value, n.IMMUTABLE) or (isinstance(value, list | dict | set) and n.is_flat(_items(value)))
        if plain or _is_of_the_user(value):
            walk.push(join(path, name), Slot("attribute", module, name), value, is_traced)
    if module.__name__ == "os" and reads.names & {"environ", "getenv", "putenv"}:
        walk.push(join(path, "environ"), None, dict(os.environ), is_traced)


def _items(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else list(value)


def _look_at_module(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    walk.add_named(path, slot, value, "constant", is_traced)
    if is_library(value.__name__):
        return
    for name, item in vars(value).items():
        if not name.startswith("__") and not isinstance(item, types.ModuleType | types.FunctionType | type):
            walk.push(join(f"module {value.__name__}", name), Slot("attribute", value, name), item, is_traced)


def _look_at_class(walk: _Walk, path: str, slot: Slot | None, value: type, is_traced: bool) -> None:
    if is_library(value.__module__):
        walk.add_named(path, slot, value, "constant", is_traced)
        return
    if walk.is_asserted(value):
        walk.add_named(path, slot, value, "asserted", is_traced)
        return
    walk.add_named(path, slot, value, "class", is_traced)
    for name, item in vars(value).items():
        if isinstance(item, types.MemberDescriptorType | types.GetSetDescriptorType) or _is_private_to_classes(name):
            continue
        walk.push(join(path, name), Slot("attribute", value, name), item, is_traced)
    for base in (*value.__bases__, type(value)):
        if not is_library(base.__module__):
            walk.push(f"class {_name_of(base)}", None, base, is_traced)


def _is_private_to_classes(name: str) -> bool:
    own = ("__init__", "__call__", "__enter__", "__exit__", "__iter__", "__next__", "__getitem__", "__setattr__")
    return name.startswith("_abc_") or (name.startswith("__") and name.endswith("__") and name not in own)


def _look_at_wrapper(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    """A static method, class method, property, cached function: what it holds."""
    if walk.is_asserted(value):
        walk.add(path, slot, value, "asserted", is_traced)
        return
    if isinstance(value, functools._lru_cache_wrapper) and not is_library(value.__module__):
        walk.add_unknown(path, slot, value, is_traced, "a function that remembers its results")
    else:
        walk.add(path, slot, value, "constant", is_traced)
    for name in ("__func__", "fget", "fset", "func", "__wrapped__"):
        inner = getattr(value, name, None)
        if isinstance(inner, types.FunctionType):
            walk.push(join(path, name), None, inner, is_traced)


def _look_at_method(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    owner, function = value.__self__, getattr(value, "__func__", None)
    walk.add(path, slot, value, "method", is_traced, ("method", str(value.__name__)))
    walk.push(join(path, "self"), None, owner, is_traced)
    if function is not None:
        walk.push(join(path, "function"), None, function, is_traced)


def _look_at_builtin(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    if value.__self__ is None or isinstance(value.__self__, types.ModuleType | type):
        walk.add_named(path, slot, value, "constant", is_traced)
    else:
        _look_at_method(walk, path, slot, value, is_traced)


def _look_at_partial(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    walk.add(path, slot, value, "object", is_traced)
    walk.push(join(path, "func"), None, value.func, is_traced)
    for index, item in enumerate(value.args):
        walk.push(join(path, f"argument {index}"), None, item, is_traced)
    for name, item in value.keywords.items():
        walk.push(join(path, name), Slot("item", value.keywords, name), item, is_traced)


def _look_at_constant(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    walk.add_named(path, slot, value, "constant", is_traced)


# --- instances


def _look_at_library_layer(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    settings, others = library_state.settings_of_layer(value)
    walk.add(path, slot, value, "layer", is_traced, ("layer", _name_of(type(value)), *settings.items()))
    for name, item in others:
        walk.push(join(path, name), Slot("attribute", value, name), item, is_traced)
    for name, item in library_state.layer_parts(value, of_training=is_traced):
        walk.push(join(path, name), None, item, is_traced)


def _look_at_instance(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    if library_state.is_library_layer(value):
        _look_at_library_layer(walk, path, slot, value, is_traced)
        return
    fixed = _fixed_kind(walk, value)
    if fixed is not None:
        walk.add(path, slot, value, fixed, is_traced)
    elif library_state.is_opaque(value) or not _is_open(type(value)):
        walk.add_unknown(path, slot, value, is_traced)
    elif (own := walk.own_state(value)) is not None:
        walk.add(path, slot, value, "own_state", is_traced, ("own_state", repr(n.plain_token(own))))
    else:
        _look_at_attributes(walk, path, slot, value, is_traced)


def _fixed_kind(walk: _Walk, value: Any) -> str | None:
    """The kind of an instance that is not looked into; None of any other."""
    if is_output(value):
        return "constant"
    if walk.is_asserted(value):
        return "asserted"
    return "owned" if library_state.is_owned(value) else None


def _look_at_attributes(walk: _Walk, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
    cls = type(value)
    walk.add(path, slot, value, "object", is_traced)
    if not is_library(cls.__module__):
        walk.push(f"class {_name_of(cls)}", None, cls, is_traced)
    for name, item, kind in library_state.attributes(value, of_training=is_traced):
        walk.push(join(path, name), Slot(kind, value, name) if kind else None, item, is_traced)


def _is_open(cls: type) -> bool:
    """Whether all that instances hold is in their `__dict__` and slots: nothing that a class of C keeps for itself."""
    slots = [name for base in cls.__mro__ for name in _names(vars(base).get("__slots__", ()))]
    pointers = len(slots) + 2  # with the instance's dict and weak references
    return cls.__itemsize__ == 0 and cls.__basicsize__ <= object.__basicsize__ + pointers * _POINTER


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


_POINTER = struct.calcsize("P")
_LOOKS: tuple[tuple[Any, Callable[[_Walk, str, Slot | None, Any, bool], None]], ...] = (
    (n.CONTAINERS, _look_at_container),
    (np.ndarray, _look_at_array),
    ((random.Random, np.random.Generator, np.random.RandomState), _look_at_random),
    ((keras.Variable, tf.Variable), _look_at_variable),
    (tf.Tensor, _look_at_tensor),
    (tf.random.Generator, _look_at_generator_of_tensorflow),
    (type(tf.function(lambda: None)), _look_at_traced_function),
    ((keras.KerasTensor, tf.data.Dataset, tf.distribute.Strategy, tf.lookup.StaticHashTable), _look_at_owned),
    (types.FunctionType, _look_at_function),
    (types.MethodType, _look_at_method),
    (_BUILTINS, _look_at_builtin),
    (functools.partial, _look_at_partial),
    (type, _look_at_class),
    (types.ModuleType, _look_at_module),
    (
        (staticmethod, classmethod, property, functools.cached_property, functools._lru_cache_wrapper),
        _look_at_wrapper,
    ),
    (n.ITERATORS, _look_at_iterator),
    (types.GeneratorType, _look_at_generator),
    (weakref.ReferenceType, _look_at_weak_reference),
    (_LIBRARY_CONSTANTS, _look_at_constant),
)

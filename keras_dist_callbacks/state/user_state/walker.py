"""One walk over objects: the queue, the paths, and what is noted of each object."""

from __future__ import annotations

import functools
import itertools
import time
import types
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks._compat import variables
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.user_state import nodes as n
from keras_dist_callbacks.state.user_state.nodes import Node, Slot


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
    """How much one walk may look at; everything after that is unknown.

    Attributes:
        nodes: Objects.
        bytes: Bytes of arrays.
        seconds: Processor time.
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
        saved_keys: Returns the keys of the variables that are saved in another way.
        is_listed: Whether an object is one of the fit's own callbacks.
    """

    is_asserted: Callable[[Any], bool]
    own_state: Callable[[Any], tuple[Callable[[], Any], Callable[[Any], None]] | None]
    saved_keys: Callable[[], Collection[int]]
    is_listed: Callable[[Any], bool] = lambda value: False


@dataclass
class Found:
    """What one walk has found.

    Attributes:
        nodes: By path.
        unknown: By path, what could not be looked into.
        code_conditions: By the path of a function, what it does that cannot be looked into.
        labels: Functions, classes and library objects by their full names.
        code: Hashes of the functions of the user's by `file: name`.
        traced_names: Names that functions which TensorFlow traces use.
        names: Names that any function of the user's uses.
        traced_functions: Functions that TensorFlow may trace.
        drawing: By path, the functions that draw from a random state that all code shares.
        stored: Names that functions assign, other than those that make an object.
        filled: Names of containers whose items these may change.
        counts: By path, the numbers of objects that only write output, such as how far a progress bar is.
        sets_of_texts: Paths of sets whose order depends on the process.
        iterated: Names over which functions of the user's iterate.
        changed_sets: By path, the sets of plain values that are others than at the start.
        names_in_functions: Names that functions of the user's use which TensorFlow has traced, other than steps.
        with_own_state: Paths of the objects that say themselves what their state is, and of their classes.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    code_conditions: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    traced_names: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    traced_functions: set[types.FunctionType] = field(default_factory=set)
    drawing: dict[str, types.FunctionType] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    filled: set[str] = field(default_factory=set)
    counts: dict[str, float] = field(default_factory=dict)
    sets_of_texts: set[str] = field(default_factory=set)
    iterated: set[str] = field(default_factory=set)
    changed_sets: dict[str, Any] = field(default_factory=dict)
    names_in_functions: set[str] = field(default_factory=set)
    with_own_state: set[str] = field(default_factory=set)

    def is_below_own_state(self, path: str) -> bool:
        """Returns whether a path is below an object that says itself what its state is, or is of its class."""
        return not self.with_own_state.isdisjoint(itertools.islice(n.with_parents(path), 1, None))

    def node(self, path: str) -> Node | None:
        """Returns the node of a path, that of a setting of a layer included, which the layer's own token holds."""
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


Look = Callable[["Walker", str, Slot | None, Any, bool], None]
"""Notes an object, bound in a slot under a path, and pushes what it holds."""

Looks = Sequence[tuple[Set[type], Look]]


class Walker:
    """One walk: what is still to be visited, and what was found.

    Args:
        policy: What is not looked into.
        limits: How much is.
        start: An earlier walk, whose paths come before others.
        looks: How objects of certain types are looked at; the first that fits counts.
        otherwise: How any other object is.
    """

    def __init__(self, policy: Policy, limits: Limits, start: Found | None, looks: Looks, otherwise: Look) -> None:
        self.found = Found()
        self.of_training: set[str] = set()  # paths of what Keras lists the variables of
        self._looks, self._otherwise = looks, otherwise
        self._look_of: dict[type, Look] = {}
        self._classes: set[type] = set()
        self._start = start
        self._policy = policy
        self._limits = limits
        self._bytes = 0
        self._end = time.thread_time() + limits.seconds  # a machine that pauses leaves nothing out
        self._paths: dict[int, str] = {}
        self._alive: list[Any] = []  # an id is unique only while its object lives
        self._queue: deque[tuple[str, Slot | None, Any, bool]] = deque()
        self._known = None if start is None else start.nodes.keys()
        known = {} if start is None else start.nodes
        self._earlier = {id(node.value): path for path, node in known.items() if node.kind not in ("ref", "value")}
        self._later: deque[tuple[str, Slot | None, Any, bool]] = deque()

    def run(self, roots: Mapping[str, Root]) -> Found:
        """Visits what the roots reach; those that TensorFlow traces first."""
        for is_traced in (True, False):  # what traced functions reach has its path from there
            for path, root in roots.items():
                if root.is_traced == is_traced:
                    self.push(path, None, root.value, is_traced)
            self._drain()
        self._known = None
        self._queue, self._later = self._later, self._queue
        places = {path for path, *_ in self._queue} | self.found.nodes.keys()
        self._earlier = {key: path for key, path in self._earlier.items() if path not in places}
        self._drain()
        for path, value in self.found.changed_sets.items():
            if len(value) > 1 and "pop" in self.found.names:
                self.found.unknown[path] = "the order of a set that has changed is not saved"
        for path in self.found.sets_of_texts:
            if n.parent_of(path)[1].rpartition(" ")[2] in self.found.iterated:
                self.found.unknown[path] = (
                    "a set of texts, whose order is another one in each process; use sorted() or a list"
                )
        before = {} if self._start is None else self._start.counts
        for path, count in self.found.counts.items():
            if before.get(path, count) != count and n.parent_of(path)[1] in self.found.names:
                self.found.unknown[path] = "a number of what only writes output, which is not saved"
        return self.found

    def _drain(self) -> None:
        while self._queue:
            path, slot, value, is_traced = self._queue.popleft()
            if len(self.found.nodes) > self._limits.nodes or time.thread_time() > self._end:
                self.found.unknown[path] = "there is too much to inspect"
                self._queue.clear()
                return
            self._visit(path, slot, value, is_traced)

    def push(self, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
        """An object is to be visited."""
        queue = self._queue if self._known is None or path in self._known else self._later
        queue.append((path, slot, value, is_traced))

    def is_first_of(self, cls: type) -> bool:
        """Returns whether no object of exactly this class was asked about before."""
        known = len(self._classes)
        self._classes.add(cls)
        return len(self._classes) > known

    def _visit(self, path: str, slot: Slot | None, value: Any, is_traced: bool) -> None:
        if path in self.found.nodes:
            return
        if n.is_immutable(value):
            self._add(path, slot, value, "value", n.immutable_token(value), is_traced)
            for name, item in n.attributes_of_immutable(value):
                self.push(
                    n.join(f"class {name_of(type(value))}", n.text_of(value), name),
                    Slot("attribute", value, name),
                    item,
                    is_traced,
                )
            return
        known = self._paths.get(id(value))
        if known is not None:
            if type(value) is types.FunctionType:
                self.found.names.add(value.__name__)  # who holds it may call it
            self._add(path, slot, value, "ref", ("ref", known), is_traced)
            return
        earlier = self._earlier.get(id(value), path)
        if earlier != path and self._known is not None:
            self._later.append((path, slot, value, is_traced))
            return
        if earlier != path:  # it is not bound where it was, but is still the object that a restart finds there
            self._add(path, slot, value, "ref", ("ref", earlier), is_traced)
            path, slot = earlier, None
        self._paths[id(value)] = path
        self._alive.append(value)
        cls = static.class_of(value)
        look = self._look_of.get(cls)
        if look is None:
            # Not `issubclass`: of an abstract class such as `tf.TypeSpec`, it asks hundreds of subclasses each time.
            bases = set(cls.__mro__)
            look = self._look_of[cls] = next((f for kinds, f in self._looks if bases & kinds), self._otherwise)
        look(self, path, slot, value, is_traced)

    def _add(
        self, path: str, slot: Slot | None, value: Any, kind: str, token: tuple[Any, ...], is_traced: bool
    ) -> None:
        self.found.nodes[path] = Node(slot, value, kind, token, is_traced)

    def add(
        self, path: str, slot: Slot | None, value: Any, kind: str, is_traced: bool, token: tuple[Any, ...] = ()
    ) -> None:
        """Notes an object with a token, by default one of its kind and type."""
        self._add(path, slot, value, kind, token or (kind, name_of(type(value))), is_traced)

    def add_named(self, path: str, slot: Slot | None, value: Any, kind: str, is_traced: bool, label: str = "") -> None:
        """Notes a function, class or library object, which its full name, or another label, stands for."""
        label = label or name_of(value)
        self.found.labels.setdefault(label, value)
        self._add(path, slot, value, kind, (kind, label), is_traced)

    def add_unknown(self, path: str, slot: Slot | None, value: Any, is_traced: bool, what: str = "") -> None:
        """Notes an object that cannot be looked into."""
        self.found.unknown[path] = what or _with_article(name_of(type(value)))
        self.add(path, slot, value, "unknown", is_traced)

    def token_at_start(self, path: str, default: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Returns what an earlier walk has noted at a path; the default if this is the first walk."""
        if self._start is None:
            return default
        node = self._start.nodes.get(path)
        return None if node is None else node.token

    def was_there(self, path: str, value: Any) -> bool:
        """Returns whether an earlier walk has found this very object at a path; True if this is the first walk."""
        node = None if self._start is None else self._start.nodes.get(path)
        return self._start is None or (node is not None and node.value is value)

    def allows(self, size: int) -> bool:
        """Returns whether so many bytes may be hashed yet."""
        self._bytes += size
        return self._bytes <= self._limits.bytes

    def is_asserted(self, value: Any) -> bool:
        """See `Policy`."""
        return self._policy.is_asserted(value)

    def has_own_state(self, value: Any) -> bool:
        """Returns whether an object, or the user for it, says what its state is."""
        return self._policy.own_state(value) is not None

    def own_state(self, value: Any) -> Any:
        """Returns what such an object says of its state."""
        own = self._policy.own_state(value)
        return None if own is None else own[0]()

    def is_listed(self, value: Any) -> bool:
        """See `Policy`."""
        return self._policy.is_listed(value)

    def is_saved(self, variable: Any) -> bool:
        """Returns whether a variable is saved in another way."""
        return all(variables.key(component) in self._saved_keys for component in variables.components(variable))

    @functools.cached_property
    def _saved_keys(self) -> Collection[int]:
        return self._policy.saved_keys()  # once per walk: a large model has thousands of variables


def name_of(value: Any) -> str:
    """Returns the full name of a function, class or module."""
    if type(value) is types.FunctionType:
        module, name = value.__module__, value.__qualname__
    else:
        module, name = (_names_of_class if static.is_a(value, type) else _names_of)(value)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


def _names_of(value: Any) -> tuple[Any, Any]:
    module, name = (static.attribute(value, name) for name in ("__module__", "__qualname__"))
    return module, name or static.attribute(value, "__name__") or type(value).__name__


_names_of_class = functools.lru_cache(maxsize=4096)(_names_of)  # of each object's class, in each walk


def _with_article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeio" else f"a {name}"

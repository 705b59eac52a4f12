"""One look at the user's objects: what is bound at each place, and what the objects hold that are there."""

from __future__ import annotations

import functools
import itertools
import time
import types
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash

from keras_dist_callbacks._compat import variables
from keras_dist_callbacks.backups.snapshot import JSON, SharedTensor
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state import own_values
from keras_dist_callbacks.state.own_objects import plain
from keras_dist_callbacks.state.own_objects.libraries import is_library
from keras_dist_callbacks.state.own_objects.places import Place, join, parent_of, with_parents
from keras_dist_callbacks.state.own_values import UnstorableError


@dataclass(frozen=True)
class Root:
    """Where a look begins.

    Attributes:
        value: The object.
        is_traced: Whether TensorFlow traces its functions, so that a value which they read stays that of the trace.
    """

    value: Any
    is_traced: bool = False


@dataclass(frozen=True)
class Limits:
    """How much is looked at; everything after that is unknown.

    Attributes:
        objects: How many.
        bytes: Of arrays.
        seconds: Processor time.
    """

    objects: int = 200_000
    bytes: int = 2**28
    seconds: float = 5.0


@dataclass
class Policy:
    """What is not looked into.

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

    def is_fixed(self, value: Any) -> bool:
        """Returns whether an object is not made again as its attributes say."""
        return self.is_asserted(value) or self.own_state(value) is not None


Make = Callable[["Look", Any, str, dict[str, SharedTensor]], JSON]
"""Returns what is stored of a value; while nothing is stored, something that distinguishes it from others."""


@dataclass
class Code:
    """What the functions of the user's do.

    Attributes:
        digests: Hashes of them by `file: name`.
        conditions: By path, what one does that cannot be looked into.
        names: Names that they use.
        traced_names: Those that functions use which TensorFlow traces.
        names_in_functions: Those of functions that TensorFlow has traced, other than steps.
        traced_functions: Functions that TensorFlow may trace.
        drawing: By path, the functions that draw from a random state that all code shares.
        stored: Names that functions assign, other than those that make an object.
        filled: Names of containers whose items these may change.
        iterated: Names over which functions iterate.
    """

    digests: dict[str, str] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    traced_names: set[str] = field(default_factory=set)
    names_in_functions: set[str] = field(default_factory=set)
    traced_functions: set[types.FunctionType] = field(default_factory=set)
    drawing: dict[str, types.FunctionType] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    filled: set[str] = field(default_factory=set)
    iterated: set[str] = field(default_factory=set)


@dataclass
class Remembered:
    """What a first look of this process has found at some places, which keeps nothing alive.

    Attributes:
        digests: By path.
        objects: What distinguishes the objects from others, by path.
    """

    digests: dict[str, str] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)


class Kind(NamedTuple):
    """How objects of some types are looked at.

    Attributes:
        visit: Notes what one holds, and reaches what it refers to; None for values that cannot change, such as tuples.
        record: Returns what is stored of one that training has made; None if a restart cannot make one.
    """

    visit: Callable[[Look, str, Any], None] | None
    record: Make | None = None


class Look:
    """What the roots reach, on the main thread, between two steps.

    An object that was there at the start is known by the path under which that first look has reached it, wherever it
    is bound later: its places and its content are noted once. An object that training has made is part of the record
    of what holds it, so that a restart can make it again; functions, classes, objects of libraries and what these hold
    cannot be made, and are known by the path under which they are reached first.

    Args:
        kind_of: How objects of a class are looked at.
        roots: By path, in their order.
        policy: What is not looked into.
        start: The first look of this run; None for that one.
        limits: How much is looked at.

    Attributes:
        digests: Of what is at each place, and of what each object holds (a path with a slash at its end).
        places: By path.
        objects: Those that are known by a path.
        traced: Paths that functions which TensorFlow traces may have read.
        unknown: By path, what could not be looked into.
        namespaces: Globals of functions of the user's, by the path of their module.
        labels: Functions, classes and constants of libraries by their full names.
        enums: Classes of members of an Enum, by name.
        code: What the functions do that were reached.
        settings: By the path of a layer of Keras' own, its settings.
        variables: By path, those that only the user's code holds.
        datasets: By path.
        late: Paths in what code reaches that the first look has not: its objects are the script's, too.
        mutable: Ids of the objects that can be changed in place.
        uncompared: Paths of what was reached and not compared.
        with_own_state: Paths of the objects that say themselves what their state is, and of their classes.
        counted: By path, the numbers of objects that only write output, such as how far a progress bar is.
        metrics: By path of a model that is not trained by the fit, what distinguishes the values of its metrics.
        sets: By path, those of several plain values.
        orders_of_sets: By path, what these hold, in its order.
        orders: By path, of those among them whose order matters and has changed, that it is unknown.
        sets_of_texts: Paths of sets whose order depends on the process.
        tokens: By path, what can be compared and not stored.
        environment: Hashes of the process' environment, by name; None if no function reads it.
    """

    def __init__(
        self,
        kind_of: Callable[[type], Kind],
        roots: Mapping[str, Root],
        policy: Policy,
        start: Look | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._kind_of = kind_of
        self.start, self.policy, self._limits = start, policy, limits or Limits()
        self.digests: dict[str, str] = {}
        self.places: dict[str, Place | None] = {}
        self.objects: dict[str, Any] = {}
        self.traced: set[str] = set()
        self.unknown: dict[str, str] = {}
        self.namespaces: dict[str, dict[str, Any]] = {}
        self.labels: dict[str, Any] = {}
        self.enums: dict[str, Any] = {}
        self.code = Code()
        self.settings: dict[str, dict[str, Any]] = {}
        self.variables: dict[str, Any] = {}
        self.datasets: dict[str, Any] = {}
        self.late: set[str] = set()
        self.mutable: set[int] = set()
        self.uncompared: list[str] = []
        self.with_own_state: set[str] = set()
        self.counted: dict[str, float] = {}
        self.metrics: dict[str, list[Any]] = {}
        self.sets: dict[str, Any] = {}
        self.orders_of_sets: dict[str, list[Any]] = {}
        self.orders: dict[str, str] = {}
        self.sets_of_texts: set[str] = set()
        self.tokens: dict[str, Any] = {}
        self.environment: dict[str, int] | None = None
        self.of_training: set[str] = set()  # paths of what Keras lists the variables of
        self.arrays: dict[int, list[tuple[str, Any]]] = {}  # by whose memory they are in
        self.classes: set[type] = set()
        self._values: dict[str, tuple[Make, Any, bool]] = {}
        self._paths: dict[int, str] = {}  # of objects, by id
        self._alive: list[Any] = []  # an id is unique only while its object lives
        self._new: set[str] = set()  # paths of objects that are part of a record
        self._again: set[str] = set()  # those that are in several
        self._put: set[str] | None = None  # those that are stored already; None: nothing is stored
        self._queue: deque[tuple[str, Any, bool, bool, bool]] = deque()
        self._bytes, self._end = 0, time.thread_time() + self._limits.seconds  # a pause leaves nothing out
        # What the objects that are visited now hold is known by path because the script has made it; or it is part of
        # a record, because what holds it says itself what its state is.
        self.is_traced, self._by_path, self._in_record = False, start is None, False
        for self.is_traced in (True, False):  # what traced functions reach has its path from there
            for path, root in roots.items():
                if root.is_traced == self.is_traced:
                    self._by_path, self._in_record = start is None, False
                    self.slot(path, None, root.value)
            self._drain()
        self._conclude()

    # --- for those that look at an object of one kind

    def slot(self, path: str, place: Place | None, value: Any) -> None:
        """Notes what is bound at a place."""
        if path not in self.digests:
            self.places[path] = place
            self.note(path, _bound, value)

    def note(self, key: str, make: Make, value: Any) -> None:
        """Notes what is at a place, or what an object holds."""
        self.digests[key] = ""  # it may refer to itself
        self._values[key] = make, value, self._by_path
        try:
            self.digests[key] = digest(make(self, value, key.removesuffix("/"), {}))
        except UnstorableError as error:  # it is nested too deep
            self.digests[key] = str(error)
        if self.is_traced:
            self.traced.add(key)
        if self._by_path and self.start is not None:
            self.late.add(key)

    def reach(self, path: str, value: Any) -> JSON:
        """Visits what is at no place of its own; returns what stands for it."""
        return own_values.encode(value, path, {}, self)

    def name(self, label: str, value: Any) -> None:
        """Notes what a name stands for."""
        self.labels.setdefault(label, value)

    def doubt(self, path: str, why: str) -> None:
        """Notes that something cannot be looked into."""
        self.unknown[path] = why
        self.uncompared.append(path)

    def doubt_if_changed(self, path: str, token: Any, why: str) -> None:
        """Notes what can be compared, and is unknown once training has changed it."""
        self.tokens[path] = token
        before = token if self.start is None else self.start.tokens.get(path, token)
        if before != token:
            self.doubt(path, why)

    def allows(self, size: int) -> bool:
        """Returns whether so many bytes may be hashed yet."""
        self._bytes += size
        return self._bytes <= self._limits.bytes

    def was_there(self, value: Any) -> bool:
        """Returns whether the first look has reached this very object."""
        return self.start is None or id(value) in self.start._paths

    def is_saved(self, variable: Any) -> bool:
        """Returns whether a variable is saved in another way."""
        return all(variables.key(component) in self._saved_keys for component in variables.components(variable))

    @functools.cached_property
    def _saved_keys(self) -> Collection[int]:
        return self.policy.saved_keys()  # once per look: a large model has thousands of variables

    @property
    def stores(self) -> bool:
        """Whether records are made to be stored, and not only compared."""
        return self._put is not None

    def holds_own_state(self, path: str, *labels: str) -> None:
        """Notes that an object says itself what its state is: what else it holds is saved by value, for comparison."""
        self.with_own_state |= {path, *labels}
        self._in_record = True

    # --- what stands for a value

    def find(self, value: Any, path: str, tensors: dict[str, SharedTensor]) -> JSON | None:
        """See `own_values.References`."""
        if plain.is_immutable(value):
            return self._immutable(value, path, tensors)
        kind = self._kind_of(static.class_of(value))
        if kind.visit is None and kind.record is not None:
            return kind.record(self, value, path, tensors)
        at = self._paths.get(id(value))
        if at is None:
            at = self._met(value, path, kind)
        elif at in self._new and (self._put is None or at in self._put):
            self._again.add(at)
            return {"$same": at}
        elif type(value) is types.FunctionType:
            self.code.names.add(value.__name__)  # who holds it may call it
        if at in self._new and kind.record is not None:
            if self._put is not None:
                self._put.add(at)
            record = kind.record(self, value, path, tensors)
            return {"$once": [at, record]} if self._put is not None and at in self._again else record
        if self.start is None or at in self.start.objects:
            return {"$ref": at}
        if self.stores and at in self.datasets and not self._by_path:
            raise UnstorableError("a dataset that training has made, which cannot be made again from a backup")
        return {"$keep": [at, plain.label_of(value)]}

    def _met(self, value: Any, path: str, kind: Kind) -> str:
        """An object is met for the first time: returns the path by which it is known."""
        start = self.start
        known = None if start is None else start._paths.get(id(value))
        known = known if start is not None and known in start.objects else None
        is_own = not is_library(type(value).__module__)
        can_be_made = kind.record is not None and not (is_own and self.policy.is_fixed(value))
        is_part = can_be_made and (self._in_record or (known is None and not self._by_path))
        at = None if is_part else known
        is_late = at is None and start is not None
        if at is None:
            at = path
            while at in self.objects or at in self._new or (start is not None and at in start.objects):
                at += "'"
        if self.is_traced:
            self.traced.add(at)
        self._paths[id(value)] = at
        self._alive.append(value)
        if is_part:
            self._new.add(at)
        else:
            self.objects[at] = value
            self._queue.append((at, value, self.is_traced, start is None or is_late, self._in_record))
        return at

    def _immutable(self, value: Any, path: str, tensors: dict[str, SharedTensor]) -> JSON:
        cls = type(value)
        if plain.is_member(value):
            self.enums.setdefault(cls.__qualname__, cls)
        for name, item in plain.attributes_of_immutable(value):
            owner = join(f"class {plain.name_of(cls)}", plain.text_of(value))
            self.slot(join(owner, name), Place("attribute", value, name), item)
        try:
            return own_values.whole(value, path, tensors, self)
        except UnstorableError:
            if self.stores:
                raise
            return {"$unsaved": plain.immutable_token(value)}

    def _drain(self) -> None:
        while self._queue:
            path, value, self.is_traced, self._by_path, self._in_record = self._queue.popleft()
            if len(self.objects) > self._limits.objects or time.thread_time() > self._end:
                self.doubt(path, "there is too much to inspect")
                self._queue.clear()
                return
            visit = self._kind_of(static.class_of(value)).visit
            if visit is not None:
                visit(self, path, value)

    def _conclude(self) -> None:
        """What is unknown only because of what some function does."""
        start = self.start
        for path, value in self.sets.items() if start is not None else ():
            order, before = static.contents(value), [] if start is None else start.orders_of_sets.get(path, [])
            is_lost = set(order) == set(before) or not own_values.keeps_order(value)
            if path in self.sets_of_texts:  # of which no order is the same in another process
                is_lost = False
            if order != before and (is_lost or "pop" in self.code.names):
                self.unknown[path] = self.orders[path] = "the order of a set that has changed is not saved"
        for path in self.sets_of_texts:
            if parent_of(path)[1].rpartition(" ")[2] in self.code.iterated:
                self.unknown[path] = (
                    "a set of texts, whose order is another one in each process; use sorted() or a list"
                )
        for path, number in self.counted.items() if start is not None else ():
            is_changed = start is not None and start.counted.get(path, number) != number
            if is_changed and parent_of(path)[1] in self.code.names:
                self.unknown[path] = "a number of what only writes output, which is not saved"

        names = self.code.names
        if start is not None and ("get_metrics_result" in names or {"metrics", "result"} <= names):
            for path, values in self.metrics.items():
                if values != start.metrics.get(path, values):
                    self.unknown[join(path, "metrics")] = "what a fit or evaluation by code of yours has measured"

    # --- for those that compare

    def is_below_own_state(self, path: str) -> bool:
        """Returns whether a path is below an object that says itself what its state is, or is of its class."""
        return not self.with_own_state.isdisjoint(itertools.islice(with_parents(path), 1, None))

    def digest_at(self, key: str) -> str | None:
        """Returns the digest of a path, that of a setting of a layer of Keras' included."""
        if key not in self.digests:
            above, name = parent_of(key)
            settings = self.settings.get(above, {})
            return digest(own_values.encode(settings[name], key, {}, self)) if name in settings else None
        return self.digests[key]

    def value_at(self, key: str) -> Any:
        """Returns what is at a place, the object that has a content, or a setting of a layer of Keras'."""
        if key in self._values:
            return self._values[key][1]
        above, name = parent_of(key)
        return self.settings.get(above, {}).get(name)

    def place_at(self, key: str) -> Place | None:
        """Returns a place, that of a setting of a layer of Keras' included."""
        above, name = parent_of(key)
        if name in self.settings.get(above, {}):
            return Place("attribute", self.objects[above], name)
        return self.places.get(key)

    def path_of(self, value: Any) -> str | None:
        """Returns by which path an object is known."""
        return self._paths.get(id(value))

    def remembered(self, keys: Collection[str]) -> Remembered:
        """Returns what is at paths, and below."""
        digests = {key: value for key, value in self.digests.items() if not {*with_parents(key)}.isdisjoint(keys)}
        objects = {path: v for path, v in self.objects.items() if not {*with_parents(path)}.isdisjoint(keys)}
        return Remembered(digests, {path: plain.identity(value) for path, value in objects.items()})

    def recall(self, keys: Collection[str], known: Remembered) -> None:
        """Takes what is at paths, and below, for what it was in an earlier first look of this process."""

        def is_below(key: str) -> bool:
            return not {*with_parents(key)}.isdisjoint(keys)

        kept = {key: value for key, value in self.digests.items() if not is_below(key)}
        self.digests = {**kept, **{key: value for key, value in known.digests.items() if is_below(key)}}
        there = {plain.identity(value): value for value in self._alive}
        self.objects = {path: value for path, value in self.objects.items() if not is_below(path)}
        self._paths = {key: path for key, path in self._paths.items() if not is_below(path)}
        for path, identity in known.objects.items():
            if is_below(path) and identity in there:
                self.objects[path] = there[identity]
                self._paths[id(there[identity])] = path

    def storing(self) -> None:
        """From now on, records are made to be stored."""
        self._put = set()

    def record(self, key: str, tensors: dict[str, SharedTensor]) -> JSON:
        """Returns what is stored of a place or of what an object holds.

        Raises:
            UnstorableError: It cannot be stored.
        """
        make, value, self._by_path = self._values[key]
        return make(self, value, key.removesuffix("/"), tensors)


def digest(record: JSON) -> str:
    """Returns a text that distinguishes a record from others, in another process too."""
    return xxhash.xxh3_64_hexdigest(repr(record).encode(errors="surrogatepass"))


def _bound(look: Look, value: Any, path: str, tensors: dict[str, SharedTensor]) -> JSON:
    return own_values.encode(value, path, tensors, look)

"""What training changes in the user's objects comes back, in place, or is reported as lost."""

from __future__ import annotations

import collections
import decimal
import enum
import fractions
import functools
import itertools
import logging
import random
import types
import typing
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.callbacks import EarlyStopping, ReduceLROnPlateau

from keras_dist_callbacks.state.own_objects import changes
from tests.support.carried_over import Act, Holder, Make, carried_over, looked_at, nothing, put, puts
from tests.support.tiny import CountSteps


class Flags(enum.Flag):
    """Several at once have no name of their own."""

    A = 1
    B = 2


class Stage(enum.Enum):
    """Members have an attribute that changes."""

    FIRST = 1
    SECOND = 2

    def __init__(self, value: int) -> None:
        self.visits = 0


@dataclass
class Fields:
    count: int = 0
    names: list[str] = field(default_factory=list)


class Seen(typing.NamedTuple):
    """Its empty default is one object in all of Python."""

    count: int = 0
    names: tuple[str, ...] = ()


class Late:
    """Only code of another class names it when training begins."""

    factor = 0.5


class Counted(list[int]):
    """A container of the user's, with an attribute."""

    total = 0


class Tags(set[int]):
    """A set with a slot, which makes it larger."""

    __slots__ = ("label",)


class Config(dict[str, Any]):
    """Items are attributes."""

    def __init__(self, *args: Any, **items: Any) -> None:
        super().__init__(*args, **items)
        self.__dict__ = self


class Counting:
    """Counts in its class, in slots and in a member of an Enum."""

    __slots__ = ("late", "stage", "value")
    total = 0

    def __init__(self) -> None:
        Counting.total = Stage.SECOND.visits = self.value = 0
        self.stage = Stage.FIRST

    def add(self) -> None:
        Counting.total += 1
        Stage.SECOND.visits += 2
        self.value += 1
        self.late, self.stage = 5, Stage.SECOND


PLAIN: dict[str, Any] = {
    **{"integer": 3, "large": 2**80, "number": 2.5, "nan": float("nan"), "complex": 2 - 1j, "text": "größe\ud800"},
    **{"bytes": b"\x00\xff", "tuple": (3, (4, "x")), "list": [Stage.FIRST.name, {"x": None}], "range": range(1, 9, 2)},
    **{"fraction": fractions.Fraction(1, 3), "decimal": decimal.Decimal("0.1"), "uuid": uuid.UUID(int=3)},
    **{"member": Stage.SECOND, "flag": Flags.A, "flags": Flags.A | Flags.B, "seen": Seen(2, ("a", "b"))},
    **{"slice": slice(1, None), "date": np.datetime64("2026-01-02T03"), "span": np.timedelta64(5, "ms")},
    **{"scalar": np.float32(2.5), "array": np.arange(5, dtype="int16"), "counts": collections.Counter(a=2, b=-1)},
    **{"ordered": collections.OrderedDict(b=[1], a={2: "x"}), "default": [collections.defaultdict(list, {3: [1.5]})]},
    **{"frozen": frozenset({3, 1}), "_auto_rate": 2, "_tf": 3},  # TensorFlow sets attributes whose names begin alike
}
KEYS = [0, "0", np.int64(0), np.str_("a"), Path("a"), (np.int64(0), 1), None]


def generators() -> dict[str, Any]:
    twister = np.random.Generator(np.random.MT19937(3))
    others = {"numpy": np.random.default_rng(3), "legacy": np.random.RandomState(3)}
    return {"python": random.Random(3), "twister": twister, **others}  # noqa: S311


def draw(holder: Any) -> None:
    holder.numpy.spawn(2)
    holder.of_tensorflow.uniform(())
    for name in generators():
        vars(holder)[name].random()


def containers() -> Holder:
    holder = Holder(short=[1.5], long=[], nested={"a": [{"n": 1}]}, by_number={1: "x"}, numbers={9, 3})
    put(holder, last=collections.deque([1], 3), counts=collections.Counter(), bytes=bytearray(b"ab"))
    return holder


def change_containers(holder: Any) -> None:
    holder.short.extend([2.5, 3.5])
    holder.long.extend(range(200))
    holder.nested["a"][0]["n"] += 1
    holder.nested["b"] = (1, [2])
    holder.by_number.update({2: "y", (1, 2): "z"})
    holder.numbers.update(range(0, 180, 3))
    holder.last.extend([2, 3, 4])
    holder.counts.update("aab")
    holder.bytes.append(7)


def change_containers_of_the_users(holder: Any) -> None:
    holder.present.append(3)
    holder.config.update(a=2, b=3)
    put(holder, counted=Counted([1, 2]), tags=Tags([3, 1]))
    holder.present.total, holder.counted.total, holder.tags.label = 7, 5, "a"
    holder.again = holder.counted


def arrays_by_keys(holder: Any) -> None:
    holder.rows = [{key: np.arange(3.0), np.int64(7): np.arange(4.0)} for key in KEYS]
    for key, known in zip(KEYS, holder.known, strict=True):
        known[key] = np.ones(2)


def tuples_of_arrays(n: int) -> dict[str, Any]:
    deep = {"a": collections.deque([(np.arange(n), (np.full(2, n), [n]), {"b": [n]})])}
    return {"deep": deep, "one_of_two": ((np.zeros(2), "same"), (np.full(2, n), "other"))}


def change_arrays(holder: Any) -> None:
    holder.batch = holder.data[2:].copy()
    holder.fortran += 1
    holder.parts[1][0] = 9.0
    holder.parts.append(1)


def share(holder: Any) -> None:
    inner, array = [1], np.ones(2)
    holder.shared.append(2)
    holder.pairs.extend(itertools.pairwise([np.full(3, float(n)) for n in range(3)]))
    put(holder, one=Holder(held=inner), two={"held": inner}, first=inner, array=array, again=array)


def bind_what_is_there(holder: Any) -> None:
    put(holder, current=holder.parts[1], fold=holder.folds[1][1], last=holder.queue.pop())
    holder.held.append(5)
    holder.last.rate = 3.0


def change_places(holder: Any) -> None:
    holder.log.append(1)
    holder.log = holder.source = holder.log[-1:]
    holder.front, holder.back = holder.back, holder.front
    holder.front[0] = 7.0


def make_more(holder: Any) -> None:
    """A ring of which one object was there, and objects by keys with slashes: what is kept for each weight, say."""
    first, second, third = holder.first, Holder(rate=7.0), Holder(rate=8.0)
    first.after, second.after, third.after = second, third, first
    first.before, second.before, third.before = third, first, second
    holder.by_path.update({"dense/kernel": Fields(3, ["a"]), "dense~/bias": Holder(last=[third])})


def code_with_state() -> Holder:
    """In defaults, closures and attributes of a function, behind a special method and in one with its own gradient."""
    count, seen, factors, box = 0, [], [1.0], [1.0]

    def update(step: int = 0, held: list[int] = [], *, more: list[int] = []) -> Any:  # noqa: B006 - what is tested
        nonlocal count
        count += 1
        for numbers in (seen, held, more):
            numbers.append(count)
        update.calls = getattr(update, "calls", 0) + 1  # type: ignore[attr-defined]
        return count, len(seen), len(held), len(more), update.calls  # type: ignore[attr-defined]

    class Rate:
        def __mul__(self, other: float) -> float:
            factors[0] *= 0.5
            return factors[0] * other

    @keras.ops.custom_gradient
    def scaled(x: Any) -> Any:
        box[0] *= 0.5
        return x * box[0], lambda *inner, upstream=None: upstream

    update.__defaults__, update.__kwdefaults__ = (0, []), {"more": []}
    return Holder(update=update, rate=Rate(), scaled=scaled)


def run_code(holder: Any) -> Any:
    return holder.update(), holder.rate * 1.0, float(holder.scaled(tf.constant(1.0)))


SETTINGS, PATIENCE, STOPS = types.ModuleType("settings_of_the_script"), [3], [3]


def settings() -> Holder:
    """In a module of which code reads it by a text, in a library's class and behind methods of some, and in globals."""
    SETTINGS.rate, keras.layers.Dense.calls_of_a_test = 0.1, 0  # type: ignore[attr-defined]
    PATIENCE[0] = STOPS[0] = 3
    globals().pop("BEST", None)

    def read() -> Any:
        return getattr(SETTINGS, "rate"), keras.layers.Dense.calls_of_a_test, BEST  # noqa: B009, F821

    return Holder(kind=Fields(), read=read, callbacks=[ReduceLROnPlateau(), EarlyStopping()])


def change_settings(holder: Any) -> None:
    SETTINGS.rate, keras.layers.Dense.calls_of_a_test = 0.5, 3  # type: ignore[attr-defined]
    PATIENCE[0], STOPS[0] = 2, 1
    globals()["BEST"] = Fields(3, ["a"])


def of_tensorflow() -> Holder:
    holder = Holder(tensor=tf.constant(3.0), variable=tf.Variable([0.0, 0.0]), layer=keras.layers.Dense(2))
    holder.layer.build((None, 3))
    holder.average = tf.train.ExponentialMovingAverage(0.5)
    holder.average.apply([holder.variable])
    return holder


def change_tensorflow(holder: Any) -> None:
    holder.tensor = holder.tensor * 0.5
    holder.variable.assign_add([1.0, 2.0])
    holder.average.apply([holder.variable])
    holder.layer.trainable = False


COMES_BACK: dict[str, tuple[Make, Act] | tuple[Make, Act, Act]] = {
    "plain values": (
        lambda: Holder(**{**dict.fromkeys(PLAIN), "seen": Seen(), "member": Stage.FIRST, "flag": Flags.B}),
        puts(**PLAIN),
    ),
    "pairs that were seen": (
        lambda: Holder(seen={(1, 2)}),
        lambda h: h.seen.update({(3, 4), (5, 6)}),
        lambda h: list(h.seen),
    ),
    "a deleted attribute": (lambda: Holder(value=1, pending=2), lambda h: vars(h).pop("pending")),
    "containers in place, with their order": (containers, change_containers, lambda h: (h, list(h.numbers))),
    "containers of the user's, with attributes and slots": (
        lambda: Holder(present=Counted(), config=Config(a=1), kind=Tags),
        change_containers_of_the_users,
    ),
    "dicts with a function for missing keys": (
        lambda: Holder(there=collections.defaultdict(lambda: 4), ones=lambda: 1),
        lambda h: (h.there.update(a=5), put(h, new=collections.defaultdict(h.ones, {"b": [2]}))),
        lambda h: (h, h.there["z"], "new" in vars(h) and h.new["z"]),
    ),
    "arrays by any keys": (lambda: Holder(rows=[], known=[collections.OrderedDict() for _ in KEYS]), arrays_by_keys),
    "tuples of new arrays": (lambda: Holder(**tuples_of_arrays(3)), lambda h: put(h, **tuples_of_arrays(5))),
    "parts of arrays, and their order in memory": (
        lambda: Holder(
            **{"data": (data := np.arange(4.0)), "batch": data[:2], "parts": [whole := np.arange(6.0), whole[2:]]},
            fortran=np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        ),
        change_arrays,
        lambda h: (h, h.fortran.strides),
    ),
    "what several new objects share": (
        lambda: Holder(shared=(one := [1]), one=one, two=None, first=one, pairs=collections.deque(maxlen=9)),
        share,
    ),
    "objects of the script that are bound elsewhere": (
        lambda: Holder(
            **{"parts": (parts := [[1], [2]]), "held": parts[1], "current": None, "last": None},
            **{"folds": (folds := [(np.zeros(3), np.arange(4.0) + n) for n in range(3)]), "fold": folds[0][1]},
            **{"queue": (queue := [Holder(rate=1.0), Holder(rate=2.0)]), "registered": queue[1]},
        ),
        bind_what_is_there,
    ),
    "objects that leave their places to others": (
        lambda: Holder(log=(log := [0]), history=log, source=log, front=np.zeros(2), back=np.ones(2)),
        change_places,
    ),
    "new objects, that refer to each other and by keys with slashes": (
        lambda: Holder(first=Holder(rate=1.0), by_path={}, kind=Fields()),
        make_more,
    ),
    "objects that get a class that only code has named": (
        lambda: Holder(phase=Fields(), other=Fields(), read=lambda: Late.factor),
        lambda h: (put(h, phase=Late()), setattr(h.other, "__class__", Late)),
    ),
    "attributes of classes and of members of Enums, and slots": (
        lambda: Holder(counting=Counting(), next={(Stage.FIRST, "end"): Stage.SECOND}),
        lambda h: h.counting.add(),
        lambda h: (h, Counting.total, Stage.SECOND.visits),
    ),
    "state of code": (code_with_state, lambda h: [run_code(h) for _ in range(3)], run_code),
    "a method that is bound by hand": (
        lambda: Holder(first=Holder(scaled=lambda self: 2 * self.scale), second=Holder(scale=3.0), method=float),
        lambda h: put(h, method=types.MethodType(h.first.scaled, h.second)),
        lambda h: h.method(),
    ),
    "settings that code reads": (
        settings,
        change_settings,
        lambda h: (SETTINGS.rate, keras.layers.Dense.calls_of_a_test, *PATIENCE, *STOPS, globals().get("BEST")),
    ),
    "what TensorFlow and Keras hold": (
        of_tensorflow,
        change_tensorflow,
        lambda h: (h.tensor, h.variable, h.average.average(h.variable), len(h.layer.trainable_variables)),
    ),
    "random generators": (
        lambda: Holder(of_tensorflow=tf.random.Generator.from_seed(3), **generators()),
        draw,
        lambda h: (h, h.numpy.spawn(1)),
    ),
    "random generators that training has made": (Holder, lambda h: put(h, **generators())),
}


@pytest.mark.parametrize("name", COMES_BACK)
def test_what_training_changes_comes_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.layers.Dense, "calls_of_a_test", 0, raising=False)  # the settings of a row
    monkeypatch.setitem(globals(), "BEST", None)
    monkeypatch.setattr(ReduceLROnPlateau, "on_epoch_end", lambda *_: PATIENCE[0])
    monkeypatch.setattr(EarlyStopping, "on_epoch_end", functools.wraps(EarlyStopping.on_epoch_end)(lambda *_: STOPS[0]))
    found = carried_over(*COMES_BACK[name])
    assert (found.lost, found.unknown) == ({}, {})
    assert found.theirs == found.ours != found.before


ITERATORS: list[Make] = [
    *(lambda: iter(np.linspace(0, 1, 9)), lambda: iter([1, 2, 3]), lambda: iter((1, 2, 3)), lambda: iter(range(1, 5))),
    *(lambda: reversed([1, 2, 3]), lambda: itertools.count(3), lambda: itertools.count(1.5, 0.5)),
]
ADVANCED = "an iterator was advanced, and its position is not saved; keep a number instead"
SHARED = "it shared memory with another array"
TEXTS = "texts in a tensor or variable are not saved"
NOT_FOUND = "was not found in this run"
LOST: dict[str, tuple[Make, Act, str]] = {
    **{f"iterator {number}": (make, lambda h: next(h.value), ADVANCED) for number, make in enumerate(ITERATORS)},
    "what asks an iterator": (lambda: iter([1, 2]).__next__, lambda h: h.value(), ADVANCED),
    "the counter of a defaultdict": (
        lambda: collections.defaultdict(itertools.count().__next__),
        lambda h: h.value.default_factory(),
        ADVANCED,
    ),
    "a Python generator": (lambda: (n for n in range(3)), lambda h: next(h.value), "a Python generator was advanced"),
    "a new object with a generator": (lambda: None, lambda h: put(h, value=Holder(of=(n for n in "ab"))), NOT_FOUND),
    "a callback whose class is there": (lambda: [CountSteps], lambda h: h.value.append(CountSteps()), NOT_FOUND),
    "a callback of Keras": (lambda: None, lambda h: put(h, value=EarlyStopping()), NOT_FOUND),
    "a dict of attributes": (lambda: [Config], lambda h: h.value.append(Config(a=1)), "a new Config cannot be made"),
    "a new array of objects": (lambda: None, puts(value=np.array([Holder()])), "an array of object cannot be stored"),
    "another constant of a library": (lambda: tf.float16, puts(value=tf.float32), f"tf.float32 {NOT_FOUND}"),
    "a new random generator of TensorFlow": (
        lambda: None,
        lambda h: put(h, value=tf.random.Generator.from_seed(3)),
        "a variable that training has made",
    ),
    "arrays that share memory": (list, lambda h: h.value.extend([whole := np.zeros(4), whole[1:]]), SHARED),
    "parts of what is gone": (lambda: (), lambda h: put(h, value=((gone := np.zeros(4))[:3], gone[2:])), SHARED),
    "of several types": (Holder, lambda h: put(h.value, a=(whole := np.zeros(4)), b=whole.view("int64")), SHARED),
    "a lookup table": (
        lambda: tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0),
        lambda h: h.value.insert(tf.constant([3], tf.int64), [2.5]),
        "a lookup table was changed",
    ),
    "a tensor of texts": (lambda: tf.constant(["a"]), lambda h: put(h, value=tf.constant(["b"])), TEXTS),
    "a variable of texts": (lambda: tf.Variable(["a"]), lambda h: h.value.assign(["b"]), TEXTS),
}


@pytest.mark.parametrize("name", LOST)
def test_what_cannot_be_put_back_is_reported(name: str) -> None:
    make, act, words = LOST[name]
    assert carried_over(lambda: Holder(value=make()), nothing).lost == {}
    found = carried_over(lambda: Holder(value=make()), act)
    assert {path.partition("/")[0] for path in found.lost} == {"value"}
    assert words in str(found.lost)
    assert (found.theirs == found.before) == (words != SHARED)


def test_an_array_in_a_file_stays_in_the_file(tmp_path: Path) -> None:
    files = (str(tmp_path / name) for name in ("before", "ours", "theirs"))
    found = carried_over(
        lambda: Holder(value=np.memmap(next(files), "float32", "w+", shape=(3,))),
        lambda h: h.value.__setitem__(1, 2.0),
    )
    assert (found.theirs, found.lost) == (found.ours, {})
    assert list(np.fromfile(tmp_path / "theirs", "float32")) == [0.0, 2.0, 0.0]


def test_an_object_for_output_that_training_made_stays_the_one_that_is_there() -> None:
    ours, theirs = Holder(kind=logging.StreamHandler), Holder(kind=logging.StreamHandler)
    start = looked_at(ours)
    ours.handler, theirs.handler = logging.StreamHandler(), (there := logging.StreamHandler())
    records = changes.changes_between(start, looked_at(ours, start)).records
    assert changes.restore(records, {}, lambda: looked_at(theirs)) == {}
    assert theirs.handler is there
    assert list(changes.restore(records, {}, lambda: looked_at(Holder()))) == ["callback Holder()/handler"]


@pytest.mark.parametrize("place", ["gone/deeper", "__class__", "__dict__", "__init__"])
def test_a_place_that_is_not_there_or_has_a_special_name_is_reported_and_not_set(place: str) -> None:
    theirs = Holder(value=1)
    failed = changes.restore({f"callback Holder()/{place}": [5, ""]}, {}, lambda: looked_at(theirs))
    assert list(failed) == [f"callback Holder()/{place}"]
    assert (type(theirs), vars(theirs)) == (Holder, {"value": 1})

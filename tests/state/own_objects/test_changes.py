"""What training changes in the user's objects comes back, in place, or is reported as lost."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import decimal
import enum
import fractions
import functools
import itertools
import json
import logging
import multiprocessing
import random
import threading
import time
import types
import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks.state.own_objects import changes
from keras_dist_callbacks.state.own_objects.kinds import look_at
from keras_dist_callbacks.state.own_objects.look import Look, Policy, Root
from keras_dist_callbacks.state.own_objects.part import is_called

POLICY = Policy(is_asserted=lambda value: False, own_state=lambda value: None, saved_keys=frozenset)
Action = Callable[[Any], None]


class Phase(enum.Enum):
    WARM = 1
    COLD = 2


@dataclass
class Fields:
    count: int = 0
    names: list[str] = field(default_factory=list)


class Holder:
    """What a script's callback is."""

    def __init__(self, **state: Any) -> None:
        vars(self).update(state)


def looked_at(holder: Any, start: Look | None = None) -> Look:
    return look_at({"callback Holder()": Root(holder)}, POLICY, start=start)


class Flags(enum.Flag):
    """Several at once have no name of their own."""

    A = 1
    B = 2


def carried_over(make: Callable[[], Any], act: Action) -> tuple[Any, Any, dict[str, str]]:
    """An object that training has changed, another process' that was restored, and what of it was lost."""
    ours = make()
    start = looked_at(ours)
    act(ours)
    now = looked_at(ours, start)
    found = changes.changes_between(start, now)
    records = json.loads(json.dumps(found.records))
    arrays = {name: tensor.array() for name, tensor in found.tensors.items()}
    theirs = make()
    begun = looked_at(theirs)
    failed, _ = changes.restore_and_compare(records, arrays, lambda: looked_at(theirs, begun))
    return ours, theirs, {**found.lost, **failed}


def _set(**values: Any) -> Action:
    return lambda holder: vars(holder).update(values)


def _extend(holder: Any) -> None:
    holder.value.extend([2.5, 3.5])


def _nested(holder: Any) -> None:
    holder.value["a"][0]["n"] += 1
    holder.value["b"] = (1, [2])


@pytest.mark.parametrize(
    ("first", "act"),
    [
        (0, _set(value=3)),
        (None, _set(value=2.5)),
        (1.0, _set(value=float("nan"))),
        ("", _set(value="größe\ud800")),
        (0, _set(value=2**80)),
        (b"", _set(value=b"\x00\xff")),
        (1j, _set(value=2 - 1j)),
        ([1.5], _extend),
        ([], lambda holder: holder.value.extend(range(200))),
        ({"a": [{"n": 1}]}, _nested),
        ({1: "x"}, lambda holder: holder.value.update({2: "y", (1, 2): "z"})),
        (set(), lambda holder: holder.value.update({3, 1})),
        (collections.deque([1], 3), lambda holder: holder.value.extend([2, 3, 4])),
        (collections.Counter(), lambda holder: holder.value.update("aab")),
        (None, _set(value=collections.Counter({"a": 2, "b": -1}))),
        (None, _set(value=collections.OrderedDict([("b", [1]), ("a", {2: "x"})]))),
        (None, _set(value={"of": collections.defaultdict(list, {3: [1.5]})})),
        (bytearray(b"ab"), lambda holder: holder.value.append(7)),
        (np.zeros(3), lambda holder: holder.value.__setitem__(1, 4.0)),
        (np.float32(1), _set(value=np.float32(2.5))),
        (np.zeros(2), _set(value=np.arange(5, dtype="int16"))),
        (Phase.WARM, _set(value=Phase.COLD)),
        ((1, 2), _set(value=(3, (4, "x")))),
        (None, _set(value=[Phase.WARM.name, {"x": None}])),
    ],
    ids=lambda value: None if callable(value) else repr(value)[:30],
)
def test_plain_values_come_back_with_their_types(first: Any, act: Action) -> None:
    ours, theirs, lost = carried_over(lambda: Holder(value=json_copy(first), other=1), act)
    assert not lost
    assert repr(theirs.value) == repr(ours.value)
    assert type(theirs.value) is type(ours.value)


def json_copy(value: Any) -> Any:
    """Each process makes its own first value."""
    import copy

    return copy.deepcopy(value)


def test_what_did_not_change_is_not_saved() -> None:
    holder = Holder(value=[1, {"a": np.zeros(2)}], fields=Fields(), rng=np.random.default_rng(1))
    start = looked_at(holder)
    found = changes.changes_between(start, looked_at(holder, start))
    assert found.records == {}
    assert found.lost == {}


def test_containers_stay_the_objects_that_others_hold() -> None:
    def make() -> Holder:
        shared = [1]
        return Holder(value=shared, same=shared)

    _, theirs, lost = carried_over(make, lambda holder: holder.value.append(2))
    assert not lost
    assert theirs.same == [1, 2]
    assert theirs.same is theirs.value


def test_an_attribute_bound_to_another_object_is_bound_to_the_same_one_again() -> None:
    def act(holder: Any) -> None:
        holder.current = holder.parts[1]
        holder.current.append(5)

    def make() -> Holder:
        parts = [[1], [2]]
        return Holder(current=None, parts=parts, held=parts[1])

    _, theirs, lost = carried_over(make, act)
    assert not lost
    assert theirs.current is theirs.parts[1] is theirs.held
    assert theirs.parts == [[1], [2, 5]]


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (lambda: random.Random(3), lambda rng: rng.random()),  # noqa: S311
        (lambda: np.random.default_rng(3), lambda rng: rng.random()),
        (lambda: np.random.Generator(np.random.MT19937(3)), lambda rng: rng.random()),
        (lambda: np.random.RandomState(3), lambda rng: rng.random_sample()),
        (lambda: tf.random.Generator.from_seed(3), lambda rng: float(rng.uniform(()))),
    ],
    ids=["random.Random", "numpy", "numpy's Mersenne Twister", "RandomState", "tf.random.Generator"],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_random_generators_draw_what_they_would_have(
    make: Callable[[], Any], draw: Callable[[Any], float], is_late: bool
) -> None:
    def act(holder: Any) -> None:
        if is_late:
            holder.rng = make()
        draw(holder.rng)

    ours, theirs, lost = carried_over(lambda: Holder(rng=None if is_late else make()), act)
    if is_late and isinstance(ours.rng, tf.random.Generator):
        assert lost
        return
    assert not lost
    assert [draw(theirs.rng) for _ in range(3)] == [draw(ours.rng) for _ in range(3)]


@pytest.mark.parametrize(
    ("make", "act"),
    [
        (lambda: Holder(value=(n for n in range(3))), lambda holder: next(holder.value)),
        (lambda: Holder(value=None), _set(value=Holder(inner=(n for n in range(3))))),
        (lambda: Holder(value=None), _set(value=keras.callbacks.EarlyStopping())),
        (lambda: Holder(value=None), _set(value=np.array([Holder()], object))),
    ],
    ids=["generator", "new object that holds one", "new object of Keras", "array of objects"],
)
def test_what_cannot_be_stored_is_reported(make: Callable[[], Any], act: Action) -> None:
    ours = make()
    start = looked_at(ours)
    act(ours)
    assert looked_at(ours, start).unknown or carried_over(make, act)[2]


def test_an_array_that_several_places_hold_is_one_array_again() -> None:
    def act(holder: Any) -> None:
        states = [np.full(3, float(n)) for n in range(3)]
        holder.memory.extend(itertools.pairwise(states))

    _, theirs, lost = carried_over(lambda: Holder(memory=collections.deque(maxlen=9)), act)
    assert not lost
    assert theirs.memory[0][1] is theirs.memory[1][0]
    assert [pair[0][0] for pair in theirs.memory] == [0.0, 1.0]


def test_an_array_that_is_replaced_leaves_what_it_was_a_view_of() -> None:
    def act(holder: Any) -> None:
        holder.batch = holder.data[2:].copy()
        holder.kept[0] = 5.0

    def make() -> Holder:
        data = np.arange(4.0)
        more = np.zeros(4)
        return Holder(data=data, batch=data[:2], more=more, kept=more[:2])

    ours, theirs, lost = carried_over(make, act)
    assert lost == {}
    assert [list(map(list, vars(holder).values())) for holder in (ours, theirs)] == 2 * [
        [[0.0, 1.0, 2.0, 3.0], [2.0, 3.0], [5.0, 0.0, 0.0, 0.0], [5.0, 0.0]]
    ]
    assert np.shares_memory(theirs.more, theirs.kept)


class Seen(typing.NamedTuple):
    """Defaults are shared by all of Python."""

    count: int = 0
    names: tuple[str, ...] = ()


def test_a_named_tuple_with_an_empty_default_comes_back() -> None:
    def act(holder: Any) -> None:
        holder.seen = Seen(2, ("a", "b"))

    _, theirs, lost = carried_over(lambda: Holder(seen=Seen()), act)
    assert not lost
    assert theirs.seen == Seen(2, ("a", "b"))
    assert type(theirs.seen) is Seen


@pytest.mark.parametrize(
    "value",
    [
        *(fractions.Fraction(1, 3), decimal.Decimal("0.1"), range(1, 9, 2), slice(1, None), uuid.UUID(int=3)),
        *(np.datetime64("2026-01-02T03"), np.timedelta64(5, "ms"), Flags.A | Flags.B, Flags.A),
    ],
    ids=repr,
)
def test_plain_values_of_more_kinds_come_back(value: Any) -> None:
    _, theirs, lost = carried_over(lambda: Holder(value=None, known=Flags.A), lambda holder: _set(value=value)(holder))
    assert not lost
    assert theirs.value == value
    assert type(theirs.value) is type(value)


def test_a_function_that_remembers_results_is_unknown_only_when_it_has_computed_more() -> None:
    @functools.lru_cache
    def square(number: int) -> int:
        return number**2

    square(2)
    holder = Holder(square=square)
    start = looked_at(holder)
    square(2)
    assert looked_at(holder, start).unknown == start.unknown == {}
    square(3)
    assert looked_at(holder, start).unknown == {"callback Holder()/square": "a function that remembers its results"}


def test_a_function_that_forgets_results_is_unknown() -> None:
    @functools.lru_cache
    def square(number: int) -> int:
        return number**2

    found = looked_at(Holder(forget=lambda: square.cache_clear()))
    assert list(found.code.conditions.values()) == ["it uses cache_clear"]


def test_an_array_in_a_file_stays_in_the_file(tmp_path: Path) -> None:
    files = map(str, [tmp_path / "ours", tmp_path / "theirs"])

    def make() -> Holder:
        return Holder(value=np.memmap(next(files), "float32", "w+", shape=(3,)))

    def act(holder: Any) -> None:
        holder.value[1] = 2.0

    ours, theirs, lost = carried_over(make, act)
    assert (type(theirs.value), lost) == (np.memmap, {})
    assert list(np.fromfile(tmp_path / "theirs", "float32")) == list(ours.value) == [0.0, 2.0, 0.0]


def test_a_list_that_is_replaced_leaves_the_one_that_others_hold() -> None:
    held = []

    def make() -> Holder:
        held.append([1, 2])
        return Holder(value=held[-1])

    theirs = carried_over(make, lambda holder: _set(value=[3, 4])(holder))[1]
    assert (theirs.value, held) == ([3, 4], [[1, 2], [1, 2]])


@pytest.mark.parametrize(
    "plan",
    [
        lambda n: [(np.arange(n), n)],
        lambda n: [(np.arange(3) + n, ("a", n), {"b": [n]})],
        lambda n: {"a": collections.deque([(0, (np.full(2, n), [n]))])},
        lambda n: ((np.zeros(2), "same"), (np.full(2, n), "other")),
    ],
)
def test_tuples_of_arrays_that_are_made_again_come_back(plan: Callable[[int], Any]) -> None:
    ours, theirs, lost = carried_over(lambda: Holder(plan=plan(3)), lambda holder: _set(plan=plan(5))(holder))
    assert lost == {}
    assert repr(theirs.plan) == repr(ours.plan)


def test_an_object_for_output_that_training_made_stays_the_one_that_is_there() -> None:
    def named(holder: Any) -> Holder:
        holder.handler = logging.StreamHandler()
        return holder

    theirs = Holder(kind=logging.StreamHandler)
    ours = Holder(kind=logging.StreamHandler)
    start = looked_at(ours)
    records = changes.changes_between(start, looked_at(named(ours), start)).records
    handler = named(theirs).handler
    assert changes.restore(records, {}, lambda: looked_at(theirs)) == {}
    assert theirs.handler is handler
    assert list(changes.restore(records, {}, lambda: looked_at(Holder()))) == ["callback Holder()/handler"]


def test_library_constants_of_one_type_are_distinguished() -> None:
    lost = carried_over(lambda: Holder(dtype=tf.float16), _set(dtype=tf.float32))[2]
    assert lost == {"callback Holder()/dtype": "tf.float32 was not found in this run"}


def test_a_new_object_is_made_again() -> None:
    act = _set(value=Holder(count=3, inner=Holder(rates=[0.5])))
    _, theirs, lost = carried_over(lambda: Holder(value=None), act)
    assert not lost
    assert (theirs.value.count, theirs.value.inner.rates) == (3, [0.5])


def test_new_objects_under_keys_with_slashes_are_made_again() -> None:
    """Such as what is kept for each weight, by its path."""
    act = _set(value={"dense/kernel": Holder(count=3), "dense~/bias": Holder(count=4)})
    _, theirs, lost = carried_over(lambda: Holder(value=None), act)
    assert not lost
    assert {key: held.count for key, held in theirs.value.items()} == {"dense/kernel": 3, "dense~/bias": 4}


class Link:
    """Of a ring: each knows both of its neighbours."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.before = self.after = self

    def insert(self, rate: float) -> Link:
        made = Link(rate)
        made.before, made.after = self, self.after
        self.after.before = self.after = made
        return made


def test_new_objects_that_refer_to_each_other_are_made_again() -> None:
    def make() -> Holder:
        holder = Holder(first=Link(1.0), current=None, by_name={})
        holder.first.insert(3.0).insert(2.0)
        return holder

    def insert(holder: Holder) -> None:
        holder.current = holder.first.after.insert(7.0)
        holder.by_name["last"] = [holder.current.insert(8.0)]

    def rates(link: Link) -> list[float]:
        return [link.rate, link.after.rate, link.after.after.rate, link.after.after.after.rate, link.before.rate]

    ours, theirs, lost = carried_over(make, insert)
    assert lost == {}
    assert rates(theirs.first) == rates(ours.first) == [1.0, 3.0, 7.0, 8.0, 2.0]
    assert theirs.current is theirs.first.after.after
    assert theirs.by_name["last"][0] is theirs.current.after
    assert theirs.current.after.before is theirs.current


class Early:
    def rates(self) -> list[float]:
        return [0.1, Late.factor]


class Late:
    factor = 0.5

    def rates(self) -> list[float]:
        return [0.01]


def test_a_class_that_only_another_object_names_at_the_start_is_not_a_change() -> None:
    _, theirs, lost = carried_over(lambda: Holder(phase=Early()), _set(phase=Late()))
    assert lost == {}
    assert theirs.phase.rates() == [0.01]


def test_an_object_that_was_moved_is_the_same_object_again() -> None:
    def make() -> Holder:
        holder = Holder(queue=[Holder(rate=1.0), Holder(rate=2.0)], last=None)
        holder.registered = holder.queue[1]
        return holder

    def take(holder: Holder) -> None:
        holder.last = holder.queue.pop()
        holder.last.rate = 3.0

    _, theirs, lost = carried_over(make, take)
    assert lost == {}
    assert theirs.last is theirs.registered
    assert (theirs.last.rate, len(theirs.queue)) == (3.0, 1)


def test_a_new_dataclass_is_made_again() -> None:
    ours, theirs, lost = carried_over(lambda: Holder(first=Fields(), value=None), _set(value=Fields(3, ["a"])))
    assert not lost
    assert theirs.value == ours.value == Fields(3, ["a"])


def test_state_of_functions_comes_back() -> None:
    def make() -> Holder:
        count, seen = 0, []

        def update(step: int = 0, box: list[int] = []) -> int:  # noqa: B006 - what is tested
            nonlocal count
            count += 1
            seen.append(count)
            box.append(count)
            update.calls = getattr(update, "calls", 0) + 1  # type: ignore[attr-defined]
            return count + len(seen) + len(box) + update.calls  # type: ignore[attr-defined]

        update.__defaults__ = (0, [])
        return Holder(update=update)

    ours, theirs, lost = carried_over(make, lambda holder: [holder.update() for _ in range(3)])
    assert not lost
    assert theirs.update() == ours.update() == 16


class Counted(list[int]):
    """A container of the user's, with an attribute."""

    total = 0


def test_a_container_of_the_users_comes_back_with_its_attributes() -> None:
    def act(holder: Any) -> None:
        holder.value.append(3)
        holder.value.total = 7

    _, theirs, lost = carried_over(lambda: Holder(value=Counted()), act)
    assert not lost
    assert (type(theirs.value), list(theirs.value), theirs.value.total) == (Counted, [3], 7)


def test_attributes_of_members_of_an_enum_come_back() -> None:
    class Stage(enum.Enum):
        FIRST = 1
        SECOND = 2

        def __init__(self, value: int) -> None:
            self.visits = 0

    def make() -> Holder:
        for stage in Stage:
            stage.visits = 0
        return Holder(stage=Stage.FIRST, next={(Stage.FIRST, "end"): Stage.SECOND})

    def act(holder: Any) -> None:
        Stage.SECOND.visits += 2
        holder.stage = Stage.SECOND

    _, theirs, lost = carried_over(make, act)
    assert not lost
    assert theirs.stage is Stage.SECOND
    assert Stage.SECOND.visits == 2


def test_a_method_bound_to_an_object_by_hand_is_bound_again() -> None:
    def scaled(self: Any, value: float) -> float:
        return float(self.scale * value)

    make = lambda: Holder(first=Holder(scale=2.0, scaled=scaled), second=Holder(scale=3.0), method=None)  # noqa: E731
    _, theirs, lost = carried_over(
        make, lambda holder: _set(method=types.MethodType(holder.first.scaled, holder.second))(holder)
    )
    assert not lost
    assert theirs.method(2.0) == 6.0


def test_freezing_a_layer_freezes_its_variables() -> None:
    def make() -> Any:
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
        return Holder(layer=layer)

    def act(holder: Any) -> None:
        holder.layer.trainable = False

    _, theirs, lost = carried_over(make, act)
    assert not lost
    assert theirs.layer.trainable_variables == []
    assert len(theirs.layer.non_trainable_variables) == 2


def test_class_attributes_and_slots_come_back() -> None:
    class Slotted:
        __slots__ = ("late", "value")

        def __init__(self) -> None:
            self.value = 0

    class Shared(Holder):
        total = 0

        def add(self) -> None:
            Shared.total += 1
            self.part.value += 1
            self.part.late = 5

    ours = Shared(part=Slotted())
    start = looked_at(ours)
    ours.add()
    found = changes.changes_between(start, looked_at(ours, start))
    assert not found.lost
    Shared.total = 0
    theirs = Shared(part=Slotted())
    assert changes.restore(found.records, {}, lambda: looked_at(theirs)) == {}
    assert (Shared.total, theirs.part.value, theirs.part.late) == (1, 1, 5)


def test_connections_event_loops_and_threads_are_no_state() -> None:
    async def connect() -> Any:
        return aiohttp.ClientSession()

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(connect())
    holder = Holder(loop=loop, session=session, timer=threading.Timer(60.0, print), lock=threading.Condition())
    start = looked_at(holder)
    loop.call_later(60.0, print)
    session.headers["authorization"] = "token"
    now = looked_at(holder, start)
    found = changes.changes_between(start, now)
    assert not found.records
    assert not found.lost
    assert not now.unknown
    loop.run_until_complete(session.close())
    loop.close()


def test_an_event_that_training_sets_is_a_condition() -> None:
    holder = Holder(event=threading.Event())
    start = looked_at(holder)
    assert not looked_at(holder, start).unknown
    holder.event.set()
    assert list(looked_at(holder, start).unknown) == ["callback Holder()/event"]


def test_what_a_class_of_the_users_adds_to_one_for_output_is_unknown() -> None:
    class Handler(logging.Handler):
        count = 0

    assert list(looked_at(Holder(handler=Handler())).unknown) == ["callback Holder()/handler"]
    assert not looked_at(Holder(handler=logging.StreamHandler())).unknown


def test_an_attribute_that_training_deleted_is_deleted_again() -> None:
    _, theirs, lost = carried_over(lambda: Holder(value=1, pending=2), lambda holder: vars(holder).pop("pending"))
    assert not lost
    assert not hasattr(theirs, "pending")


def test_tensors_and_variables_come_back() -> None:
    def act(holder: Any) -> None:
        holder.tensor = holder.tensor * 0.5
        holder.variable.assign_add([1.0, 2.0])

    ours, theirs, lost = carried_over(lambda: Holder(tensor=tf.constant(3.0), variable=tf.Variable([0.0, 0.0])), act)
    assert not lost
    assert float(theirs.tensor) == float(ours.tensor) == 1.5
    assert theirs.variable.numpy().tolist() == [1.0, 2.0]


def test_a_mutable_table_that_training_changes_is_not_restored() -> None:
    def make() -> Holder:
        return Holder(table=tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0))

    keys = tf.constant([3], tf.int64)
    _, _, lost = carried_over(make, lambda holder: holder.table.insert(keys, [2.5]))
    assert "a lookup table was changed" in lost["callback Holder()/table"]
    assert not carried_over(make, lambda holder: None)[2]


@pytest.mark.parametrize("make", [lambda: tf.constant(["a"]), lambda: tf.Variable(["a"])], ids=["tensor", "variable"])
def test_texts_of_tensorflow_that_training_changes_are_not_restored(make: Callable[[], Any]) -> None:
    def act(holder: Any) -> None:
        if isinstance(holder.text, tf.Variable):
            holder.text.assign(["b"])
        else:
            holder.text = tf.constant(["b"])

    assert "texts in a tensor" in carried_over(lambda: Holder(text=make()), act)[2]["callback Holder()/text"]
    assert not carried_over(lambda: Holder(text=make()), lambda holder: None)[2]


def test_a_path_that_this_process_does_not_have_is_reported_and_nothing_else_is_touched() -> None:
    theirs = Holder(value=1)
    failed = changes.restore({"callback Holder()/gone/deeper": [5, ""]}, {}, lambda: looked_at(theirs))
    assert list(failed) == ["callback Holder()/gone/deeper"]
    assert vars(theirs) == {"value": 1}


@pytest.mark.parametrize("name", ["__class__", "__dict__", "__init__"])
def test_special_names_are_not_restored(name: str) -> None:
    theirs = Holder(value=1)
    assert changes.restore({f"callback Holder()/{name}": [5, ""]}, {}, lambda: looked_at(theirs))
    assert type(theirs) is Holder


def test_a_setting_of_a_module_that_is_named_by_a_text_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Holder:
        config = types.ModuleType("settings_of_the_script")
        config.rate = 0.1  # type: ignore[attr-defined]
        make.__globals__["config_of_a_test"] = config
        return Holder(read=lambda: getattr(config_of_a_test, "rate"))  # type: ignore[name-defined]  # noqa: B009, F821

    def act(holder: Holder) -> None:
        make.__globals__["config_of_a_test"].rate = 0.5

    monkeypatch.setitem(make.__globals__, "config_of_a_test", None)
    _, theirs, lost = carried_over(make, act)
    assert lost == {}
    assert theirs.read() == 0.5


def test_state_of_special_methods_comes_back() -> None:
    def make() -> Holder:
        factors = [1.0]

        class Rate:
            def __mul__(self, other: float) -> float:
                factors[0] *= 0.5
                return factors[0] * other

        return Holder(rate=Rate())

    _, theirs, lost = carried_over(make, lambda holder: holder.rate * 1.0)
    assert lost == {}
    assert theirs.rate * 1.0 == 0.25


@pytest.mark.parametrize(
    "make", [lambda: itertools.chain([1]), lambda: multiprocessing.Value("i", 0), lambda: threading.local()]
)
def test_what_cannot_be_looked_into_is_unknown(make: Callable[[], Any]) -> None:
    assert looked_at(Holder(value=make())).unknown


def test_what_the_user_puts_into_a_librarys_class_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.layers.Dense, "calls_of_a_test", 0, raising=False)

    def make() -> Holder:
        keras.layers.Dense.calls_of_a_test = 0
        return Holder(read=lambda: keras.layers.Dense.calls_of_a_test)

    def act(holder: Holder) -> None:
        keras.layers.Dense.calls_of_a_test = 3

    _, theirs, lost = carried_over(make, act)
    assert lost == {}
    assert theirs.read() == 3


@pytest.mark.parametrize("first", [0, "0", np.int64(0), np.str_("a"), Path("a"), (np.int64(0), 1), None])
def test_arrays_in_a_dict_come_back_whatever_its_keys_are(first: Any) -> None:
    def act(holder: Any) -> None:
        holder.rows = {first: np.arange(3.0), np.int64(7): np.arange(4.0)}
        holder.known[first] = np.ones(2)

    ours, theirs, lost = carried_over(lambda: Holder(rows={}, known=collections.OrderedDict()), act)
    assert not lost
    for name in ("rows", "known"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert [(type(key), key) for key in one] == [(type(key), key) for key in other]
        assert all(np.array_equal(one[key], other[key]) for key in one)


def test_an_array_of_a_tuple_that_another_attribute_holds_is_shared_again() -> None:
    def make() -> Any:
        folds = [(np.arange(3.0), np.arange(4.0) + number) for number in range(3)]
        return Holder(folds=folds, held=folds[0][1])

    ours, theirs, lost = carried_over(make, lambda holder: setattr(holder, "held", holder.folds[1][1]))
    assert not lost
    assert theirs.held is theirs.folds[1][1]
    assert repr(theirs.folds) == repr(ours.folds)


def test_keys_of_the_same_text_are_a_condition() -> None:
    holder = Holder(rows={1: np.zeros(2), "1": np.zeros(2)})
    assert looked_at(holder).unknown == {"callback Holder()/rows": "a dict with keys that have the same text"}


def test_a_thread_pool_works_after_a_resume() -> None:
    def act(holder: Any) -> None:
        holder.count = holder.pool.submit(lambda: 5).result()

    _, theirs, lost = carried_over(lambda: Holder(pool=concurrent.futures.ThreadPoolExecutor(1), count=0), act)
    assert not lost
    assert theirs.count == 5
    assert theirs.pool.submit(lambda: 7).result(timeout=60) == 7


def test_what_orders_threads_is_a_condition() -> None:
    holder = Holder(semaphore=threading.Semaphore(2), barrier=threading.Barrier(1))
    assert set(looked_at(holder).unknown) == {"callback Holder()/semaphore", "callback Holder()/barrier"}


class Trainer:
    """Holds all that a script does, as many do; a callback uses one method."""

    def __init__(self) -> None:
        self.rate = 0.1

    def evaluate(self) -> Any:
        return keras.models.load_model("final.keras")

    def at(self, epoch: int) -> float:
        return self.rate / (1 + epoch)


class AskingTrainer(Trainer):
    def at(self, epoch: int) -> float:
        return float(self.evaluate().optimizer.learning_rate)


@pytest.mark.parametrize(("kind", "is_said"), [(Trainer, False), (AskingTrainer, True)])
def test_a_method_that_no_code_names_is_no_condition(kind: Any, is_said: bool) -> None:
    found = looked_at(Holder(schedule=kind().at))
    said = [path for path in found.code.conditions if is_called(path, found)]
    assert bool(said) == is_said, found.code.conditions


class Saving(Trainer):
    def noted(self, epoch: int) -> None:
        keras.models.load_model("final.keras")


@pytest.mark.parametrize("take", [lambda trainer: trainer.noted, lambda trainer: Saving.noted])
def test_a_method_that_another_object_holds_may_be_called(take: Callable[[Any], Any]) -> None:
    trainer = Saving()
    found = looked_at(Holder(trainer=trainer, deep=[[[[Holder(hook=take(trainer))]]]]))
    assert [path for path in found.code.conditions if is_called(path, found)], found.code.conditions


def test_a_walk_over_a_model_asks_once_which_variables_are_saved() -> None:
    asked = []

    def keys() -> set[int]:
        asked.append(1)
        return set()

    model = keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(2) for _ in range(5))])
    policy = Policy(is_asserted=lambda value: False, own_state=lambda value: None, saved_keys=keys)

    found = look_at({"model": Root(model)}, policy)

    assert len(found.variables) == 10
    assert len(asked) == 1


def test_a_pause_of_the_machine_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(first=[1], second=[2])
    expected = looked_at(holder).digests
    with monkeypatch.context() as paused:
        paused.setattr(time, "monotonic", itertools.count(0, 3600).__next__)  # an hour between two looks at the clock
        found = looked_at(holder)
    assert found.digests == expected
    assert found.unknown == {}


class Config(dict[str, Any]):
    """Items are attributes."""

    def __init__(self, *args: Any, **items: Any) -> None:
        super().__init__(*args, **items)
        self.__dict__ = self


class Labelled(collections.deque[int]):
    """A deque with a slot."""

    __slots__ = ("label",)


class Tags(set[str]):
    """A set of the user's."""


def test_new_containers_of_the_users_are_made_again() -> None:
    def act(holder: Any) -> None:
        holder.counted, holder.labelled = Counted([1, 2]), Labelled([3])
        holder.counted.total, holder.labelled.label = 5, "a"
        holder.again = holder.counted
        holder.tags = Tags(["a"])

    _, theirs, lost = carried_over(lambda: Holder(kinds=[Counted, Labelled, Tags]), act)
    assert not lost
    assert (type(theirs.counted), list(theirs.counted), theirs.counted.total) == (Counted, [1, 2], 5)
    assert (type(theirs.labelled), list(theirs.labelled), theirs.labelled.label) == (Labelled, [3], "a")
    assert theirs.again is theirs.counted
    assert (type(theirs.tags), theirs.tags) == (Tags, {"a"})


def test_a_new_dict_whose_items_are_its_attributes_is_not_made_again() -> None:
    lost = carried_over(lambda: Holder(kind=Config), _set(config=Config(a=1)))[2]
    assert lost == {"callback Holder()/config": "a new Config cannot be made again from a backup"}
    _, theirs, lost = carried_over(lambda: Holder(config=Config(a=1)), lambda holder: holder.config.update(a=2, b=3))
    assert not lost
    assert (theirs.config, theirs.config.b) == ({"a": 2, "b": 3}, 3)


def ones() -> int:
    return 1


def test_dicts_with_a_function_for_missing_keys_come_back() -> None:
    def act(holder: Any) -> None:
        holder.there["a"] += 1
        holder.new = collections.defaultdict(ones, {"b": [2]})

    def make() -> Any:
        return Holder(there=collections.defaultdict(lambda: 4), ones=ones)

    _, theirs, lost = carried_over(make, act)
    assert not lost
    assert (theirs.there["a"], theirs.there["z"], theirs.new["b"], theirs.new["z"]) == (5, 4, [2], 1)


def test_objects_that_training_puts_into_globals_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = test_objects_that_training_puts_into_globals_come_back.__globals__
    monkeypatch.setitem(namespace, "BEST", None)

    def make() -> Holder:
        namespace.pop("BEST", None)
        return Holder(read=lambda: BEST)  # type: ignore[name-defined]  # noqa: F821

    def act(holder: Holder) -> None:
        namespace["BEST"] = Fields(3, ["a"])

    _, theirs, lost = carried_over(lambda: Holder(kind=Fields(), make=make()), act)
    assert not lost
    assert theirs.make.read() == Fields(3, ["a"])


def test_attributes_of_any_name_are_state() -> None:
    _, theirs, lost = carried_over(lambda: Holder(_auto_rate=1, _tf=1), _set(_auto_rate=2, _tf=3))
    assert not lost
    assert (theirs._auto_rate, theirs._tf) == (2, 3)


def test_averages_of_tensorflow_come_back() -> None:
    def make() -> Holder:
        holder = Holder(weight=tf.Variable(1.0), average=tf.train.ExponentialMovingAverage(0.5))
        holder.average.apply([holder.weight])
        return holder

    def act(holder: Any) -> None:
        holder.weight.assign(3.0)
        holder.average.apply([holder.weight])

    ours, theirs, lost = carried_over(make, act)
    assert not lost
    averages = [float(holder.average.average(holder.weight)) for holder in (ours, theirs)]
    assert averages == [2.0, 2.0]


def test_an_object_that_gets_another_class_has_it_again() -> None:
    def act(holder: Any) -> None:
        holder.phase.__class__ = Late

    _, theirs, lost = carried_over(lambda: Holder(phase=Early(), kinds=[Late]), act)
    assert not lost
    assert type(theirs.phase) is Late


class Member(keras.callbacks.Callback):
    """What training adds to a list, and no restart can make."""


def test_a_class_does_not_stand_in_for_an_object_that_cannot_be_made() -> None:
    _, theirs, lost = carried_over(
        lambda: Holder(members=[1], kind=Member), lambda holder: holder.members.append(Member())
    )
    (why,) = lost.values()
    assert why == f"an object of {__name__}.Member was not found in this run"
    assert theirs.members == [1]


def test_what_several_new_objects_share_they_share_again() -> None:
    def act(holder: Any) -> None:
        inner = [1]
        holder.one, holder.two = Holder(held=inner), {"held": inner}
        holder.first = inner
        holder.shared.append(2)

    def make() -> Holder:
        shared = [1]
        return Holder(shared=shared, one=shared, two=None, first=shared)

    _, theirs, lost = carried_over(make, act)
    assert not lost
    assert theirs.one.held is theirs.two["held"] is theirs.first
    assert (theirs.first, theirs.shared) == ([1], [1, 2])


def test_an_object_that_leaves_its_place_to_a_new_one_stays_itself() -> None:
    def act(holder: Any) -> None:
        holder.log.append(1)
        holder.log = holder.log[-1:]
        holder.source = holder.log
        holder.front, holder.back = holder.back, holder.front
        holder.front[0] = 7.0

    def make() -> Holder:
        history = [0]
        return Holder(log=history, history=history, source=history, front=np.zeros(2), back=np.ones(2))

    _, theirs, lost = carried_over(make, act)
    assert not lost
    assert (theirs.history, theirs.log) == ([0, 1], [1])
    assert theirs.source is theirs.log
    assert (theirs.front.tolist(), theirs.back.tolist()) == ([7.0, 1.0], [0.0, 0.0])

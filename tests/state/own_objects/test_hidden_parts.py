"""State that Python objects keep where attributes and items do not show it: it comes back, or is a condition."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.utils.tracking import TrackedSet

from keras_dist_callbacks.state.callback_state import own_state
from keras_dist_callbacks.state.own_objects.changes import changes_between
from keras_dist_callbacks.state.own_objects.kinds import look_at
from keras_dist_callbacks.state.own_objects.look import Root
from keras_dist_callbacks.state.own_objects.user_state import is_called
from tests.state.own_objects.test_changes import Tags
from tests.support import tiny
from tests.support.carried_over import POLICY, Act, Holder, Make, carried_over, looked_at, nothing, puts
from tests.support.exactness_objects import TrainsAnother
from tests.support.inputs import Batches


def square() -> Any:
    """A function that remembers one result."""
    found = functools.lru_cache(lambda number: number**2)
    found(2)
    return found


def toggle(numbers: Iterable[int]) -> Act:
    return lambda h: [(h.value.discard if n in h.value else h.value.add)(n) for n in numbers]


GRID, SHRINKING = np.arange(20.0).reshape(5, 4), [*range(1000), *range(3, 1000)]
ORDER = "the order of a set that has changed is not saved"
CONDITIONS: dict[str, tuple[Make, Act, str]] = {
    "an event": (threading.Event, lambda h: h.value.set(), "an event that training has set or cleared"),
    "a lock": (threading.Lock, lambda h: h.value.acquire(), "a lock that training took or released"),
    "a function with another result": (square, lambda h: h.value(3), "a function that remembers its results"),
    "a set from which code pops": (lambda: [{1, 2}, lambda todo: todo.pop()], lambda h: h.value[0].add(99), ORDER),
    "a set of few items in a large table": (set, toggle(SHRINKING), ORDER),
    "such a set of Keras": (TrackedSet, toggle(SHRINKING), ORDER),
    "such a set of the user's": (Tags, toggle(SHRINKING), ORDER),
    "a set of which only the order is another one": (lambda: {0, 8, 16}, toggle([0, 8, 0, 8]), ORDER),  # these collide
    "a progress bar that code reads": (
        lambda: [keras.utils.Progbar(4, verbose=0), lambda bar: bar._seen_so_far],
        lambda h: h.value[0].add(1),
        "a number of what only writes output, which is not saved",
    ),
    "new arrays in another order in memory": (  # sums depend on it, in their last bits
        lambda: None,
        puts(value=[np.asfortranarray(GRID), GRID.copy()[::-2], np.broadcast_to(np.float32(0.1), (4, 5))]),
        "an array whose order in memory is not saved",
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_what_is_not_compared_is_a_condition_once_it_has_changed(name: str) -> None:
    make, act, words = CONDITIONS[name]
    assert carried_over(lambda: Holder(value=make()), nothing).unknown == {}
    found = carried_over(lambda: Holder(value=make()), act)
    assert {path.partition("/")[0]: why for path, why in found.unknown.items()} == {"value": words}
    assert found.lost == {}
    assert found.theirs == found.ours


UNKNOWN: dict[str, Make] = {
    "a callable_iterator": lambda: iter([1].pop, None),
    "an itertools.chain": lambda: itertools.chain([1], [2]),
    "a memoryview": lambda: memoryview(b"abc"),
    "a numpy.ufunc": lambda: np.frompyfunc(lambda x: x, 1, 1),
    "a ctypes.c_int": lambda: multiprocessing.Value("i", 0, lock=False),
    "a _thread._local": threading.local,
    "a threading.Semaphore": lambda: threading.Semaphore(2),
    "a threading.Barrier": lambda: threading.Barrier(1),
    f"a {__name__}.Counting": lambda: Counting(),
    "an array of objects": lambda: np.array([Holder()], object),
    "a dict with keys that have the same text": lambda: {1: np.zeros(2), "1": np.zeros(2)},
}


class Counting(logging.Handler):
    """Could count what is logged."""


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_looked_into_is_unknown(name: str) -> None:
    assert looked_at(Holder(value=UNKNOWN[name]())).unknown == {"callback Holder()/value": name}


NOTHING: dict[str, tuple[Make, Act]] = {
    "what is as it was": (lambda: [1, {"a": np.zeros(2)}, np.random.default_rng(1)], nothing),
    "a result that a function remembers": (square, lambda h: h.value(2)),
    "a progress bar that no code reads": (lambda: keras.utils.Progbar(4, verbose=0), lambda h: h.value.add(1)),
    "a handler of Python's own": (logging.StreamHandler, nothing),
    "a pool": (lambda: ThreadPoolExecutor(1), lambda h: h.value.submit(lambda: 5).result(timeout=60)),
    "compiled functions": (lambda: [np.random.default_rng, lambda: np.random.RandomState(1).normal()], nothing),
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_has_no_state_or_has_not_changed_is_neither_saved_nor_a_condition(name: str) -> None:
    make, act = NOTHING[name]
    found = carried_over(lambda: Holder(value=make()), act)
    assert (found.records, found.lost, found.unknown) == ({}, {}, {})


class Answering:
    """A configuration that makes what it is asked for."""

    def __init__(self) -> None:
        self.__dict__["made"] = {}

    def __getattr__(self, name: str) -> Answering:
        return self.made.setdefault(name, Answering())


def test_objects_that_answer_to_any_name_are_not_asked() -> None:
    holder = Holder(made=Answering())
    assert not looked_at(holder).unknown
    assert own_state(holder.made) is None
    assert holder.made.made == {}


def test_connections_event_loops_and_timers_are_no_state() -> None:
    async def connect() -> Any:
        return aiohttp.ClientSession()

    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(connect())
    holder = Holder(loop=loop, session=session, timer=threading.Timer(60.0, print), lock=threading.Condition())

    found = carried_over(
        lambda: holder,
        lambda h: (loop.call_later(60.0, print), session.headers.update(authorization="token")),
    )
    assert (found.records, found.lost, found.unknown) == ({}, {}, {})
    loop.run_until_complete(session.close())
    loop.close()


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="the order of texts is the same in each process")
def test_the_order_of_a_set_of_texts_is_a_condition_where_code_iterates_over_it() -> None:
    names = {"a", "b"}
    iterating = Holder(names=names, loop=lambda: [f"{n} {name}" for n, name in enumerate(iterating.names)])
    assert list(looked_at(iterating).unknown) == ["callback Holder()/names"]
    ordered = Holder(names=names, loop=lambda: [name.upper() for name in sorted(ordered.names)])
    assert not looked_at(ordered).unknown
    asking = Holder(names=names, ask=lambda text: text in asking.names)
    start = looked_at(asking)
    names.update(map(str, range(1000)))
    names.difference_update(map(str, range(3, 1000)))
    assert looked_at(asking, start).unknown == start.unknown == {}


def test_handlers_of_the_users_are_unknown_where_code_reads_them() -> None:
    logger, handlers = logging.getLogger("test of handlers"), [Counting(), Counting()]
    logger.handlers += handlers
    try:
        reading = looked_at(Holder(count=lambda: logging.getLogger("test of handlers").handlers))
        assert list(reading.unknown) == [f"logger test of handlers/handlers/{index}" for index in (0, 1)]
        assert not looked_at(Holder(log=lambda: logging.getLogger("test of handlers").warning("x"))).unknown
    finally:
        logger.handlers.clear()


def test_environment_variables_that_training_changes_are_named_and_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDC_TESTS_RATE", "a-secret")
    monkeypatch.setenv("KDC_TESTS_OLD", "d-secret")
    monkeypatch.delenv("KDC_TESTS_NEW", raising=False)
    holder = Holder(rate=lambda: os.environ["KDC_TESTS_RATE"])
    start = looked_at(holder)
    monkeypatch.setenv("KDC_TESTS_RATE", "b-secret")
    monkeypatch.setenv("KDC_TESTS_NEW", "c-secret")
    monkeypatch.delenv("KDC_TESTS_OLD")
    now = looked_at(holder, start)
    found = changes_between(start, now)
    assert set(found.lost) == {f"module os/environ/KDC_TESTS_{name}" for name in ("RATE", "NEW", "OLD")}
    assert not found.records
    assert "secret" not in repr((now.environment, now.tokens, now.digests))


class Trainer:
    """Holds all that a script does, as many do; a callback uses one method."""

    def evaluate(self) -> Any:
        return keras.models.load_model("final.keras")

    def at(self, epoch: int) -> float:
        return 0.1 / (1 + epoch)


class AskingTrainer(Trainer):
    def at(self, epoch: int) -> float:
        return float(self.evaluate().optimizer.learning_rate)


READS = "it may read a file that training has changed (load_model)"
CALLED: dict[str, tuple[Make, list[str]]] = {
    "a function that forgets results": (lambda: lambda: square().cache_clear(), ["it uses cache_clear"]),
    "a method that no code names": (lambda: Trainer().at, []),
    "a method that another one names": (lambda: AskingTrainer().at, [READS]),
    "a method that another object holds": (lambda: [Trainer(), [[[[Holder(hook=Trainer().evaluate)]]]]], [READS]),
    "a function of a class that another object holds": (lambda: [Trainer(), [[[Holder(f=Trainer.evaluate)]]]], [READS]),
}


@pytest.mark.parametrize("name", CALLED)
def test_what_code_does_is_a_condition_where_it_may_be_called(name: str) -> None:
    make, said = CALLED[name]
    found = looked_at(Holder(value=make()))
    assert [why for path, why in found.code.conditions.items() if is_called(path, found)] == said


def test_a_walk_over_a_model_asks_once_which_variables_are_saved() -> None:
    keys = Mock(return_value=set())
    model = keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(2) for _ in range(5))])
    found = look_at({"model": Root(model)}, dataclasses.replace(POLICY, saved_keys=keys))
    assert (len(found.variables), keys.call_count) == (10, 1)


def test_a_pause_of_the_machine_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(first=[1], second=[2])
    expected = looked_at(holder).digests
    with monkeypatch.context() as paused:
        paused.setattr(time, "monotonic", itertools.count(0, 3600).__next__)  # an hour between two looks at the clock
        found = looked_at(holder)
    assert (found.digests, found.unknown) == (expected, {})


@dataclass
class Run:
    """What is trained with which callbacks, and the other arguments of `tiny.fit`."""

    callbacks: list[Any]
    model: Any = field(default_factory=tiny.model)
    arguments: dict[str, Any] = field(default_factory=dict)


class Traced(keras.callbacks.Callback):
    """A function of TensorFlow's calls what reads a number, which changes after the trace."""

    decay = 0.5

    def decayed(self) -> float:
        return 2.0 * self.decay

    @tf.function
    def follow(self) -> Any:
        return tf.constant(1.0) * self.decayed()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.follow()
        self.decay *= 0.5


class Sampled(keras.layers.Dropout):
    """Drops in predictions alone."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x if training else super().call(x, training=True)


class Sampling(keras.callbacks.Callback):
    """Predicts, and then changes an attribute that the class of Keras' reads."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.predict(ROWS[:2], verbose=0)
        self.model.layers[0].rate *= 0.5


def sampled() -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), Sampled(0.4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def with_another_model() -> Run:
    keras.utils.set_random_seed(1)
    return Run([TrainsAnother()])


class Measures(keras.callbacks.Callback):
    """Trains another model when an epoch begins, and reads what that has measured with each batch."""

    def __init__(self, other: keras.Model) -> None:
        super().__init__()
        self.other = other

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.other.fit(ROWS, LABELS, verbose=0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * float(self.other.get_metrics_result()["loss"])


ROWS, LABELS = tiny.data()
UNSEEN, WEIGHTS = ROWS.copy(), {0: 1.0, 1: 1.0}


class ChangesData(keras.callbacks.Callback):
    """Writes into the arrays of `validation_data`, and into the class weights that Keras looks up for each batch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        UNSEEN[:] = UNSEEN * np.float32(0.9)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        WEIGHTS[1] *= 1.5


def with_data(**arguments: Any) -> Run:
    UNSEEN[:], WEIGHTS[1] = ROWS, 1.0
    return Run([ChangesData()], arguments=arguments)


def validated() -> Run:
    return with_data(x=ROWS, y=LABELS, validation_data=(UNSEEN, LABELS), batch_size=tiny.BATCH)


class OwnNormalization(keras.layers.Normalization):
    """A layer that extends one of Keras' is adapted like it."""


class Adapts(keras.callbacks.Callback):
    """Adapts preprocessing layers again while training runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scaling, self.words = OwnNormalization(), keras.layers.StringLookup()
        self.borders = keras.layers.Discretization(num_bins=3)
        self.on_epoch_end(-1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch < 1:
            self.scaling.adapt(ROWS * (2.0 + epoch))
            self.words.adapt(["one", "two"][: 2 + epoch])
            self.borders.adapt(ROWS[:, :1] * (2.0 + epoch))


class Chains(keras.callbacks.Callback):
    """Holds what can only be asserted, and perhaps a count that an assertion would lose."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.rates, self.counts, self.seen = itertools.chain([0.1, 0.05], [0.1]), counts, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = next(self.rates)
        self.seen += self.counts


class Grows(keras.callbacks.Callback):
    """Adds to a set of the model, in which Keras wraps it; its order makes the rate."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.held = held

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not hasattr(self.model, "seen"):
            self.model.seen = set()
        self.model.seen.add(31 * (len(self.model.seen) + 1))
        self.model.optimizer.learning_rate = 1e-5 * sum(n * item for n, item in enumerate(self.model.seen))
        assert self.held is None or self.model.seen is self.held


def with_set() -> Run:
    model = tiny.model()
    model.seen = set()
    return Run([Grows(model.seen)], model)


class InFirstEpoch(keras.callbacks.Callback):
    """Nothing of it changes later."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.best = [0], None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) < tiny.STEPS:
            self.seen.append(batch)
            self.best = Holder(rates=[self.seen, batch])
        assert self.best.rates[0] is self.seen
        self.model.optimizer.learning_rate = 0.01 * len(self.seen)


MEASURED = "the callback Measures keeps no state in other.metrics (what a fit or evaluation by code of yours"
TRACED = "no function that TensorFlow traced before the change uses "
COPIED = f"UNSEEN of the module {__name__} is as it was when the first validation"
CHAIN = "the callback Chains keeps no state in rates (an itertools.chain); "
ASSERT = CHAIN + "kdc.advanced.register_callback_state(Chains, None) asserts that"
SAVE = CHAIN + "give the callback get_state and set_state to save it"
ADAPTED = [f"{name} (training has called adapt()" for name in ("scaling", "words", "borders")]
CHAOS, COPIES = pytest.mark.chaos, pytest.mark.finds("validation-copied")
RESUMES: dict[str, Any] = {
    "a number of a traced function": (lambda: Run([Traced()], sampled()), (2, 2), "exact if", [TRACED]),
    "a rate in a trace of predict": (lambda: Run([Sampling()], sampled()), (2, 2), "exact if", [TRACED], CHAOS),
    "a model that only a function of TensorFlow reaches": (with_another_model, (1, 2), "exact", []),
    "what another model has measured": (lambda: Run([Measures(tiny.model())]), (1, 2), "exact if", [MEASURED]),
    "arrays before validation copies them": (validated, (0, 2), "exact", [], COPIES),
    "arrays that validation has copied": (validated, (1, 2), "exact if", [COPIED], COPIES, CHAOS),
    "class weights": (lambda: with_data(x=Batches(), class_weight=WEIGHTS), (2, 2), "exact", []),
    "layers before they are adapted again": (lambda: Run([Adapts()]), (0, 2), "exact", []),
    "layers that are adapted again": (lambda: Run([Adapts()]), (1, 2), "not exact", ADAPTED, CHAOS),
    "what can be asserted": (lambda: Run([Chains(counts=False)]), (1, 2), "exact if", [ASSERT]),
    "what an assertion would lose": (lambda: Run([Chains(counts=True)]), (1, 2), "exact if", [SAVE], CHAOS),
    # what the first resume has restored is saved by it again, though nothing may have changed it since
    "a set that Keras wraps, with its order": (with_set, ((1, 1), (2, 1)), "exact", []),
    "such a set that training has made": (lambda: Run([Grows()]), ((1, 1), (2, 1)), "exact", [], CHAOS),
    "what the first epoch has left": (lambda: Run([InFirstEpoch()]), ((1, 1), (1, 3), (2, 1)), "exact", []),
}


@pytest.mark.parametrize(
    ("make", "places", "verdict", "said"),
    [pytest.param(*row[:4], marks=row[4:], id=name) for name, row in RESUMES.items()],
)
def test_what_is_out_of_sight_is_restored_or_said(
    tmp_path: Path, make: Callable[[], Run], places: Any, verdict: str, said: list[str]
) -> None:
    def run(*callbacks: Any) -> keras.Model:
        made = make()
        tiny.fit(made.model, None, [*made.callbacks, *callbacks], **made.arguments)
        return made.model

    restored = tiny.resumes(tmp_path, run=run, at=places, expects=verdict).restored
    assert all(any(words in text for words in said) for text in restored.conditions)
    assert all(any(words in text for text in (*restored.conditions, *restored.notes)) for words in said)

"""State that Python objects keep where attributes and items do not show it: it comes back, or is a condition."""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import operator
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.utils.tracking import TrackedSet
from numpy.random import default_rng

import keras_dist_callbacks as kdc
from keras_dist_callbacks.state.callback_state import own_state
from keras_dist_callbacks.state.own_objects.changes import changes_between
from keras_dist_callbacks.state.own_values import keeps_order
from tests.state.own_objects.test_changes import Holder, carried_over, looked_at
from tests.support import tiny
from tests.support.exactness_hidden import Forecasts

GRID = np.random.default_rng(1).normal(size=(5, 7, 3)).astype("float32")
LAYOUTS: dict[str, Callable[[], Any]] = {
    "Fortran order": lambda: np.asfortranarray(GRID[0]),
    "transposed": lambda: GRID.transpose(2, 0, 1),
    "reversed": lambda: GRID[::-1, :, ::-1],
    "every second row": lambda: GRID[:, ::2],
    "one value for all": lambda: np.broadcast_to(np.float32(0.1), (4, 5)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_new_array_in_another_order_in_memory_comes_back_with_a_condition(name: str) -> None:
    """Sums depend on it, in their last bits."""

    def act(holder: Any) -> None:
        holder.array = LAYOUTS[name]()

    ours, theirs, lost = carried_over(lambda: Holder(array=np.zeros(3)), act)
    assert not lost
    np.testing.assert_array_equal(theirs.array, ours.array)
    holder = Holder(array=np.zeros(3))
    start = looked_at(holder)
    act(holder)
    assert "order in memory" in looked_at(holder, start).unknown["callback Holder()/array"]


def test_an_array_that_is_filled_keeps_its_order_in_memory() -> None:
    def act(holder: Any) -> None:
        holder.array += 1

    ours, theirs, lost = carried_over(lambda: Holder(array=np.asfortranarray(GRID[0])), act)
    assert not lost
    assert theirs.array.strides == ours.array.strides
    assert theirs.array.sum().tobytes() == ours.array.sum().tobytes()


def test_an_array_in_two_places_is_one_array_again() -> None:
    def act(holder: Any) -> None:
        holder.first = holder.second = GRID[0].copy()

    _, theirs, lost = carried_over(lambda: Holder(first=None, second=None), act)
    assert not lost
    assert theirs.first is theirs.second


def parts_of(whole: Any) -> Any:
    return [whole[:3], whole[2:]]


SHARING: dict[str, Callable[[Any], Any]] = {
    "attributes": lambda whole: {"one": whole, "other": whole[1:]},
    "parts of what is gone": lambda whole: dict(zip(("one", "other"), parts_of(whole), strict=True)),
    "of another type": lambda whole: {"one": whole.view("int64"), "other": whole},
    "in a tuple": lambda whole: {"both": tuple(parts_of(whole))},
    "in a dict": lambda whole: {"both": {"a": whole, "b": whole[::2]}},
    "in a deque": lambda whole: {"both": collections.deque(parts_of(whole))},
    "in a new object": lambda whole: {"both": Holder(a=whole, b=whole.reshape(2, 2))},
}


@pytest.mark.parametrize("name", SHARING)
def test_new_arrays_that_share_memory_come_back_apart_and_named(name: str) -> None:
    def act(holder: Any) -> None:
        vars(holder).update(SHARING[name](np.zeros(4)))

    assert "it shared memory with another array" in str(carried_over(Holder, act)[2])


def test_arrays_of_the_script_that_share_memory_still_do() -> None:
    def make() -> Holder:
        whole = np.arange(6.0)
        return Holder(parts=[whole, whole[2:]])

    def act(holder: Any) -> None:
        holder.parts[1][0] = 9.0
        holder.parts.append(1)

    _, theirs, lost = carried_over(make, act)
    assert not lost
    theirs.parts[0][3] = 7.0
    assert theirs.parts[1].tolist() == [9.0, 7.0, 4.0, 5.0]


def test_the_order_of_a_set_from_which_code_pops_is_a_condition_once_it_has_changed() -> None:
    holder = Holder(todo={1, 2, 3}, take=lambda: holder.todo.pop())
    start = looked_at(holder)
    assert not looked_at(holder, start).unknown
    holder.todo.add(99)
    assert looked_at(holder, start).unknown == {
        "callback Holder()/todo": "the order of a set that has changed is not saved"
    }


ORDERS: dict[str, tuple[set[int], list[int]]] = {
    "few items in a large table": (set(), [*range(1000), *range(3, 1000)]),
    "only another order": ({0, 8, 16}, [0, 8, 0, 8]),  # these collide
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_a_set_that_cannot_be_made_again_is_a_condition(name: str) -> None:
    first, toggled = ORDERS[name]

    def make() -> Holder:
        return Holder(seen=set(first))

    def act(holder: Any) -> None:
        for number in toggled:
            (holder.seen.discard if number in holder.seen else holder.seen.add)(number)

    ours, theirs, lost = carried_over(make, act)
    assert not lost
    assert theirs.seen == ours.seen
    holder = make()
    start = looked_at(holder)
    assert not looked_at(holder, start).unknown
    act(holder)
    assert looked_at(holder, start).unknown == {
        "callback Holder()/seen": "the order of a set that has changed is not saved"
    }


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="the order of texts is the same in each process")
def test_texts_of_which_code_only_asks_whether_they_are_there_have_no_order() -> None:
    holder = Holder(seen={"a", "b"}, ask=lambda text: text in holder.seen)
    start = looked_at(holder)
    for number in range(1000):
        holder.seen.add(f"{number}")
    for number in range(3, 1000):
        holder.seen.discard(f"{number}")
    assert not looked_at(holder, start).unknown


def test_a_set_that_only_grew_comes_back_in_its_order() -> None:
    def act(holder: Any) -> None:
        for number in range(60):
            holder.seen.add(number * 3)

    def make() -> Holder:
        return Holder(seen={9, 3})

    ours, theirs, lost = carried_over(make, act)
    assert not lost
    assert list(theirs.seen) == list(ours.seen)


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="the order of texts is the same in each process")
def test_the_order_of_a_set_of_texts_is_a_condition_where_code_iterates_over_it() -> None:
    names = {"a", "b"}
    iterating = Holder(names=names, loop=lambda: [f"{n} {name}" for n, name in enumerate(iterating.names)])
    assert list(looked_at(iterating).unknown) == ["callback Holder()/names"]
    ordered = Holder(names=names, loop=lambda: [name.upper() for name in sorted(ordered.names)])
    assert not looked_at(ordered).unknown
    asking = Holder(names=names, ask=lambda: "a" in asking.names)
    assert not looked_at(asking).unknown


def test_how_far_a_progress_bar_is_is_a_condition_where_code_reads_it() -> None:
    def unknown(**read: Any) -> list[str]:
        holder = Holder(bar=keras.utils.Progbar(4, verbose=0), **read)
        start = looked_at(holder)
        assert not looked_at(holder, start).unknown
        holder.bar.add(1)
        return list(looked_at(holder, start).unknown)

    assert unknown(read=lambda bar: bar._seen_so_far) == ["callback Holder()/bar/_seen_so_far"]
    assert unknown() == []


def test_a_generator_spawns_the_children_that_it_would_have() -> None:
    def act(holder: Any) -> None:
        holder.rng.spawn(2)

    ours, theirs, lost = carried_over(lambda: Holder(rng=np.random.default_rng(3)), act)
    assert not lost
    assert ours.rng.spawn(1)[0].random() == theirs.rng.spawn(1)[0].random()
    assert ours.rng.random() == theirs.rng.random()


ITERATORS: dict[str, Callable[[], Any]] = {
    "array": lambda: iter(np.linspace(0, 1, 9)),
    "list": lambda: iter([1, 2, 3, 4]),
    "tuple": lambda: iter((1, 2, 3, 4)),
    "range": lambda: iter(range(1, 5)),
    "reversed": lambda: reversed([1, 2, 3]),
    "counter": lambda: itertools.count(3),
    "counter with a step": lambda: itertools.count(1.5, 0.5),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_that_training_advances_is_not_restored(name: str) -> None:
    _, _, lost = carried_over(lambda: Holder(it=ITERATORS[name]()), lambda holder: next(holder.it))
    assert "an iterator was advanced" in lost["callback Holder()/it"]
    _, _, lost = carried_over(lambda: Holder(draw=ITERATORS[name]().__next__), lambda holder: holder.draw())
    assert "an iterator was advanced" in str(lost)
    assert not carried_over(lambda: Holder(it=ITERATORS[name]()), lambda holder: None)[2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: iter([1].pop, None),
        lambda: itertools.chain([1], [2]),
        lambda: itertools.cycle([1]),
        lambda: itertools.repeat(1, 5),
        lambda: filter(None, [1, 2]),
        lambda: itertools.starmap(operator.add, [(1, 2)]),
        lambda: memoryview(b"abc"),
        lambda: np.frompyfunc(lambda x: x, 1, 1),
    ],
    ids=["calls", "chain", "cycle", "repeat", "filter", "starmap", "memoryview", "frompyfunc"],
)
def test_what_a_class_of_c_keeps_for_itself_is_unknown(make: Callable[[], Any]) -> None:
    assert list(looked_at(Holder(it=make())).unknown) == ["callback Holder()/it"]


def test_a_compiled_function_of_a_library_keeps_nothing() -> None:
    """`random` is also the name of a method of the class."""
    found = looked_at(Holder(make=default_rng, draw=lambda: np.random.RandomState(1).normal()))
    assert not found.unknown


def test_the_counter_of_a_defaultdict_is_found() -> None:
    def act(holder: Any) -> None:
        holder.ids["a"]

    holder = Holder(ids=collections.defaultdict(itertools.count().__next__))
    start = looked_at(holder)
    act(holder)
    now = looked_at(holder, start)
    path = "callback Holder()/ids/default_factory/self/"
    assert start.digests[path] != now.digests[path]


def test_a_lock_that_training_took_is_unknown() -> None:
    holder = Holder(once=threading.Lock())
    start = looked_at(holder)
    assert not looked_at(holder, start).unknown
    with holder.once:
        assert list(looked_at(holder, start).unknown) == ["callback Holder()/once"]


class Counting(logging.Handler):
    """Counts what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        """Counts."""


def test_handlers_of_the_users_are_unknown_where_code_reads_them() -> None:
    logger, handlers = logging.getLogger("test of handlers"), [Counting(), Counting()]
    for handler in handlers:
        logger.addHandler(handler)
    try:
        reading = looked_at(Holder(count=lambda: logging.getLogger("test of handlers").handlers))
        assert list(reading.unknown) == [f"logger test of handlers/handlers/{index}" for index in (0, 1)]
        assert not looked_at(Holder(log=lambda: logging.getLogger("test of handlers").warning("x"))).unknown
    finally:
        for handler in handlers:
            logger.removeHandler(handler)


class Answering:
    """A configuration that makes what it is asked for."""

    def __init__(self) -> None:
        self.__dict__["made"] = {}

    def __getattr__(self, name: str) -> Answering:
        return self.made.setdefault(name, Answering())


class AttributesOfItems(dict[str, int]):
    """Items as attributes."""

    __getattr__ = dict.__getitem__


def test_objects_that_answer_to_any_name_are_not_asked() -> None:
    holder = Holder(made=Answering(), items=AttributesOfItems(a=1))
    assert not looked_at(holder).unknown
    assert own_state(holder.made) is None
    assert holder.made.made == {}


class Traced(keras.callbacks.Callback):
    """Averages by a function of TensorFlow's, with a Python number that changes."""

    decay = 0.5

    def on_train_begin(self, logs: Any = None) -> None:
        """Makes the average."""
        self.average = tf.Variable(0.0)

    @tf.function
    def follow(self) -> None:
        """Calls what reads the number when it is traced."""
        self.average.assign(self.decayed() + 1.0)

    def decayed(self) -> Any:
        """Reads it."""
        return self.decay * self.average

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Changes it after the trace."""
        self.follow()
        self.decay *= 0.5


class Predicting(keras.callbacks.Callback):
    """Predicts by a layer of which it changes an attribute."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Changes it after the trace."""
        self.model.predict(tiny.data()[0][:2], verbose=0)
        self.model.get_layer("scaled").factor *= 2


class Sampling(keras.callbacks.Callback):
    """The same of an attribute that a layer of Keras' reads."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Changes it after the trace."""
        self.model.predict(tiny.data()[0][:2], verbose=0)
        self.model.get_layer("sampled").rate *= 0.5


class Sampled(keras.layers.Dropout):
    """Drops in predictions alone."""

    def call(self, x: Any, training: bool = False) -> Any:
        """Not in training."""
        return x if training else super().call(x, training=True)


class Scaled(keras.layers.Layer):
    """Multiplies by a Python number."""

    factor = 1.0

    def call(self, x: Any, training: bool = False) -> Any:
        """Not in training."""
        return x if training else x * self.factor


def scaled() -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), Scaled(name="scaled"), Sampled(0.4, name="sampled")])
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    return model


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("callback", [Traced, Predicting, Sampling])
def test_a_value_that_changed_after_a_trace_is_a_condition(tmp_path: Path, callback: type) -> None:
    keras.utils.set_random_seed(1)
    tiny.interrupt(tmp_path, 2, 2, built=scaled(), callbacks=[callback()])
    backup = kdc.BackupAndRestore(tmp_path, save_freq=1)
    tiny.fit(scaled(), None, [callback(), backup])
    assert backup.restored is not None
    assert backup.restored.verdict == "exact if"
    assert "no function that TensorFlow traced before the change uses " in backup.restored.conditions[0]


class Helper(keras.callbacks.Callback):
    """Trains a model of its own by a function of TensorFlow's, and the rate follows its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        self.own_optimizer = keras.optimizers.Adam(0.05)
        self.own_optimizer.build(self.net.trainable_variables)
        net, optimizer = self.net, self.own_optimizer

        @tf.function
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((net(x) - y) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, net.variables), net.variables, strict=True))
            return loss

        self.step = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """One step of its own."""
        x, y = tiny.data()
        self.model.optimizer.learning_rate = 0.05 * float(self.step(x[:8], y[:8]))


def test_a_model_that_only_a_function_of_tensorflows_reaches_is_restored(tmp_path: Path) -> None:
    def helped() -> tuple[keras.Model, Helper]:
        keras.utils.set_random_seed(1)
        helper = Helper()
        del helper.net, helper.own_optimizer
        return tiny.model(), helper

    reference, helper = helped()
    tiny.fit(reference, None, [helper])
    interrupted, helper = helped()
    tiny.interrupt(tmp_path, 1, 2, built=interrupted, callbacks=[helper])
    (resumed, helper), backup = helped(), kdc.BackupAndRestore(tmp_path, save_freq=1)
    tiny.fit(resumed, None, [helper, backup])
    assert backup.restored is not None
    assert backup.restored.verdict == "exact"
    tiny.assert_same(resumed, reference)


ROWS, LABELS = tiny.data()
UNSEEN = ROWS.copy()


class ChangesUnseen(keras.callbacks.Callback):
    """Writes into the arrays of `validation_data`."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        UNSEEN[:] = UNSEEN * np.float32(0.9)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(("epoch", "verdict"), [(0, "exact"), (1, "exact if")])
@pytest.mark.finds("validation-copied")
def test_arrays_that_changed_after_validation_copied_them_are_a_condition(
    tmp_path: Path, epoch: int, verdict: str
) -> None:
    data = {"x": ROWS, "y": LABELS, "validation_data": (UNSEEN, LABELS), "batch_size": tiny.BATCH}
    UNSEEN[:] = ROWS
    tiny.interrupt(tmp_path, epoch, 2, callbacks=[ChangesUnseen()], **data)
    UNSEEN[:] = ROWS
    backup = kdc.BackupAndRestore(tmp_path, save_freq=1)
    tiny.fit(tiny.model(), None, [ChangesUnseen(), backup], **data)
    assert backup.restored is not None
    assert backup.restored.verdict == verdict, backup.restored
    expected = "UNSEEN of the module tests.state.own_objects.test_hidden_parts is as it was when the first validation"
    assert all(expected in condition for condition in backup.restored.conditions)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return tiny.STEPS

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = slice(index * tiny.BATCH, (index + 1) * tiny.BATCH)
        return ROWS[rows], LABELS[rows]


class Reweights(keras.callbacks.Callback):
    def __init__(self, weights: dict[int, float]) -> None:
        super().__init__()
        self.weights = weights

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.weights[1] *= 1.5


def test_class_weights_that_keras_looks_up_for_each_batch_are_those_of_the_epoch(tmp_path: Path) -> None:
    def data() -> tuple[dict[str, Any], Reweights]:
        weights = {0: 1.0, 1: 1.0}
        return {"x": Batches(), "class_weight": weights}, Reweights(weights)

    given, reweights = data()
    tiny.interrupt(tmp_path, 2, 2, callbacks=[reweights], **given)
    given, reweights = data()
    backup, resumed = kdc.BackupAndRestore(tmp_path, save_freq=1), tiny.model()
    tiny.fit(resumed, None, [reweights, backup], **given)
    assert backup.restored is not None
    assert backup.restored.verdict == "exact", backup.restored
    given, reweights = data()
    reference = tiny.model()
    tiny.fit(reference, None, [reweights], **given)
    tiny.assert_same(resumed, reference)


@pytest.mark.chaos
def test_the_states_of_a_recurrent_model_of_a_callback_are_restored(tmp_path: Path) -> None:
    def forecasts() -> Any:
        keras.utils.set_random_seed(1)  # its weights are the same in each run
        return Forecasts()

    tiny.interrupt(tmp_path, 2, 2, callbacks=[forecasts()])
    backup, callback, resumed = kdc.BackupAndRestore(tmp_path, save_freq=1), forecasts(), tiny.model()
    tiny.fit(resumed, None, [callback, backup], epochs=4)
    assert backup.restored is not None
    assert backup.restored.verdict == "exact", backup.restored
    callback, reference = forecasts(), tiny.model()
    tiny.fit(reference, None, [callback], epochs=4)
    tiny.assert_same(resumed, reference)


class OwnNormalization(keras.layers.Normalization):
    """A layer that extends one of Keras' is adapted like it."""


class Adapts(keras.callbacks.Callback):
    """Adapts preprocessing layers again while training runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scaling, self.words = OwnNormalization(), keras.layers.StringLookup()
        self.borders = keras.layers.Discretization(num_bins=3)
        self.adapt(1.0, ["one"])

    def adapt(self, factor: float, words: list[str]) -> None:
        self.scaling.adapt(ROWS * factor)
        self.words.adapt(words)
        self.borders.adapt(ROWS[:, :1] * factor)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.adapt(2.0, ["two", "three"])


@pytest.mark.in_gate(1)
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.parametrize(("epoch", "names"), [(0, []), (1, ["scaling", "words", "borders"])])
def test_layers_that_training_adapts_again_are_not_restored(tmp_path: Path, epoch: int, names: list[str]) -> None:
    tiny.interrupt(tmp_path, epoch, 2, callbacks=[Adapts()])
    backup = kdc.BackupAndRestore(tmp_path, save_freq=1)
    tiny.fit(tiny.model(), None, [Adapts(), backup])
    assert backup.restored is not None
    assert backup.restored.verdict == ("not exact" if names else "exact"), backup.restored
    assert all(any(f"{name} (training has called adapt()" in note for note in backup.restored.notes) for name in names)


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


class Chains(keras.callbacks.Callback):
    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.rates, self.counts, self.seen = itertools.chain([0.1, 0.05], [0.1]), counts, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = next(self.rates)
        self.seen += self.counts


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(
    ("counts", "advice"),
    [
        (False, "kdc.advanced.register_callback_state(Chains, None) asserts that"),
        (True, "give the callback get_state and set_state to save it"),
    ],
)
def test_an_assertion_that_would_lose_other_state_is_not_suggested(tmp_path: Path, counts: bool, advice: str) -> None:
    tiny.interrupt(tmp_path, 1, 2, callbacks=[Chains(counts=counts)])
    backup = kdc.BackupAndRestore(tmp_path, save_freq=1)
    tiny.fit(tiny.model(), None, [Chains(counts=counts), backup])
    assert backup.restored is not None
    assert backup.restored.conditions == (
        f"the callback Chains keeps no state in rates (an itertools.chain); {advice}",
    )


PATIENCE = {"left": 3}


def _reduces(callback: Any, epoch: int, logs: Any = None) -> None:
    PATIENCE["left"] -= 1
    callback.model.optimizer.learning_rate = 0.1 if PATIENCE["left"] > 1 else 0.01


def _wrapped(method: Any) -> Any:
    @functools.wraps(method)
    def reduces(callback: Any, epoch: int, logs: Any = None) -> None:
        _reduces(callback, epoch)

    return reduces


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("replaced", [lambda method: _reduces, _wrapped], ids=["replaced", "wrapped"])
def test_state_that_a_replaced_method_of_keras_reaches_is_restored(
    replaced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_ = keras.callbacks.ReduceLROnPlateau
    monkeypatch.setattr(class_, "on_epoch_end", replaced(class_.on_epoch_end))

    def fit(*callbacks: Any) -> keras.Model:
        PATIENCE["left"] = 3
        model = tiny.model()
        tiny.fit(model, None, [class_(monitor="loss"), *callbacks])
        return model

    reference = fit()
    with pytest.raises(tiny.Stop):
        fit(
            tiny.StopAt(2, 1),
            kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait")),
        )
    callback = kdc.BackupAndRestore(tmp_path, save_freq=1)
    tiny.assert_same(fit(callback), reference)
    assert callback.restored is not None
    assert callback.restored.verdict == "exact"
    assert PATIENCE["left"] == 0


class Labelled(set):  # type: ignore[type-arg]
    """A set of the user's with a slot, which makes it larger."""

    __slots__ = ("label",)


@pytest.mark.parametrize("kind", [set, frozenset, TrackedSet, Labelled])
def test_only_a_set_that_can_be_made_again_in_its_order_keeps_it(kind: Any) -> None:
    assert keeps_order(kind({3, 1, 2}))
    shrunk = set(range(1000))
    shrunk.difference_update(range(2, 1000))
    assert keeps_order(frozenset(shrunk))  # a copy has a table of its own
    tracked = kind(range(1000))
    if kind is not frozenset:
        tracked.difference_update(range(2, 1000))
        assert not keeps_order(tracked)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("is_made_in_training", [False, True])
def test_a_set_that_keras_wraps_comes_back_in_its_order(tmp_path: Path, is_made_in_training: bool) -> None:
    class Counts(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not hasattr(self.model, "seen"):
                self.model.seen = set()
            self.model.seen.add(31 * (len(self.model.seen) + 1))

    def fit(*callbacks: Any) -> Any:
        model = tiny.model()
        if not is_made_in_training:
            model.seen = set()
        seen = getattr(model, "seen", None)
        tiny.fit(model, None, [Counts(), *callbacks])
        assert seen is None or model.seen is seen
        return model

    reference = fit()
    for place in ((1, 1), (2, 1)):  # what the first resume restored is saved by it and restored again
        with pytest.raises(tiny.Stop):
            fit(
                kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait")),
                tiny.StopAt(*place),
            )
    callback = kdc.BackupAndRestore(tmp_path, save_freq=1)
    assert list(fit(callback).seen) == list(reference.seen)
    assert callback.restored is not None
    assert callback.restored.verdict == "exact"


def test_what_a_function_with_a_gradient_of_its_own_reads_is_found() -> None:
    box = [0.5]

    @keras.ops.custom_gradient
    def scaled(x: Any) -> Any:
        return x * box[0], lambda *inner, upstream=None: upstream

    holder = Holder(scaled=scaled)
    start = looked_at(holder)
    assert not start.unknown
    box[0] = 0.25
    now = looked_at(holder, start)
    (path,) = changes_between(start, now).records
    assert path.endswith("/closure box/")


def test_what_an_earlier_resume_has_restored_is_saved_again_though_nothing_changed_it_since(tmp_path: Path) -> None:
    class InFirstEpoch(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.best = [0], None

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.params["epochs"] and int(self.model.optimizer.iterations) < tiny.STEPS:
                self.seen.append(batch)
                self.best = Holder(rates=[self.seen, batch])
            self.model.optimizer.learning_rate = 0.01 * len(self.seen) + 0.001 * len(self.best.rates[0])

    def fit(*callbacks: Any) -> tuple[keras.Model, Any]:
        model, callback = tiny.model(), InFirstEpoch()
        tiny.fit(model, None, [callback, *callbacks], epochs=5)
        return model, callback

    for epoch in (1, 2, 3):
        with pytest.raises(tiny.Stop):
            fit(
                kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait")),
                tiny.StopAt(epoch, 1),
            )
    backup = kdc.BackupAndRestore(tmp_path)
    (resumed, callback), (reference, expected) = fit(backup), fit()
    assert backup.restored is not None
    assert backup.restored.verdict == "exact", backup.restored
    assert callback.seen == expected.seen
    assert callback.best.rates[0] is callback.seen
    tiny.assert_same(resumed, reference)

"""What hangs on an object by name besides what it is made of, and what code has deleted, is as it was."""

from __future__ import annotations

import collections
import functools
import random
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks.state.own_objects.plain import label_of
from keras_dist_callbacks.state.own_objects.traces import changed_since_traced
from tests.support.carried_over import Act, Holder, Make, carried_over, looked_at


class Shape(tuple[int, ...]):
    """Has a `__dict__`, as each subclass without slots."""


class Pair(collections.namedtuple("Pair", "a b")):
    """Likewise."""


class Tags(frozenset[int]):
    """Likewise."""


class Dice(random.Random):
    """Likewise."""


class Generator(np.random.Generator):
    """Likewise."""


class Signal(threading.Event):
    """Likewise."""


class WithDefault:
    """What its class says counts where an object has nothing of its own."""

    __slots__ = ("__dict__", "note")
    limit = 9

    def __init__(self) -> None:
        self.limit, self.note = 3, "kept"


class Sampler(keras.callbacks.Callback):
    """Keras gives each callback this attribute, and never uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.validation_data: Any = (np.zeros(3),)


class Memory(keras.layers.Layer):
    """Uses names that only a model of Keras' has for itself, and has a variable with an option and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.loss, self.inputs = 0.0, [1]
        self.free, self.bound = keras.Variable([1.0]), keras.Variable([2.0])
        self.bound.regularizer = keras.regularizers.L2(0.1)


def double(number: int) -> int:
    return 2 * number


LIMIT = 3


def names() -> Holder:
    globals()["LIMIT"] = inner = 3

    def read() -> list[Any]:
        found: list[Any] = []
        for get in (lambda: LIMIT, lambda: inner):
            try:
                found.append(get())
            except NameError:
                found.append(None)
        return found

    def delete() -> None:
        nonlocal inner
        del inner
        del globals()["LIMIT"]

    return Holder(read=read, delete=delete)


def counting(make: Make) -> Make:
    def made() -> Holder:
        value = make()
        value.count = 0
        return Holder(value=value)

    return made


def count(holder: Any) -> None:
    holder.value.count += 1


def sets(**values: Any) -> Act:
    return lambda holder: [setattr(holder.value, name, value) for name, value in values.items()]


def deletes(*names: str) -> Act:
    return lambda holder: [delattr(holder.value, name) for name in names]


def counted(make: Make) -> tuple[Make, Act, Act]:
    return counting(make), count, lambda holder: holder.value.count


def spawned(holder: Any) -> list[float]:
    return [holder.value.spawn(1)[0].random(), holder.value.random()]


def draw(holder: Any) -> None:
    holder.value = np.random.default_rng(3)
    holder.value.spawn(2)
    holder.value.random()


COMES_BACK: dict[str, tuple[Make, Act, Act]] = {
    "a counter on a tuple": counted(lambda: Shape((1, 2))),
    "a counter on a named tuple": counted(lambda: Pair(1, 2)),
    "a counter on a frozenset": counted(lambda: Tags((1, 2))),
    "a counter on a random generator": counted(lambda: Dice(3)),
    "a counter on a random generator of Python's own class": counted(lambda: random.Random(3)),  # noqa: S311
    "a counter on a random generator of NumPy's": counted(lambda: Generator(np.random.PCG64(3))),
    "a counter on a partial": counted(lambda: functools.partial(double, 1)),
    "a counter on a function that remembers its results": counted(lambda: functools.lru_cache(double)),
    "a counter on a tf.function": counted(lambda: tf.function(double)),
    "a counter on a dataset": counted(lambda: tf.data.Dataset.range(3)),
    "a counter on an event": counted(Signal),
    "a deleted attribute leaves its class' default": (
        *(lambda: Holder(value=WithDefault()), deletes("limit", "note")),
        lambda holder: (holder.value.limit, hasattr(holder.value, "note")),
    ),
    "a deleted global and variable of an outer function": (
        *(names, lambda holder: holder.delete()),
        lambda holder: holder.read(),
    ),
    "validation_data of a callback": (
        *(lambda: Holder(value=Sampler()), sets(validation_data=(np.ones(3),))),
        lambda holder: holder.value.validation_data,
    ),
    "loss and inputs of a layer": (
        *(lambda: Holder(value=Memory()), sets(loss=2.0, inputs=[1, 2])),
        lambda holder: (holder.value.loss, [*holder.value.inputs]),
    ),
    "a regularizer that is taken away": (
        *(lambda: Holder(value=Memory()), lambda holder: setattr(holder.value.bound, "regularizer", None)),
        lambda holder: holder.value.bound.regularizer is None,
    ),
    "a regularizer that is weaker": (
        *(lambda: Holder(value=Memory()), lambda holder: setattr(holder.value.bound.regularizer, "l2", 0.05)),
        lambda holder: holder.value.bound.regularizer.l2,
    ),
    "what a generator that training has made spawns": (
        *(lambda: Holder(value=np.random.default_rng(1)), draw),
        spawned,
    ),
}


@pytest.mark.parametrize("name", COMES_BACK)
def test_it_is_as_it_was(name: str) -> None:
    found = carried_over(*COMES_BACK[name])
    assert found.lost == {}
    assert found.theirs == found.ours != found.before


def test_a_constraint_that_training_gives_a_variable_is_named() -> None:
    found = carried_over(
        lambda: Holder(value=Memory()),
        lambda holder: setattr(holder.value.free, "constraint", keras.constraints.NonNeg()),
        lambda holder: None,
    )
    assert list(found.lost) == ["value/free/_constraint"]


class Edges:
    def __init__(self, rate: float = 0.5) -> None:
        self.rate = rate

    def lower(self) -> None:
        self.rate *= 0.9


def test_code_that_assigns_an_attribute_assigns_no_default_value_of_its_name() -> None:
    edges = Edges()
    traced = tf.function(lambda x: x * edges.rate)
    traced(tf.constant(1.0))
    found = changed_since_traced(looked_at(Holder(edges=edges, traced=traced)), [])
    assert found == ["callback Holder()/edges/rate"]


def test_a_function_whose_code_is_replaced_is_unknown() -> None:
    def rate() -> float:
        return 0.1

    holder = Holder(rate=rate)
    start = looked_at(holder)
    assert not looked_at(holder, start).unknown
    rate.__code__ = (lambda: 0.2).__code__
    assert "code" in looked_at(holder, start).unknown["callback Holder()/rate"]


def test_an_object_of_a_class_with_names_for_its_objects_is_called_by_that_of_the_class() -> None:
    assert label_of(number for number in ()) == "an object of generator"

"""What hangs on an object by name besides what it is made of, and what code has deleted, is as it was."""

from __future__ import annotations

import collections
import functools
import random
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.state.own_objects.test_changes import Holder, carried_over, looked_at


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


def double(number: int) -> int:
    return 2 * number


WITH_ATTRIBUTES: dict[str, Callable[[], Any]] = {
    "tuple": lambda: Shape((1, 2)),
    "named tuple": lambda: Pair(1, 2),
    "frozenset": lambda: Tags((1, 2)),
    "random generator": lambda: Dice(3),
    "random generator of Python's own class": lambda: random.Random(3),  # noqa: S311
    "random generator of NumPy's": lambda: Generator(np.random.PCG64(3)),
    "partial": lambda: functools.partial(double, 1),
    "function that remembers its results": lambda: functools.lru_cache(double),
    "tf.function": lambda: tf.function(double),
    "dataset": lambda: tf.data.Dataset.range(3),
    "event": Signal,
}


@pytest.mark.parametrize("name", WITH_ATTRIBUTES)
def test_a_counter_that_hangs_on_an_object_comes_back(name: str) -> None:
    def make() -> Holder:
        made = WITH_ATTRIBUTES[name]()
        made.count = 0
        return Holder(value=made)

    def act(holder: Any) -> None:
        holder.value.count += 1

    _, theirs, lost = carried_over(make, act)
    assert not lost
    assert theirs.value.count == 1


class WithDefault:
    """What its class says counts where an object has nothing of its own."""

    __slots__ = ("__dict__", "note")
    limit = 9

    def __init__(self) -> None:
        self.limit, self.note = 3, "kept"


def test_an_attribute_that_code_has_deleted_leaves_the_default_of_its_class() -> None:
    def act(holder: Any) -> None:
        del holder.value.limit
        del holder.value.note

    _, theirs, lost = carried_over(lambda: Holder(value=WithDefault()), act)
    assert not lost
    assert theirs.value.limit == 9
    assert not hasattr(theirs.value, "note")


LIMIT = 3


def test_a_global_and_a_variable_of_an_outer_function_that_code_has_deleted_are_gone() -> None:
    def make() -> Holder:
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

    before = make().read()
    _, theirs, _ = carried_over(make, lambda holder: holder.delete())
    assert (before, theirs.read()) == ([3, 3], [None, None])


class Sampler(keras.callbacks.Callback):
    """Keras gives each callback this attribute, and never uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.validation_data: Any = (np.zeros(3),)


class Memory(keras.layers.Layer):
    """Uses names that only a model of Keras' has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.loss, self.inputs = 0.0, [1]


NAMES_OF_KERAS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "validation_data of a callback": (Sampler, {"validation_data": (np.ones(3),)}),
    "loss and inputs of a layer": (Memory, {"loss": 2.0, "inputs": [1, 2]}),
}


@pytest.mark.parametrize("name", NAMES_OF_KERAS)
def test_attributes_with_names_that_keras_knows_elsewhere_are_the_users(name: str) -> None:
    make, values = NAMES_OF_KERAS[name]

    def act(holder: Any) -> None:
        for attribute, value in values.items():
            setattr(holder.value, attribute, value)

    _, theirs, lost = carried_over(lambda: Holder(value=make()), act)
    assert not lost
    for attribute, value in values.items():
        np.testing.assert_equal(getattr(theirs.value, attribute), value)


def test_a_function_whose_code_is_replaced_is_unknown() -> None:
    def rate() -> float:
        return 0.1

    holder = Holder(rate=rate)
    start = looked_at(holder)
    assert not looked_at(holder, start).unknown
    rate.__code__ = (lambda: 0.2).__code__
    assert "code" in looked_at(holder, start).unknown["callback Holder()/rate"]


class Weighted(keras.layers.Layer):
    """Has a variable with an option, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.bound = keras.Variable([1.0]), keras.Variable([2.0])
        self.bound.regularizer = keras.regularizers.L2(0.1)


OPTIONS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "a regularizer is taken away": (lambda layer: setattr(layer.bound, "regularizer", None), True),
    "a regularizer is weaker": (lambda layer: setattr(layer.bound.regularizer, "l2", 0.05), True),
    "a constraint is new": (lambda layer: setattr(layer.free, "constraint", keras.constraints.NonNeg()), False),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_training_sets_on_a_variable_comes_back_or_is_named(name: str) -> None:
    act, comes_back = OPTIONS[name]
    ours, theirs, lost = carried_over(lambda: Holder(layer=Weighted()), lambda holder: act(holder.layer))
    assert bool(lost) is not comes_back
    if comes_back:
        assert getattr(theirs.layer.bound.regularizer, "l2", None) == getattr(ours.layer.bound.regularizer, "l2", None)

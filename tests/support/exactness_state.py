"""Generated cases: each place where a script can keep state x each kind of state x each effect on training."""

from __future__ import annotations

import collections
import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tests.support import state_config
from tests.support.exactness_case import EVERYWHERE, Case, dense

Advance = Callable[[Any], tuple[Any, float]]


class Counter:
    """An object of the user's."""

    def __init__(self) -> None:
        self.count = 0
        self.seen: list[int] = []


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclass
class Fields:
    count: int = 0
    half: float = 0.0


def _appended(value: Any) -> tuple[Any, float]:
    value.append(len(value) + 0.5)
    return value, len(value) + 0.1 * sum(value)


def _counted(value: dict[str, int]) -> tuple[Any, float]:
    value["batches"] = value.get("batches", 0) + 1
    return value, value["batches"]


def _written(value: np.ndarray) -> tuple[Any, float]:
    value[int(value.sum()) % len(value)] += 1.0
    return value, float(value[0] + 0.1 * value.sum())


def _added(value: set[int]) -> tuple[Any, float]:
    value.add(len(value))
    return value, len(value)


def _object(value: Any) -> tuple[Any, float]:
    value.count += 1
    if hasattr(value, "seen"):
        value.seen.append(value.count)
    return value, value.count


KINDS: dict[str, tuple[Callable[[], Any], Advance, bool]] = {  # first value, next value and its number, in place
    "int": (lambda: 0, lambda value: (value + 1, value + 1), False),
    "float": (lambda: 1.0, lambda value: (value * 1.1, value * 1.1), False),
    "list": (list, _appended, True),
    "dict": (lambda: {"batches": 0}, _counted, True),
    "deque": (lambda: collections.deque(maxlen=4), _appended, True),
    "set": (set, _added, True),
    "array in place": (lambda: np.zeros(5), _written, True),
    "numpy generator": (lambda: np.random.default_rng(5), lambda value: (value, value.random()), True),
    "Python generator of random numbers": (lambda: random.Random(5), lambda value: (value, value.random()), True),  # noqa: S311
    "iterator": (lambda: iter(range(1, 100)), lambda value: (value, next(value)), True),
    "counter": (lambda: itertools.count(1), lambda value: (value, next(value)), True),
    "generator": (lambda: (n for n in range(1, 100)), lambda value: (value, next(value)), True),
    "user object": (Counter, _object, True),
    "object with slots": (Slotted, _object, True),
    "dataclass": (Fields, _object, True),
    "new tuple": (lambda: (0, "x"), lambda value: ((value[0] + 1, "x"), value[0] + 1), False),
}


def _rate(model: Any, number: float) -> None:
    model.optimizer.learning_rate = 0.1 / (1.0 + 0.05 * number)


def _weights(model: Any, number: float) -> None:
    kernel = model.trainable_variables[0]
    kernel.assign(kernel * (1.0 - 0.002 * (number % 7)))


def _stop(model: Any, number: float) -> None:
    _rate(model, number)
    if number > 12:
        model.stop_training = True


EFFECTS = {"rate": _rate, "weights": _weights, "stop": _stop}
Use = Callable[[Any], None]
STATE: Any = None


class Plain(keras.callbacks.Callback):
    def __init__(self, use: Callable[[Plain], None]) -> None:
        super().__init__()
        self._use = use

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._use(self)


class InAttribute(keras.callbacks.Callback):
    def __init__(self, first: Any, advance: Advance, effect: Callable[..., None]) -> None:
        super().__init__()
        self.state, self._advance, self._effect = first, advance, effect

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state, number = self._advance(self.state)
        self._effect(self.model, number)


class InSubclass(keras.callbacks.EarlyStopping):
    """An attribute of a subclass of one of Keras' callbacks."""

    def __init__(self, first: Any, advance: Advance, effect: Callable[..., None]) -> None:
        super().__init__("loss", patience=50)
        self.state, self._advance, self._effect = first, advance, effect

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state, number = self._advance(self.state)
        self._effect(self.model, number)


class InNested(InAttribute):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not isinstance(self.state, dict) or "nested" not in self.state:
            self.state = {"nested": [{"value": self.state}, ("a", 1)]}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        inner = self.state["nested"][0]
        inner["value"], number = self._advance(inner["value"])
        self._effect(self.model, number)


class InProperty(InAttribute):
    @property
    def current(self) -> Any:
        return self.state

    @current.setter
    def current(self, value: Any) -> None:
        self.state = value

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.current, number = self._advance(self.current)
        self._effect(self.model, number)


class LateAttribute(InAttribute):
    """It is set in training for the first time."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not hasattr(self, "late"):
            self.late = self.state
        self.late, number = self._advance(self.late)
        self._effect(self.model, number)


def in_class(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    class OfClass(keras.callbacks.Callback):
        state = first

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            OfClass.state, number = advance(OfClass.state)
            effect(self.model, number)

    return OfClass()


def in_closure(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    state = first
    holder: list[Any] = []

    def update(batch: int, logs: Any) -> None:
        nonlocal state
        state, number = advance(state)
        effect(holder[0].model, number)

    holder.append(keras.callbacks.LambdaCallback(on_train_batch_end=update))
    return holder[0]


def in_schedule(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    """A schedule is called once in each epoch."""
    state = first

    def schedule(epoch: int, rate: float) -> float:
        nonlocal state
        state, number = advance(state)
        return 0.1 / (1.0 + number)

    return keras.callbacks.LearningRateScheduler(schedule)


def in_schedule_object(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    class Schedule:
        def __init__(self) -> None:
            self.state = first

        def __call__(self, epoch: int, rate: float) -> float:
            self.state, number = advance(self.state)
            return 0.1 / (1.0 + number)

    return keras.callbacks.LearningRateScheduler(Schedule())


def in_default(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    holder: list[Any] = []

    def update(batch: int, logs: Any, box: list[Any] = [first]) -> None:  # noqa: B006 - what is tried
        box[0], number = advance(box[0])
        effect(holder[0].model, number)

    holder.append(keras.callbacks.LambdaCallback(on_train_batch_end=update))
    return holder[0]


def in_function_attribute(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    def use(callback: Plain) -> None:
        use.state, number = advance(use.state)  # type: ignore[attr-defined]
        effect(callback.model, number)

    use.state = first  # type: ignore[attr-defined]
    return Plain(use)


def in_global(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    global STATE
    STATE = first

    def use(callback: Plain) -> None:
        global STATE
        STATE, number = advance(STATE)
        effect(callback.model, number)

    return Plain(use)


def in_module(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    state_config.STATE = first

    def use(callback: Plain) -> None:
        state_config.STATE, number = advance(state_config.STATE)
        effect(callback.model, number)

    return Plain(use)


def in_method(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    holder: list[Any] = []

    class Tracker:
        def __init__(self) -> None:
            self.state = first

        def update(self, batch: int, logs: Any) -> None:
            self.state, number = advance(self.state)
            effect(holder[0].model, number)

    holder.append(keras.callbacks.LambdaCallback(on_train_batch_end=Tracker().update))
    return holder[0]


def in_partial(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
    def update(box: list[Any], callback: Plain) -> None:
        box[0], number = advance(box[0])
        effect(callback.model, number)

    return Plain(functools.partial(update, [first]))


def _on(owner: Callable[[Plain], Any]) -> Callable[..., Any]:
    def make(first: Any, advance: Advance, effect: Callable[..., None]) -> Any:
        def use(callback: Plain) -> None:
            holder = owner(callback)
            if isinstance(holder, dict):
                holder["my_state"], number = advance(holder.get("my_state", first))
            else:
                holder.my_state, number = advance(getattr(holder, "my_state", first))
            effect(callback.model, number)

        return Plain(use)

    return make


PLACES: dict[str, Callable[..., Any]] = {
    "attribute": InAttribute,
    "attribute of a subclass of EarlyStopping": InSubclass,
    "nested container": InNested,
    "property": InProperty,
    "attribute set in training": LateAttribute,
    "class attribute": in_class,
    "closure": in_closure,
    "closure of a schedule": in_schedule,
    "schedule object": in_schedule_object,
    "default": in_default,
    "function attribute": in_function_attribute,
    "global": in_global,
    "configuration module": in_module,
    "object of a bound method": in_method,
    "partial": in_partial,
    "model": _on(lambda callback: callback.model),
    "layer": _on(lambda callback: callback.model.layers[0]),
    "optimizer": _on(lambda callback: callback.model.optimizer),
    "History": _on(lambda callback: callback.model.history),
    "params": _on(lambda callback: callback.params),
    "loss": _on(lambda callback: callback.model.loss),
}


def _model(place: str) -> Any:
    return dense(loss=keras.losses.BinaryCrossentropy()) if place == "loss" else dense()


def _case(place: str, kind: str, effect: str, strategies: tuple[str, ...]) -> Case:
    first, advance, _ = KINDS[kind]
    return Case(
        "exact if",  # any verdict will do that is true
        model=functools.partial(_model, place),
        callbacks=lambda: [PLACES[place](first(), advance, EFFECTS[effect])],
        strategies=strategies,
    )


STATE_CASES: dict[str, Case] = {
    f"state: {kind} in {place}, {effect}": _case(place, kind, effect, (EVERYWHERE[number % 23 % 3],))
    if number % 23 < 3
    else _case(place, kind, effect, ("default",))
    for number, (place, kind, effect) in enumerate(
        (place, kind, effect)
        for place, kind in itertools.product(PLACES, KINDS)
        for effect in (("rate",) if "schedule" in place else EFFECTS)
    )
}

"""State that objects of Python keep: out of sight, and in each place where a script can have it."""

from __future__ import annotations

import collections
import decimal
import functools
import itertools
import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support import state_config, tiny
from tests.support.exactness_inputs import followed
from tests.support.exactness_models import EVERYWHERE, Case, Verdict, dense
from tests.support.inputs import Batches


class SetsRate(keras.callbacks.Callback):
    """The rate of each batch is a number that an object of the user's makes."""

    def __init__(self, number: Callable[[], float]) -> None:
        super().__init__()
        self.number = number

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.01 + 0.1 * (float(self.number()) % 1.0)


class Spawning:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)

    def __call__(self) -> float:
        return float(self.rng.spawn(1)[0].random())


class Reading:
    """Reads the next number of an iterator."""

    def __init__(self, numbers: Iterator[float]) -> None:
        self.numbers = numbers

    def __call__(self) -> float:
        return next(self.numbers) / 100


class CountingTwice:
    """Two attributes are one counter."""

    def __init__(self) -> None:
        self.steps = itertools.count()
        self.rate = map(float, self.steps)

    def __call__(self) -> float:
        return (next(self.steps) + next(self.rate)) / 100


class Popping:
    def __init__(self) -> None:
        self.names = {f"part {number}" for number in range(40)}

    def __call__(self) -> float:
        return sum(self.names.pop().encode()) / 97


class Numbering:
    """A dict gives each new key the next number."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = collections.defaultdict(itertools.count().__next__)
        self.seen = 0

    def __call__(self) -> float:
        self.seen += 1
        return self.numbers[self.seen // 2] / 50


class Summing:
    """The sum of an array depends on its order in memory."""

    def __init__(self) -> None:
        self.matrix = np.random.default_rng(3).random((300, 7)).astype("float32")

    def __call__(self) -> float:
        self.matrix = np.asfortranarray(self.matrix * np.float32(1.01))
        return float(self.matrix.sum())


class Locking:
    """Every second batch finds the lock taken."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self) -> float:
        if self.lock.acquire(blocking=False):
            return 0.2
        self.lock.release()
        return 0.7


class CountingInALibrary:
    """A module of a library has a name that the user gave it."""

    def __call__(self) -> float:
        np.batches_seen = getattr(np, "batches_seen", 0) + 1  # type: ignore[attr-defined]
        return float(np.batches_seen) / 30  # type: ignore[attr-defined]


class CountingInALateModule:
    """The module is imported when the function is called, so that no start knows it."""

    def __call__(self) -> float:
        from tests.support import imported_late

        imported_late.calls += 1
        return imported_late.calls / 30


class SettingTheProcess:
    """Asks for a setting of the process that it changes."""

    def __call__(self) -> float:
        decimal.getcontext().prec += 1
        return decimal.getcontext().prec / 50


class Rows(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.rows += 1


class CountingRows:
    def __init__(self) -> None:
        self.logger = logging.getLogger("tests.exactness.rows")
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(Rows())

    def __call__(self) -> float:
        self.logger.info("a batch")
        return self.logger.handlers[0].rows / 30  # type: ignore[attr-defined]


class OnVariable(keras.callbacks.Callback):
    """Counts in an attribute of a variable of the model."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        kernel = self.model.trainable_variables[0]
        kernel.seen = getattr(kernel, "seen", 0) + 1
        self.model.optimizer.learning_rate = 0.1 / kernel.seen


class Scaled(keras.layers.Layer):
    """A number that the trace of a function takes in."""

    scale = 1.0

    def call(self, x: Any) -> Any:
        return x * self.scale


class ScalesLater(keras.callbacks.Callback):
    """Predicts once, changes the number, and goes by what the old trace predicts."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        rows = tiny.data()[0][:4]
        self.model.predict(rows, verbose=0)
        self.model.layers[1].scale = 0.5 + 0.1 * epoch
        self.model.optimizer.learning_rate = 0.1 * float(self.model.predict(rows, verbose=0).mean())


class TrainsAnother(keras.callbacks.Callback):
    """A model that only a function of TensorFlow's reaches."""

    def __init__(self) -> None:
        super().__init__()
        other = dense(keras.optimizers.Adam(0.01))
        other.optimizer.build(other.trainable_variables)
        x, y = (tf.constant(part[:8]) for part in tiny.data())

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, other(x, training=False)))
            other.optimizer.apply(tape.gradient(loss, [v.value for v in other.trainable_variables]))
            return loss

        self.step = step

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * float(self.step())


class KeepsView(keras.callbacks.Callback):
    """Two names for one memory, made while training runs."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.losses = np.zeros(8)
            self.last = self.losses[4:]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.last[batch % 4] = logs["loss"]
        self.model.optimizer.learning_rate = 0.1 * float(self.losses.mean())


class Forecasts(keras.callbacks.Callback):
    """Its recurrent model has states that Keras does not list among the variables."""

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.Input(batch_shape=(1, 3, 1)), keras.layers.GRU(2, stateful=True, seed=1)])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 + 0.05 * float(self.net(np.ones((1, 3, 1), "float32"))[0, 0])


class AdaptsAgain(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.scaling = keras.layers.Normalization()
        self.scaling.adapt(tiny.data()[0])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.scaling.adapt(3.0 * tiny.data()[0])
        mean = float(keras.ops.mean(self.scaling(tiny.data()[0][:2])))
        self.model.optimizer.learning_rate = 0.05 + 0.01 * abs(mean)


UNSEEN = tiny.data()
STRENGTH: list[tf.Variable] = []  # made where the strategy is there
WEIGHTS = {0: 1.0, 1: 1.0}


class Fades(keras.callbacks.Callback):
    """Changes what validation copies once, what a cache keeps, and what Keras looks up for each batch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        UNSEEN[0][:] *= np.float32(0.5)
        for strength in STRENGTH:
            strength.assign(0.5 * strength)
        WEIGHTS[1] *= 1.5


def strengthened() -> tf.data.Dataset:
    STRENGTH.append(tf.Variable(1.0))
    strength = STRENGTH[-1]
    return tf.data.Dataset.from_tensor_slices(tiny.data()).batch(tiny.BATCH).map(lambda x, y: (x * strength, y))


NUMBERS: dict[str, tuple[Callable[[], Callable[[], float]], Verdict, str]] = {
    "generator that spawns": (Spawning, "exact", ""),
    "iterator over an array": (lambda: Reading(iter(np.linspace(0.0, 90.0, 100))), "not exact", "iterator"),
    "iterators in a chain": (lambda: Reading(itertools.chain(range(9), range(50, 90))), "exact if", "chain"),
    "one counter in two places": (CountingTwice, "not exact", "map"),
    "set that code pops from": (Popping, "exact if", "set"),
    "counter of a defaultdict": (Numbering, "not exact", "numbers"),
    "order of an array in memory": (Summing, "exact if", "memory"),
    "lock that is taken": (Locking, "exact if", "lock"),
    "handler that counts": (CountingRows, "exact if", "(?i)handler|rows"),
    "number in a library's module": (CountingInALibrary, "not exact", "batches_seen"),
    "number in a late module": (CountingInALateModule, "not exact", "calls"),
    "setting of the process": (SettingTheProcess, "exact if", "getcontext"),
}


def set_by(make: Callable[[], Callable[[], float]]) -> Callable[[], SetsRate]:
    return lambda: SetsRate(make())


HIDDEN: dict[str, Case] = {
    **{name: followed(set_by(make), expected, says) for name, (make, expected, says) in NUMBERS.items()},
    "attribute of a variable": followed(OnVariable, "not exact", "seen"),
    "number in the trace of predict": followed(
        ScalesLater, "exact if", "scale", model=lambda: dense(inside=(Scaled(),))
    ),
    "model that a function trains": followed(TrainsAnother),
    "part of an array": followed(KeepsView, "not exact", "shared memory"),
    "recurrent model of a callback": followed(Forecasts),
    "layer that is adapted again": followed(AdaptsAgain, "not exact", "adapt"),
    "validation arrays that change": followed(
        Fades,
        "exact if",
        "when the first validation of this fit",
        fit=lambda model: {"x": tiny.shuffled(), "validation_data": UNSEEN},
    ),
    "variable in front of a cache": followed(
        Fades, "not exact", "the first pass", fit=lambda model: {"x": strengthened().cache()}
    ),
    "variable without a cache": followed(Fades, fit=lambda model: {"x": strengthened()}),
    "class weights of a PyDataset": followed(Fades, fit=lambda model: {"x": Batches(), "class_weight": WEIGHTS}),
}
HIDDEN_CASES: dict[str, Case] = {f"hidden: {name}": case for name, case in HIDDEN.items()}


# Each place where a script can keep state x each kind of state x each effect on training.


Advance = Callable[[Any], tuple[Any, float]]
Effect = Callable[[Any, float], None]


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


KINDS: dict[str, tuple[Callable[[], Any], Advance]] = {  # the first value; then the next one, and its number
    "int": (lambda: 0, lambda value: (value + 1, value + 1)),
    "float": (lambda: 1.0, lambda value: (value * 1.1, value * 1.1)),
    "list": (list, _appended),
    "dict": (lambda: {"batches": 0}, _counted),
    "deque": (lambda: collections.deque(maxlen=4), _appended),
    "set": (set, _added),
    "array in place": (lambda: np.zeros(5), _written),
    "numpy generator": (lambda: np.random.default_rng(5), lambda value: (value, value.random())),
    "Python generator of random numbers": (lambda: random.Random(5), lambda value: (value, value.random())),  # noqa: S311
    "iterator": (lambda: iter(range(1, 100)), lambda value: (value, next(value))),
    "counter": (lambda: itertools.count(1), lambda value: (value, next(value))),
    "generator": (lambda: (n for n in range(1, 100)), lambda value: (value, next(value))),
    "user object": (Counter, _object),
    "object with slots": (Slotted, _object),
    "dataclass": (Fields, _object),
    "new tuple": (lambda: (0, "x"), lambda value: ((value[0] + 1, "x"), value[0] + 1)),
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
STATE: Any = None


class Plain(keras.callbacks.Callback):
    def __init__(self, use: Callable[[Plain], None]) -> None:
        super().__init__()
        self._use = use

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._use(self)


class InAttribute(keras.callbacks.Callback):
    def __init__(self, first: Any, advance: Advance, effect: Effect) -> None:
        super().__init__()
        self.state, self._advance, self._effect = first, advance, effect

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state, number = self._advance(self.state)
        self._effect(self.model, number)


class InSubclass(keras.callbacks.EarlyStopping):
    """An attribute of a subclass of one of Keras' callbacks."""

    def __init__(self, first: Any, advance: Advance, effect: Effect) -> None:
        super().__init__("loss", patience=50)
        self.state, self._advance, self._effect = first, advance, effect

    on_train_batch_end = InAttribute.on_train_batch_end


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


def in_class(first: Any, advance: Advance, effect: Effect) -> Any:
    class OfClass(keras.callbacks.Callback):
        state = first

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            OfClass.state, number = advance(OfClass.state)
            effect(self.model, number)

    return OfClass()


def in_closure(first: Any, advance: Advance, effect: Effect) -> Any:
    state = first
    holder: list[Any] = []

    def update(batch: int, logs: Any) -> None:
        nonlocal state
        state, number = advance(state)
        effect(holder[0].model, number)

    holder.append(keras.callbacks.LambdaCallback(on_train_batch_end=update))
    return holder[0]


def in_schedule(first: Any, advance: Advance, effect: Effect) -> Any:
    """A schedule is called once in each epoch."""
    state = first

    def schedule(epoch: int, rate: float) -> float:
        nonlocal state
        state, number = advance(state)
        return 0.1 / (1.0 + number)

    return keras.callbacks.LearningRateScheduler(schedule)


def in_schedule_object(first: Any, advance: Advance, effect: Effect) -> Any:
    class Schedule:
        def __init__(self) -> None:
            self.state = first

        def __call__(self, epoch: int, rate: float) -> float:
            self.state, number = advance(self.state)
            return 0.1 / (1.0 + number)

    return keras.callbacks.LearningRateScheduler(Schedule())


def in_default(first: Any, advance: Advance, effect: Effect) -> Any:
    holder: list[Any] = []

    def update(batch: int, logs: Any, box: list[Any] = [first]) -> None:  # noqa: B006 - what is tried
        box[0], number = advance(box[0])
        effect(holder[0].model, number)

    holder.append(keras.callbacks.LambdaCallback(on_train_batch_end=update))
    return holder[0]


def in_function_attribute(first: Any, advance: Advance, effect: Effect) -> Any:
    def use(callback: Plain) -> None:
        use.state, number = advance(use.state)  # type: ignore[attr-defined]
        effect(callback.model, number)

    use.state = first  # type: ignore[attr-defined]
    return Plain(use)


def in_global(first: Any, advance: Advance, effect: Effect) -> Any:
    global STATE
    STATE = first

    def use(callback: Plain) -> None:
        global STATE
        STATE, number = advance(STATE)
        effect(callback.model, number)

    return Plain(use)


def in_module(first: Any, advance: Advance, effect: Effect) -> Any:
    state_config.STATE = first

    def use(callback: Plain) -> None:
        state_config.STATE, number = advance(state_config.STATE)
        effect(callback.model, number)

    return Plain(use)


def in_method(first: Any, advance: Advance, effect: Effect) -> Any:
    holder: list[Any] = []

    class Tracker:
        def __init__(self) -> None:
            self.state = first

        def update(self, batch: int, logs: Any) -> None:
            self.state, number = advance(self.state)
            effect(holder[0].model, number)

    holder.append(keras.callbacks.LambdaCallback(on_train_batch_end=Tracker().update))
    return holder[0]


def in_partial(first: Any, advance: Advance, effect: Effect) -> Any:
    def update(box: list[Any], callback: Plain) -> None:
        box[0], number = advance(box[0])
        effect(callback.model, number)

    return Plain(functools.partial(update, [first]))


def _on(owner: Callable[[Plain], Any]) -> Callable[..., Any]:
    def make(first: Any, advance: Advance, effect: Effect) -> Any:
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


def _case(place: str, kind: str, effect: str, strategy: str) -> Case:
    first, advance = KINDS[kind]
    model = functools.partial(dense, loss=keras.losses.BinaryCrossentropy()) if place == "loss" else dense
    callbacks = lambda: [PLACES[place](first(), advance, EFFECTS[effect])]  # noqa: E731
    return Case(None, model=model, callbacks=callbacks, strategies=(strategy,))


STATE_CASES: dict[str, Case] = {
    f"state: {kind} in {place}, {effect}": _case(
        place, kind, effect, EVERYWHERE[number % 23 % 3] if number % 23 < 3 else "default"
    )
    for number, (place, kind, effect) in enumerate(
        (place, kind, "rate" if "schedule" in place else list(EFFECTS)[(row + column) % len(EFFECTS)])
        for (row, place), (column, kind) in itertools.product(enumerate(PLACES), enumerate(KINDS))
    )
}

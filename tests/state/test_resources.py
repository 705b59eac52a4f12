"""What a train step or a callback uses besides variables: tables, queues, and the dataset that training reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import tiny


class Weighs(keras.Model):
    """Multiplies its loss by what a resource gives, which each step changes."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.end, self.draw = keras.layers.Dense(1), draw

    def call(self, x: Any) -> Any:
        return self.end(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        weight = self.draw()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2) * weight
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def weighing(draw: Callable[[], Any]) -> keras.Model:
    return tiny.compiled(lambda: Weighs(draw), lambda: keras.optimizers.SGD(0.05), None)


def counting_in_a_table() -> keras.Model:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 1.0)
    key = tf.constant([1], tf.int64)

    def draw() -> Any:
        count = table.lookup(key)
        table.insert(key, count * 1.1)
        return count[0]

    return weighing(draw)


def counting_in_a_queue() -> keras.Model:
    queue = tf.queue.FIFOQueue(3, [tf.float32], [()])
    queue.enqueue(1.0)

    def draw() -> Any:
        count = queue.dequeue()
        queue.enqueue(count * 1.1)
        return count

    return weighing(draw)


class Holder(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counted = tf.Variable(0.0, trainable=False)


def with_counters() -> keras.Model:
    """A model with variables that Keras does not list and that no step uses."""
    built = tiny.model()
    built.counted, built.held = tf.Variable(0.0, trainable=False), Holder()
    built.layers[0].lists = {"a": [tf.Variable(0.0, trainable=False)]}
    return built


def counters(model: keras.Model) -> list[Any]:
    return [model.counted, model.held.counted, model.layers[0].lists["a"][0]]


class CountsThere(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for counter in counters(self.model):
            counter.assign_add(1.0)


def test_variables_of_a_model_that_only_a_callback_changes_are_restored(tmp_path: Path) -> None:
    ended = tiny.resumes(tmp_path, with_counters, callbacks=lambda: [CountsThere()])
    assert [float(counter) for counter in counters(ended.model)] == [3 * tiny.STEPS] * 3


class Refreshes(keras.callbacks.Callback):
    """Changes a table at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 1.0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.table.insert(tf.constant([0], tf.int64), tf.constant([0.5 / (epoch + 1)]))


class Chooses(keras.callbacks.Callback):
    """Stops once the first element of a dataset is a large one."""

    def __init__(self, dataset: Any) -> None:
        super().__init__()
        self.dataset = dataset

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = int(next(iter(self.dataset))) > 8


class TakesLess(keras.callbacks.Callback):
    """A curriculum: makes its dataset again in each epoch."""

    def __init__(self, dataset: Any = None, *, in_list: bool = False) -> None:
        super().__init__()
        self.dataset = dataset
        self.rows = [] if in_list else None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        made = tf.data.Dataset.range(10 + epoch)
        if self.rows is None:
            self.dataset = made
        else:
            self.rows.append(made)


class RunsAFunction(keras.callbacks.Callback):
    """Draws, or counts, in a `tf.function` of its own."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 + 0.01 * float(self.function())


def counts_in_a_function() -> RunsAFunction:
    count = tf.Variable(0.0)
    return RunsAFunction(tf.function(lambda: count.assign_add(1.0)))


class DrawsWithSeeds(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 + float(tf.random.uniform((), seed=1))


class Probe(keras.callbacks.Callback):
    """Trains a model of its own, on whose loss the learning rate depends."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self.probe = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        self.probe.compile(optimizer, "mse")

    def value(self) -> float:
        history = self.probe.fit(*tiny.data(), batch_size=8, shuffle=True, verbose=0)
        return float(history.history["loss"][-1])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.05 * self.value()


class ProbeByBatch(Probe):
    def value(self) -> float:
        return float(self.probe.train_on_batch(*tiny.data()))


class Forwards(keras.callbacks.Callback):
    """Calls a callback of Keras' that is not in the list of the fit."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=2, factor=0.5, min_delta=10.0)

    def on_train_begin(self, logs: Any = None) -> None:
        self.inner.set_model(self.model)
        self.inner.on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.inner.on_epoch_end(epoch, logs)
        assert epoch < 2 or float(self.model.optimizer.learning_rate) < 0.1


class ForwardsByList(Forwards):
    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.callbacks.CallbackList([self.inner])


def ten() -> tf.data.Dataset:
    return tf.data.Dataset.range(10)


def noisy() -> tf.data.Dataset:
    return ten().map(lambda x: x + tf.random.uniform((), maxval=2, dtype=tf.int64))


def generated() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(lambda: iter(range(10)), output_signature=tf.TensorSpec((), tf.int64))


IF, LOST, CHAOS, finds = "exact if", "not exact", pytest.mark.chaos, pytest.mark.finds
DIFFERS = (IF, "the callback Chooses does not read `dataset`, or each pass over it is the same")
MADE = (LOST, "a dataset that training has made, which cannot be made again")
TABLE = (LOST, "a lookup table was changed")
QUEUE = (LOST, "the operation QueueDequeueV2", finds("step-operation", "unseen-state"))
AVERAGES = "^[^;]*train_on_batch returns averages since the metrics of its model were reset[^;]*$"  # alone
STEPS = {"a table that the step changes": (counting_in_a_table, *TABLE), "a queue": (counting_in_a_queue, *QUEUE)}
CALLBACKS: dict[str, tuple[Any, ...]] = {
    "a table": (Refreshes, *TABLE),
    "a shuffled dataset": (lambda: Chooses(ten().shuffle(10, seed=1)), *DIFFERS, finds("passes-of-reader")),
    "a dataset that is shuffled before": (
        lambda: Chooses(ten().shuffle(10, seed=1).batch(2).unbatch()),
        *DIFFERS,
        CHAOS,
    ),
    "a random dataset": (lambda: Chooses(noisy()), *DIFFERS, CHAOS),
    "a dataset of a generator": (lambda: Chooses(generated()), *DIFFERS, CHAOS),
    "a dataset in order": (lambda: Chooses(ten().batch(2).unbatch().prefetch(1)), "exact", ""),
    "a dataset that is always in the same order": (
        *(lambda: Chooses(ten().shuffle(10, seed=1, reshuffle_each_iteration=False)), "exact", "", CHAOS),
    ),
    "a dataset that it makes": (TakesLess, *MADE),
    "a dataset that it makes in place of another": (lambda: TakesLess(tf.data.Dataset.range(5)), *MADE, CHAOS),
    "datasets that it makes, in a list": (lambda: TakesLess(in_list=True), *MADE, CHAOS),
    "a function of its own that draws": (
        *(
            lambda: RunsAFunction(tf.function(lambda: tf.random.uniform(()))),
            IF,
            "it draws by TensorFlow's RandomUniform",
        ),
    ),
    "a variable that only a function of its own knows": (counts_in_a_function, "exact", ""),
    "operations with seeds": (DrawsWithSeeds, IF, "TensorFlow's operations with seeds of their own"),
    "a model that it trains by Adam": (lambda: Probe(keras.optimizers.Adam(0.1)), "exact", ""),
    "a model that it trains with momentum": (lambda: Probe(keras.optimizers.SGD(0.1, 0.9)), "exact", "", CHAOS),
    "averages of train_on_batch": (lambda: ProbeByBatch(keras.optimizers.Adam(0.1)), IF, AVERAGES),
    "a callback": (Forwards, "exact", ""),
    "callbacks in a list of its own": (ForwardsByList, "exact", "", CHAOS),
}


def cases(table: dict[str, tuple[Any, ...]]) -> Any:
    rows = [pytest.param(*row[:3], marks=row[3:], id=name) for name, row in table.items()]
    return pytest.mark.parametrize(("make", "expects", "saying"), rows)


@cases(STEPS)
def test_what_a_step_changes_besides_variables_is_not_exact(
    tmp_path: Path, make: Any, expects: str, saying: str
) -> None:
    tiny.resumes(tmp_path, make, expects=expects, saying=saying)


@cases(CALLBACKS)
def test_what_a_callback_uses_is_restored_or_named(tmp_path: Path, make: Any, expects: str, saying: str) -> None:
    tiny.resumes(tmp_path, callbacks=lambda: [make()], expects=expects, saying=saying)


class AppliesAnother(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.another.iterations.assign_add(1)


@pytest.mark.finds("variables-not-saved")
def test_an_optimizer_of_a_model_that_only_a_callback_uses_is_named(tmp_path: Path) -> None:
    def with_another() -> keras.Model:
        built = tiny.model()
        built.another = keras.optimizers.SGD(name="another")
        built.another.build(built.trainable_variables)
        return built

    said = "^variables that are neither in model.variables nor in model.optimizer are not saved .another/iteration"
    with pytest.warns(RuntimeWarning, match=said):
        tiny.resumes(tmp_path, with_another, callbacks=lambda: [AppliesAnother()], expects="not exact", saying=said)


class Evaluates(keras.callbacks.Callback):
    def __init__(self, dataset: tf.data.Dataset) -> None:
        super().__init__()
        self.dataset = dataset

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.evaluate(self.dataset, verbose=0)


@pytest.mark.parametrize(
    "is_shared",
    [
        pytest.param(True, marks=pytest.mark.finds("reshuffled-by-reader")),
        pytest.param(False, marks=pytest.mark.chaos),
    ],
    ids=["the input's", "another"],
)
def test_a_callback_that_can_read_the_shuffled_input_is_a_condition(tmp_path: Path, is_shared: bool) -> None:
    def run(*callbacks: Any) -> None:
        model = tiny.model()  # it sets the random seed, of which the datasets take a part
        rows = tf.data.Dataset.from_tensor_slices(tiny.data())
        shuffled = rows.shuffle(tiny.ROWS, seed=3)
        read = Evaluates((shuffled if is_shared else rows).batch(4))
        tiny.fit(model, None, [read, *callbacks], x=shuffled.batch(8))

    restored = tiny.resumes(tmp_path, run=run, expects=None, alike=False).restored
    expected = "the callback Evaluates does not read `dataset`, which the input reshuffles in each pass"
    assert (expected in restored.conditions) == is_shared


def by_tensorflow(x: Any, y: Any) -> float:
    return float(tf.random.uniform(()))


def by_a_fit_of_its_own(x: Any, y: Any) -> float:
    return float(Probe("sgd").probe.fit(x, y, verbose=0).history["loss"][0])


def by_a_dataset(x: Any, y: Any) -> float:
    return float(next(iter(tf.data.Dataset.from_tensor_slices(y).shuffle(9)))[0])


def by_numpy(x: Any, y: Any) -> float:
    return float(np.random.uniform())


@pytest.mark.parametrize("draw", [by_tensorflow, by_a_fit_of_its_own, by_a_dataset, by_numpy])
def test_without_a_global_seed_what_a_callback_draws_is_a_condition_unless_its_state_is_saved(
    tmp_path: Path, draw: Callable[..., float]
) -> None:
    class Draws(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 * draw(*tiny.data())

    def unseeded() -> keras.Model:
        model = tiny.model()
        tf.random.set_seed(None)
        return model

    try:
        ended = tiny.resumes(tmp_path, unseeded, callbacks=lambda: [Draws()], expects=None, alike=False)
    finally:
        tf.random.set_seed(7)
    assert ("may draw without a seed" in " ".join(ended.restored.conditions)) == (draw is not by_numpy)


@pytest.mark.finds("switch")
def test_a_switch_that_training_changes_is_not_exact_by_name(tmp_path: Path) -> None:
    class Switches(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            keras.config.set_epsilon(1e-5)

    def as_at_the_start() -> keras.Model:
        keras.config.set_epsilon(1e-7)
        return tiny.model()

    said = r"training has changed keras.config.epsilon\(\), which is not restored"
    try:
        tiny.resumes(tmp_path, as_at_the_start, callbacks=lambda: [Switches()], expects="not exact", saying=said)
    finally:
        keras.config.set_epsilon(1e-7)

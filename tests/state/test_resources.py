"""What a train step or a callback uses besides variables: tables, queues, and the dataset that training reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
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
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    model = Weighs(draw)
    model.compile(keras.optimizers.SGD(0.05))
    return model


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


def resumed(directory: Path, make: Callable[[], keras.Model], callbacks: Callable[[], list[Any]] = list) -> Any:
    with pytest.raises(tiny.Stop):
        tiny.fit(make(), directory, [*callbacks(), tiny.StopAt(1, 2)])
    callback, model = kdc.BackupAndRestore(directory), make()
    tiny.fit(model, None, [*callbacks(), callback])
    return model, callback.restored


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
    model, restored = resumed(tmp_path, with_counters, lambda: [CountsThere()])
    assert [float(counter) for counter in counters(model)] == [3 * tiny.STEPS] * 3
    assert restored.verdict == "exact"


class AppliesAnother(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.another.iterations.assign_add(1)


@pytest.mark.finds("variables-not-saved")
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_an_optimizer_of_a_model_that_only_a_callback_uses_is_named(tmp_path: Path) -> None:
    def with_another() -> keras.Model:
        built = tiny.model()
        built.another = keras.optimizers.SGD(name="another")
        built.another.build(built.trainable_variables)
        return built

    with pytest.warns(RuntimeWarning, match="are not saved .another/iteration"):
        _, restored = resumed(tmp_path, with_another, lambda: [AppliesAnother()])
    assert "variables that are neither in model.variables nor in model.optimizer are not saved" in restored.notes[0]


class Refreshes(keras.callbacks.Callback):
    """Changes a table at the end of each epoch."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.table.insert(tf.constant([0], tf.int64), tf.constant([0.5 / (epoch + 1)]))


def test_a_table_that_a_callback_changes_is_not_exact(tmp_path: Path) -> None:
    def run(*callbacks: Any) -> None:
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 1.0)
        tiny.fit(tiny.model(), None, [Refreshes(table), *callbacks])

    options = kdc.WriteOptions(when_busy="wait")
    with pytest.raises(tiny.Stop):
        run(kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=options), tiny.StopAt(1, 2))
    backup = kdc.BackupAndRestore(tmp_path)
    with pytest.warns(RuntimeWarning, match="a lookup table was changed"):
        run(backup)
    assert backup.restored is not None
    assert backup.restored.verdict == "not exact"


def test_a_mutable_table_that_the_step_changes_is_not_exact(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="a lookup table was changed"):
        _, restored = resumed(tmp_path, counting_in_a_table)
    assert restored.verdict == "not exact"


@pytest.mark.finds("step-operation", "unseen-state")
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_a_queue_that_the_step_uses_is_not_exact_by_name(tmp_path: Path) -> None:
    _, restored = resumed(tmp_path, counting_in_a_queue)
    assert restored.verdict == "not exact"
    assert "the operation QueueDequeueV2" in " ".join(restored.notes)


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
    model = tiny.model()  # it sets the random seed, of which the datasets take a part
    rows = tf.data.Dataset.from_tensor_slices(tiny.data())
    shuffled = rows.shuffle(tiny.ROWS, seed=3)
    read = Evaluates((shuffled if is_shared else rows).batch(4))
    with pytest.raises(tiny.Stop):
        tiny.fit(model, tmp_path, [read, tiny.StopAt(1, 2)], x=shuffled.batch(8))
    callback = kdc.BackupAndRestore(tmp_path)
    rows = tf.data.Dataset.from_tensor_slices(tiny.data())
    shuffled = rows.shuffle(tiny.ROWS, seed=3)
    read = Evaluates((shuffled if is_shared else rows).batch(4))
    tiny.fit(tiny.model(), None, [read, callback], x=shuffled.batch(8))
    expected = "the callback Evaluates does not read `dataset`, which the input reshuffles in each pass"
    assert (expected in callback.restored.conditions) == is_shared


class Chooses(keras.callbacks.Callback):
    """Stops once the first element of a dataset is a large one."""

    def __init__(self, dataset: Any) -> None:
        super().__init__()
        self.dataset = dataset

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = int(next(iter(self.dataset))) > 8


def noisy() -> tf.data.Dataset:
    return tf.data.Dataset.range(10).map(lambda x: x + tf.random.uniform((), maxval=2, dtype=tf.int64))


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.data.Dataset.range(10).shuffle(10, seed=1),
        lambda: tf.data.Dataset.range(10).shuffle(10, seed=1).batch(2).unbatch(),
        noisy,
        lambda: tf.data.Dataset.from_generator(lambda: iter(range(10)), output_signature=tf.TensorSpec((), tf.int64)),
    ],
    ids=["shuffled", "shuffled before", "random", "of a generator"],
)
@pytest.mark.finds("passes-of-reader")
def test_a_dataset_of_a_callbacks_own_whose_passes_differ_is_a_condition(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    _, restored = resumed(tmp_path, tiny.model, lambda: [Chooses(make())])
    assert "the callback Chooses does not read `dataset`, or each pass over it is the same" in restored.conditions


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.data.Dataset.range(10).batch(2).unbatch().prefetch(1),
        lambda: tf.data.Dataset.range(10).shuffle(10, seed=1, reshuffle_each_iteration=False),
    ],
    ids=["in order", "always in the same order"],
)
def test_a_dataset_of_a_callbacks_own_whose_passes_are_the_same_is_exact(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    _, restored = resumed(tmp_path, tiny.model, lambda: [Chooses(make())])
    assert restored.verdict == "exact"


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


@pytest.mark.in_gate(1)
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: TakesLess(),
        lambda: TakesLess(tf.data.Dataset.range(5)),
        lambda: TakesLess(in_list=True),
    ],
    ids=["in place of None", "in place of another", "in a list"],
)
def test_a_dataset_that_a_callback_makes_is_not_exact_by_name(tmp_path: Path, make: Callable[[], Any]) -> None:
    _, restored = resumed(tmp_path, tiny.model, lambda: [make()])
    assert restored.verdict == "not exact"
    assert "a dataset that training has made, which cannot be made again" in " ".join(restored.notes)


class RunsAFunction(keras.callbacks.Callback):
    """Draws, or counts, in a `tf.function` of its own."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 + 0.01 * float(self.function())


def test_a_function_of_a_callbacks_own_that_draws_is_a_condition(tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        return [RunsAFunction(tf.function(lambda: tf.random.uniform(())))]

    _, restored = resumed(tmp_path, tiny.model, callbacks)
    assert "it draws by TensorFlow's RandomUniform" in " ".join(restored.conditions)


def test_a_variable_that_only_a_function_of_a_callbacks_own_knows_is_restored(tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        count = tf.Variable(0.0)
        return [RunsAFunction(tf.function(lambda: count.assign_add(1.0)))]

    model, restored = resumed(tmp_path, tiny.model, callbacks)
    reference = tiny.model()
    tiny.fit(reference, None, callbacks())
    assert restored.verdict == "exact"
    tiny.assert_same(model, reference)


def test_seeds_of_tensorflows_operations_in_a_callback_are_a_condition(tmp_path: Path) -> None:
    class Draws(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 + float(tf.random.uniform((), seed=1))

    _, restored = resumed(tmp_path, tiny.model, lambda: [Draws()])
    assert "TensorFlow's operations with seeds of their own" in " ".join(restored.conditions)


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
        _, restored = resumed(tmp_path, unseeded, lambda: [Draws()])
    finally:
        tf.random.set_seed(7)
    assert ("may draw without a seed" in " ".join(restored.conditions)) == (draw is not by_numpy)


@pytest.mark.finds("switch")
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_a_switch_that_training_changes_is_not_exact_by_name(tmp_path: Path) -> None:
    class Switches(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            keras.config.set_epsilon(1e-5)

    try:
        with pytest.raises(tiny.Stop):
            tiny.fit(tiny.model(), tmp_path, [Switches(), tiny.StopAt(1, 2)])
    finally:
        keras.config.set_epsilon(1e-7)
    callback = kdc.BackupAndRestore(tmp_path)
    tiny.fit(tiny.model(), None, [callback])
    assert callback.restored is not None
    assert "training has changed keras.config.epsilon(), which is not restored" in callback.restored.notes


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


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("optimizer", [lambda: keras.optimizers.Adam(0.1), lambda: keras.optimizers.SGD(0.1, 0.9)])
def test_a_model_that_a_callback_trains_resumes_with_its_optimizer(
    tmp_path: Path, optimizer: Callable[[], Any]
) -> None:
    model, restored = resumed(tmp_path, tiny.model, lambda: [Probe(optimizer())])
    reference = tiny.model()
    tiny.fit(reference, None, [Probe(optimizer())])
    assert restored.verdict == "exact"
    tiny.assert_same(model, reference)


def test_averages_of_train_on_batch_are_a_condition(tmp_path: Path) -> None:
    _, restored = resumed(tmp_path, tiny.model, lambda: [ProbeByBatch(keras.optimizers.Adam(0.1))])
    (condition,) = restored.conditions
    assert "train_on_batch returns averages since the metrics of its model were reset" in condition


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


class ForwardsByList(Forwards):
    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.callbacks.CallbackList([self.inner])


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("make", [Forwards, ForwardsByList])
def test_a_callback_within_a_callback_is_restored(tmp_path: Path, make: Callable[[], Any]) -> None:
    model, restored = resumed(tmp_path, tiny.model, lambda: [make()])
    reference = tiny.model()
    tiny.fit(reference, None, [make()])
    assert restored.verdict == "exact"
    tiny.assert_same(model, reference)
    assert float(model.optimizer.learning_rate) < 0.1

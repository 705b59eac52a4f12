"""Two stages that draw from one state: named where TensorFlow runs them side by side, which two passes show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters import py_dataset_adapter

from keras_dist_callbacks._compat.input_inspection import PythonCode, inspect_dataset, inspect_source

Between = Callable[[Any], Any]
RUN_AHEAD: dict[str, Between] = {
    "map and batch": lambda d: d.batch(4),
    "a map without a state": lambda d: d.map(lambda v: v * 2),
    "batch and unbatch": lambda d: d.batch(2).unbatch(),
    "ragged batch": lambda d: d.ragged_batch(4),
    "prefetch": lambda d: d.prefetch(8),
    "zip": lambda d: tf.data.Dataset.zip(d, tf.data.Dataset.range(1000)).map(lambda a, b: a),
}
IN_STEP: dict[str, Between] = {
    "nothing": lambda d: d,
    "shuffle": lambda d: d.shuffle(8, seed=1),
    "batch behind a filter": lambda d: d.filter(lambda v: v[0] > -1e9).batch(4),
    "padded batch": lambda d: d.padded_batch(4),
    "flat_map": lambda d: d.flat_map(tf.data.Dataset.from_tensors),
    "cache": lambda d: d.cache(),
}


def drawn(between: Between, options: tf.data.Options | None = None) -> tf.data.Dataset:
    keras.utils.set_random_seed(1)
    seed = keras.random.SeedGenerator(3)
    noise = lambda v: v + keras.random.normal((4,), seed=seed)  # noqa: E731
    rows = tf.data.Dataset.from_tensor_slices(np.arange(400, dtype="float32").reshape(100, 4))
    chosen = tf.data.Options() if options is None else options
    if chosen.autotune.enabled is None:
        chosen.autotune.enabled = True  # not what tests choose for the others
    return between(rows.map(noise)).map(noise).with_options(chosen)


def passes(between: Between, options: tf.data.Options | None = None) -> int:
    """How many different outcomes five passes have."""
    every = [[np.asarray(getattr(v, "flat_values", v)) for v in drawn(between, options)] for _ in range(5)]
    return len({b"".join(value.tobytes() for value in values) for values in every})


@pytest.mark.parametrize("name", RUN_AHEAD)
def test_a_state_that_two_threads_draw_from_is_named(name: str) -> None:
    assert "racing-parts" in {code for code, *_ in inspect_dataset(drawn(RUN_AHEAD[name])).found}


@pytest.mark.parametrize("name", IN_STEP)
def test_a_state_that_one_thread_draws_from_is_none(name: str) -> None:
    assert inspect_dataset(drawn(IN_STEP[name])).found == ()
    assert passes(IN_STEP[name]) == 1


@pytest.mark.parametrize("name", ["map and batch", "a map without a state"])
def test_without_tensorflows_optimizations_nothing_runs_ahead(name: str) -> None:
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    assert inspect_dataset(drawn(RUN_AHEAD[name], options)).found == ()
    assert passes(RUN_AHEAD[name], options) == 1


@pytest.mark.parametrize("name", ["a map without a state", "zip"])
def test_a_map_without_a_state_runs_ahead_only_where_tensorflow_tunes(name: str) -> None:
    options = tf.data.Options()
    options.autotune.enabled = False
    assert inspect_dataset(drawn(RUN_AHEAD[name], options)).found == ()
    assert passes(RUN_AHEAD[name], options) == 1


def test_one_stage_alone_runs_ahead_of_no_one() -> None:
    seed = keras.random.SeedGenerator(3)
    rows = tf.data.Dataset.range(100).map(lambda v: keras.random.normal((4,), seed=seed))
    assert inspect_dataset(rows.batch(4).map(lambda v: v * 2).prefetch(2)).found == ()


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(64).shuffle(64, seed=3)


EARLY: dict[str, Callable[[], tf.data.Dataset]] = {
    "take of a repeat": lambda: shuffled().repeat(2).prefetch(2).take(100),
    "take behind a parallel map": lambda: shuffled().repeat(2).map(tf.abs, num_parallel_calls=2).batch(4).take(20),
    "take of a concatenation": lambda: tf.data.Dataset.range(64).concatenate(shuffled()).prefetch(2).take(60),
    "take_while": lambda: shuffled().repeat(2).prefetch(2).take_while(lambda v: v < 60),
    "zip with fewer": lambda: tf.data.Dataset.zip(tf.data.Dataset.range(9), shuffled().repeat(2).prefetch(2)),
}
LATE: dict[str, Callable[[], tf.data.Dataset]] = {
    "take in front of the repeat": lambda: shuffled().take(50).repeat(2).prefetch(2),
    "nothing ahead": lambda: shuffled().repeat(2).take(100),
    "prefetch behind": lambda: shuffled().repeat(2).take(100).prefetch(2),
    "take of all": lambda: shuffled().repeat(2).prefetch(2).take(128),
    "always the same order": lambda: (
        tf.data.Dataset.range(64).shuffle(64, reshuffle_each_iteration=False).repeat(2).prefetch(2).take(100)
    ),
    "a shuffle alone": lambda: shuffled().prefetch(2).take(30),
    "zip with as many": lambda: tf.data.Dataset.zip(tf.data.Dataset.range(128), shuffled().repeat(2).prefetch(2)),
    "zip with an endless one": lambda: tf.data.Dataset.zip(tf.data.Dataset.counter(), shuffled().repeat(2).prefetch(2)),
}


@pytest.mark.parametrize("name", EARLY)
def test_orders_that_are_drawn_ahead_of_an_early_end_are_named(name: str) -> None:
    assert [code for code, *_ in inspect_dataset(EARLY[name]()).found] == ["early-end"]


@pytest.mark.parametrize("name", LATE)
def test_a_pass_that_is_read_to_its_end_is_none(name: str) -> None:
    assert inspect_dataset(LATE[name]()).found == ()


class Rows(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.ones((2, 3)), np.ones((2, 1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ""),
        ({"workers": 1}, ""),
        ({"workers": 0, "use_multiprocessing": True}, ""),
        ({"workers": 2}, " (read in parallel: workers=2)"),
        ({"workers": 1, "use_multiprocessing": True}, " (read in parallel: workers=1, use_multiprocessing=True)"),
    ],
)
def test_a_py_dataset_that_several_threads_or_processes_read_is_named_so(options: dict[str, Any], words: str) -> None:
    rows = Rows(**options)
    adapter = py_dataset_adapter.PyDatasetAdapter(rows)
    assert bool(adapter.enqueuer) == bool(words)
    code = PythonCode(f"the PyDataset Rows{words}", is_dataset=True, is_ahead=bool(words))
    assert inspect_dataset(None, adapter, rows).python == inspect_source(rows).python == (code,)


def test_python_functions_that_may_run_in_parallel_are_named_so() -> None:
    call = lambda v: tf.numpy_function(lambda a: a, [v], tf.int64)  # noqa: E731
    rows = tf.data.Dataset.range(4)
    name = f"the Python code in Dataset.map(test_input_inspection.py:{call.__code__.co_firstlineno})"
    for made, expected, is_ahead in (
        (rows.map(call), name, False),
        (rows.map(call, num_parallel_calls=2), f"{name} (called in parallel)", True),
        (rows.map(call).cache().batch(2), f"{name} before a cache()", True),
        (rows.cache().map(call), name, False),
        (rows.map(call).prefetch(1).map(call), f"{name} and of other stages (perhaps in parallel)", True),
    ):
        (found,) = inspect_dataset(made).python
        assert found._replace(functions=()) == PythonCode(expected, is_ahead=is_ahead)
        assert set(found.functions) == {call}


@pytest.mark.parametrize("name", ["interleave", "flat_map"])
def test_python_in_a_dataset_that_a_function_captured_is_named(name: str) -> None:
    inner = tf.data.Dataset.from_generator(lambda: iter(range(8)), output_signature=tf.TensorSpec((), tf.int64))
    dataset = getattr(tf.data.Dataset.range(2), name)(lambda _: inner)
    assert inspect_dataset(dataset).python


def test_a_captured_dataset_without_python_is_not_named() -> None:
    inner = tf.data.Dataset.range(8).map(lambda value: value + 1)
    assert inspect_dataset(tf.data.Dataset.range(2).flat_map(lambda _: inner)).python == ()

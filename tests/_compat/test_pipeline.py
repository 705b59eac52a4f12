"""Whether a cache comes to be whole is known from two passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks._compat.pipeline import call_of, reads_past_last_element

Behind = Callable[[Any], Any]
BATCHES = 9


def batch(dataset: Any, **arguments: Any) -> Any:
    return dataset.batch(7, drop_remainder=True, **arguments)


def double(value: Any) -> Any:
    return value * 2


def alike(value: Any) -> Any:
    return value + tf.cast(tf.random.uniform([], 1, 2), tf.int64) * 0


def each(value: Any) -> Any:
    return tf.data.Dataset.from_tensors(value)


BEHIND: dict[str, Behind] = {
    "batch": batch,
    "prefetch before": lambda d: batch(d.prefetch(1)),
    "prefetch behind": lambda d: batch(d).prefetch(1),
    "map behind": lambda d: batch(d).map(double),
    "random map behind": lambda d: batch(d).map(alike),
    "random map before": lambda d: batch(d.map(alike)),
    "map before": lambda d: batch(d.map(double)),
    "parallel map": lambda d: batch(d).map(double, num_parallel_calls=2),
    "parallel batch": lambda d: batch(d, num_parallel_calls=2),
    "filter": lambda d: batch(d.filter(lambda v: True)).apply(tf.data.experimental.assert_cardinality(BATCHES)),
    "flat_map": lambda d: batch(d.flat_map(each)).apply(tf.data.experimental.assert_cardinality(BATCHES)),
    "zip": lambda d: tf.data.Dataset.zip((batch(d), tf.data.Dataset.range(BATCHES))).map(lambda a, b: a),
    "padded": lambda d: d.padded_batch(7, padded_shapes=[], drop_remainder=True),
    "ragged": lambda d: d.ragged_batch(7, drop_remainder=True),
    "second cache": lambda d: batch(d.cache()),
}


def options(**chosen: bool) -> tf.data.Options:
    made = tf.data.Options()
    for name, value in chosen.items():
        owner, _, option = name.partition("__")
        setattr(getattr(made, owner), option, value)
    return made


OPTIONS = {
    "tuned": options(autotune__enabled=True),
    "not tuned": options(autotune__enabled=False),
    "not optimized": options(autotune__enabled=True, experimental_optimization__apply_default_optimizations=False),
    "no prefetch added": options(autotune__enabled=True, experimental_optimization__inject_prefetch=False),
}


def one_pass(dataset: Any, pause: float) -> list[int]:
    """As fit() reads it where it knows the length: nothing after the last batch is asked for."""
    iterator = iter(dataset)
    values = [np.asarray(getattr(v, "flat_values", v)) for v in (next(iterator) for _ in range(BATCHES))]
    time.sleep(pause)  # a training lets go of an iterator later, and threads that read ahead continue meanwhile
    return np.concatenate([value.ravel() for value in values]).tolist()


@pytest.mark.in_gate(20)
@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("chosen", OPTIONS)
def test_a_cache_is_complete_where_its_end_is_read(name: str, chosen: str) -> None:
    def cached() -> Any:
        shuffled = tf.data.Dataset.range(64).shuffle(64, seed=3)
        return BEHIND[name](shuffled.cache()).with_options(OPTIONS[chosen])

    def is_whole(pause: float) -> bool:
        dataset = cached()
        return one_pass(dataset, pause) == one_pass(dataset, pause)

    expected = reads_past_last_element(cached())
    pauses = (0.05, 1.0, 10.0) if expected else (0.05,)  # on a busy machine a thread may need long to get there
    assert any(map(is_whole, pauses)) == expected


FILE = Path(__file__).name
ALWAYS = lambda value: value >= 0  # noqa: E731
CALLS: dict[str, Callable[[Any], Any]] = {
    "Dataset.shuffle(5)": lambda d: d.shuffle(5),
    "Dataset.repeat": lambda d: d.repeat(),
    "Dataset.repeat(2)": lambda d: d.repeat(2),
    "Dataset.prefetch": lambda d: d.prefetch(tf.data.AUTOTUNE),
    "Dataset.padded_batch": lambda d: d.padded_batch(2),
    f"Dataset.map(double, {FILE}:{double.__code__.co_firstlineno})": lambda d: d.map(double, num_parallel_calls=2),
    f"Dataset.flat_map(each, {FILE}:{each.__code__.co_firstlineno})": lambda d: d.flat_map(each),
    f"Dataset.filter({FILE}:{ALWAYS.__code__.co_firstlineno})": lambda d: d.filter(ALWAYS),
    "Dataset.from_tensor_slices": lambda d: tf.data.Dataset.from_tensor_slices([1]),
    "Dataset.from_generator": lambda d: tf.data.Dataset.from_generator(
        lambda: iter([1]), output_signature=tf.TensorSpec((), tf.int32)
    ),
    "TFRecordDataset": lambda d: tf.data.TFRecordDataset([]),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_stage_is_called_as_the_script_wrote_it(call: str) -> None:
    assert call_of(CALLS[call](tf.data.Dataset.range(4))) == call

"""Stages whose order differs from run to run, wherever TensorFlow keeps that they were asked for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks._compat import pipeline
from keras_dist_callbacks._compat.input_inspection import inspect_dataset

Pipeline = Callable[[tf.data.Dataset], tf.data.Dataset]
OPEN: dict[str, Any] = {"num_parallel_calls": 4, "deterministic": False}
BY_ONE: dict[str, Any] = {"num_parallel_calls": 1, "deterministic": False}
IN_PARALLEL = {"num_parallel_calls": 4}


def one(value: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(value)


def same(value: Any) -> Any:
    return value


def loose(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def parsed(rows: tf.data.Dataset, **options: Any) -> tf.data.Dataset:
    features = {"a": tf.io.FixedLenFeature((), tf.int64, 0)}
    examples = rows.map(lambda _: tf.constant([tf.train.Example().SerializeToString()]))
    return examples.apply(tf.data.experimental.parse_example_dataset(features, **options))


def captured(rows: tf.data.Dataset, inner: tf.data.Dataset) -> tf.data.Dataset:
    return rows.flat_map(lambda _: inner)


MIXED = {"weights": [0.5, 0.5], "seed": 1}
LEFT_OPEN: dict[str, tuple[str, Pipeline]] = {
    "interleave": ("Dataset.interleave", lambda d: d.interleave(one, **OPEN)),
    "interleave by one thread": (
        "Dataset.interleave",
        lambda d: d.interleave(one, **{**OPEN, "num_parallel_calls": 1}),
    ),
    "interleave before other stages": ("Dataset.interleave", lambda d: d.interleave(one, **OPEN).batch(4).prefetch(1)),
    "interleave by options": ("Dataset.interleave", lambda d: loose(d.interleave(one, **IN_PARALLEL))),
    "interleave in a part": (
        "Dataset.interleave",
        lambda d: tf.data.Dataset.sample_from_datasets([d, d.interleave(one, **OPEN)], **MIXED),
    ),
    "interleave of a captured dataset": ("Dataset.interleave", lambda d: captured(d, d.interleave(one, **OPEN))),
    "map": ("Dataset.map", lambda d: d.map(same, **OPEN)),
    "map by options": ("Dataset.map", lambda d: loose(d.map(same, **IN_PARALLEL))),
    "map within a function": ("Dataset.map", lambda d: d.flat_map(lambda v: one(v).map(same, **OPEN))),
    "map within a function, by options": (
        "Dataset.map",
        lambda d: loose(d.flat_map(lambda v: one(v).map(same, **IN_PARALLEL))),
    ),
    "batch": ("Dataset.batch", lambda d: d.batch(2, **OPEN)),
    "parsed examples": ("parse_example_dataset", lambda d: parsed(d, **OPEN)),
    "a saved dataset": ("Dataset.interleave", lambda d: loose(d.snapshot("never written"))),
}
FIXED: dict[str, Pipeline] = {
    "interleave": lambda d: d.interleave(one, **IN_PARALLEL),
    "interleave of one at a time": lambda d: d.interleave(one, cycle_length=1, **BY_ONE),
    "interleave that is not parallel": lambda d: loose(d.interleave(one)),
    "interleave that says so": lambda d: loose(d.interleave(one, num_parallel_calls=4, deterministic=True)),
    "map": lambda d: d.map(same, **IN_PARALLEL),
    "map by one thread": lambda d: d.map(same, **BY_ONE),
    "options of a dataset within a function": lambda d: d.flat_map(lambda v: loose(one(v).map(same, **IN_PARALLEL))),
    "map and batch": lambda d: loose(d.apply(tf.data.experimental.map_and_batch(same, 4, num_parallel_calls=4))),
    "parsed examples": lambda d: parsed(d, **IN_PARALLEL),
    "a saved dataset": lambda d: d.snapshot("never written"),
    "numbered": lambda d: loose(d.enumerate()),
}


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(np.arange(40))


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_a_stage_that_leaves_its_order_open_is_named(name: str) -> None:
    call, make = LEFT_OPEN[name]
    found = inspect_dataset(make(rows()))
    assert [(code, name.partition("(")[0]) for code, name in found.found] == [("loose-order", call)]


@pytest.mark.parametrize("name", FIXED)
def test_a_stage_that_keeps_its_order_is_not_named(name: str) -> None:
    assert inspect_dataset(FIXED[name](rows())).found == ()


def test_what_would_be_too_much_to_look_through_is_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_LARGEST_GRAPH", 300)
    found = inspect_dataset(rows().interleave(one, **IN_PARALLEL))
    line = one.__code__.co_firstlineno
    assert found.found == (("loose-order-unread", f"Dataset.interleave(one, test_open_orders.py:{line})"),)
    assert inspect_dataset(rows().map(same, **IN_PARALLEL)).found == ()  # Python knows it


def test_several_workers_of_a_data_service_have_no_order() -> None:
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    workers = [service.WorkerServer(service.WorkerConfig(dispatcher_address=address))]
    data = rows().batch(4).apply(service.distribute(service.ShardingPolicy.DYNAMIC, service=dispatcher.target))
    assert inspect_dataset(data).found == ()
    workers.append(service.WorkerServer(service.WorkerConfig(dispatcher_address=address)))
    assert inspect_dataset(data).found == (("service-workers", address, "2"),)
    for server in (*workers, dispatcher):
        server._stop()
    assert inspect_dataset(data).found == (("service-not-asked", address),)

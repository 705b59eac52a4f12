"""Inputs of which a part is in no dataset: variables in maps, pipelines that race, and what was exact before."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import keras_dist_callbacks as kdc
from tests.support import tiny
from tests.support.exactness_case import (
    EVERYWHERE,
    PYTHON_CODE,
    Arguments,
    Case,
    for_images,
    image_rows,
    images,
    of_images,
    of_rows,
)
from tests.support.inputs import INPUTS, rows, shuffle

PARALLEL = r"(?i)parallel"
WITH_PYTHON_CODE = {name for name in INPUTS if "generator" in name or "two workers" in name}
UNDER_STRATEGIES = (
    "finite",
    "shuffled without a seed of its own",
    "shuffle, repeat",
    "finite with fewer steps_per_epoch",
    "numpy",
    "shuffled validation",
)


def flip() -> Any:
    return keras.layers.RandomFlip()


def rotation() -> Any:
    return keras.layers.RandomRotation(0.2)


def augment(dataset: tf.data.Dataset, *layers: Any, **options: Any) -> tf.data.Dataset:
    def through(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        for layer in layers:
            x = layer(x, training=True)
        return x, y

    return dataset.map(through, **options)


def keras_noise(seed: Any = None) -> tf.data.Dataset:
    return tiny.shuffled().map(lambda x, y: (x + keras.random.normal((6,), stddev=0.3, seed=seed), y))


def counted() -> tf.data.Dataset:
    batches = tf.Variable(0.0)
    return tiny.shuffled().map(lambda x, y: (x * (1.0 + 0.1 * batches.assign_add(1.0)), y))


def cached_augmentation() -> tf.data.Dataset:
    once = tf.data.Dataset.from_tensor_slices(image_rows()).batch(tiny.BATCH)
    return augment(once, flip()).cache().shuffle(tiny.STEPS, seed=3)


def one_layer_for_both() -> Arguments:
    layer = flip()
    return {"x": augment(images(), layer), "validation_data": augment(images(), layer)}


def of_epochs(fn: Any) -> Arguments:
    return {"x": fn(0), "callbacks": [kdc.EpochDataset(fn)]}


def epochs_of_one_layer() -> Arguments:
    layer = flip()
    return of_epochs(lambda epoch: augment(images(), layer))


def seeded_epochs() -> Arguments:
    return of_epochs(lambda epoch: rows().shuffle(tiny.ROWS, seed=epoch + 1).batch(tiny.BATCH))


VARIABLES_IN_MAPS = {
    "augmentation in a map": of_images("exact", lambda: {"x": augment(images(), flip())}, strategies=EVERYWHERE),
    "augmentation in a map, prefetched": of_images(
        "exact", lambda: {"x": augment(images(), rotation()).prefetch(2)}, strategies=EVERYWHERE
    ),
    "augmentation in a map, prefetched by AUTOTUNE": of_images(
        "exact", lambda: {"x": augment(images(), flip()).prefetch(tf.data.AUTOTUNE)}
    ),
    "two augmentation layers in a map": of_images("exact", lambda: {"x": augment(images(), flip(), rotation())}),
    "augmentation layers of a Sequential in a map": of_images(
        "exact", lambda: {"x": augment(images(), keras.Sequential([flip(), rotation()]))}
    ),
    "augmentation in a map, cached": of_images("exact", lambda: {"x": cached_augmentation()}),
    "augmentation of an endless dataset": of_images(
        "exact", lambda: {"x": augment(images().repeat(), flip()), "steps_per_epoch": 4}, strategies=EVERYWHERE[:2]
    ),
    "augmentation of validation data too": of_images(
        "exact", lambda: {"x": augment(images(), flip()), "validation_data": augment(images().take(2), flip())}
    ),
    "one augmentation layer for training and validation": of_images("exact", one_layer_for_both),
    "augmentation layer in a map and in the model": Case(
        "not exact",
        lambda model: {"x": augment(images(), model.layers[0])},
        lambda: for_images(flip()),
        says=r"(?i)map|input|dataset",
    ),
    "augmentation layer in a map, prefetched, and in the model": Case(
        "not exact",
        lambda model: {"x": augment(images(), model.layers[0]).prefetch(2)},
        lambda: for_images(flip()),
        says=r"(?i)map|input|dataset",
    ),
    "augmentation in EpochDataset, one layer": of_images("exact if", epochs_of_one_layer, PYTHON_CODE),
    "augmentation in EpochDataset, a layer per epoch": of_images(
        "exact if", lambda: of_epochs(lambda epoch: augment(images(), flip())), PYTHON_CODE + "|EpochDataset"
    ),
    "EpochDataset that is seeded by the epoch": of_rows("exact if", seeded_epochs, PYTHON_CODE),
    "keras.random without a seed in a map": of_rows("exact", lambda: {"x": keras_noise()}),
    "keras.random with a SeedGenerator in a map": of_rows(
        "exact", lambda: {"x": keras_noise(keras.random.SeedGenerator(5))}
    ),
    "keras.random with a number as its seed in a map": of_rows("exact", lambda: {"x": keras_noise(5)}),
    "a shuffled part behind another": of_rows(
        "exact",
        lambda: {"x": rows().repeat(4).batch(8).concatenate(rows().shuffle(40).batch(8))},
        strategies=EVERYWHERE[:2],
    ),
    "variable that a map increments": of_rows("exact", lambda: {"x": counted()}, strategies=EVERYWHERE),
}


def slow_for_some(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A function that takes for each row another time, so that neighbours finish out of order now and then."""
    turns = tf.cast(300.0 * tf.abs(x[0]), tf.int32)
    value = tf.while_loop(lambda i, v: i < turns, lambda i, v: (i + 1, tf.sin(v)), [0, x[1]])[1]
    return tf.where(value > 9.0, x + 1.0, x), y


def unordered() -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return rows().map(slow_for_some, num_parallel_calls=8).prefetch(1).batch(tiny.BATCH).with_options(options)


def unordered_map() -> tf.data.Dataset:
    return rows().map(slow_for_some, num_parallel_calls=8, deterministic=False).prefetch(1).batch(tiny.BATCH)


def unordered_interleave() -> tf.data.Dataset:
    slow = lambda x, y: tf.data.Dataset.from_tensors((x, y)).map(slow_for_some)  # noqa: E731
    return rows().interleave(slow, cycle_length=8, num_parallel_calls=8, deterministic=False).batch(tiny.BATCH)


def noise(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x + tf.random.normal(tf.shape(x), stddev=0.3), y


def drawn_from_generator(**options: Any) -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(5)
    return shuffle(rows()).map(lambda x, y: (x + generator.normal([6], stddev=0.3), y), **options).batch(tiny.BATCH)


def zipped(draw: Any, data: tf.data.Dataset, ahead: int = 4) -> tf.data.Dataset:
    """Two pipelines, each in a thread of its own, that draw from one state."""
    one, other = (data.map(lambda x, y: (draw(x), y)).prefetch(ahead) for _ in range(2))
    return tf.data.Dataset.zip(one, other).map(lambda a, b: (a[0] + b[0], a[1]))


def zipped_generator() -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(5)
    return zipped(lambda x: x + generator.normal([6], stddev=0.3), rows()).batch(tiny.BATCH)


def zipped_layer() -> tf.data.Dataset:
    layer = flip()
    return zipped(lambda x: layer(x, training=True), images())


def stateless(**options: Any) -> tf.data.Dataset:
    seeds = tf.data.Dataset.counter().map(lambda i: tf.stack([i, i]))

    def through(row: Any, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return row[0] + tf.random.stateless_normal([6], seed, stddev=0.3), row[1]

    return tf.data.Dataset.zip(shuffle(rows()), seeds).map(through, **options).batch(tiny.BATCH)


NOT_REPRODUCIBLE = {
    "input of unknown length under several replicas": of_rows(
        "not exact",
        lambda: {"x": shuffle(rows()).filter(lambda x, y: x[0] > -0.5).batch(tiny.BATCH)},
        "unknown length",
        strategies=("mirrored", "multi_worker"),
    ),
    "order that options leave open": of_rows("not exact", lambda: {"x": unordered()}, r"(?i)determinis|order"),
    "order that a map leaves open": of_rows("not exact", lambda: {"x": unordered_map()}, r"(?i)determinis|order"),
    "order that interleave leaves open": of_rows(
        "not exact", lambda: {"x": unordered_interleave()}, r"(?i)determinis|order"
    ),
    "tf.random in a parallel map": of_rows(
        "not exact", lambda: {"x": shuffle(rows()).map(noise, num_parallel_calls=2).batch(tiny.BATCH)}, PARALLEL
    ),
    "tf.random in a parallel map, AUTOTUNE": of_rows(
        "not exact", lambda: {"x": tiny.shuffled().map(noise, num_parallel_calls=tf.data.AUTOTUNE)}, PARALLEL
    ),
    "augmentation in a parallel map": of_images(
        "not exact", lambda: {"x": augment(images(), flip(), num_parallel_calls=2)}, PARALLEL
    ),
    "augmentation in a parallel map, AUTOTUNE": of_images(
        "not exact",
        lambda: {"x": augment(images(), flip(), num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)},
        PARALLEL,
    ),
    "generator in a map": of_rows("exact", lambda: {"x": drawn_from_generator()}),
    "generator in a parallel map": of_rows(
        "not exact", lambda: {"x": drawn_from_generator(num_parallel_calls=2)}, r"Generator|(?i:parallel)"
    ),
    "one generator for two pipelines": of_rows("not exact", lambda: {"x": zipped_generator()}, "StateVar"),
    "one augmentation layer for two pipelines": of_images("not exact", lambda: {"x": zipped_layer()}, "seed_generator"),
    "parallel map without randomness": of_rows(
        "exact", lambda: {"x": shuffle(rows()).map(slow_for_some, num_parallel_calls=2).batch(tiny.BATCH)}
    ),
    "stateless random numbers of a counter": of_rows("exact", lambda: {"x": stateless()}),
    "stateless random numbers in a parallel map": of_rows("exact", lambda: {"x": stateless(num_parallel_calls=2)}),
}


def _as_before(name: str) -> Case:
    strategies = EVERYWHERE if name in UNDER_STRATEGIES else EVERYWHERE[:1]
    if name in WITH_PYTHON_CODE:
        return of_rows("exact if", INPUTS[name], PYTHON_CODE, strategies=strategies)
    runs_out = name == "finite with fewer steps_per_epoch"  # after two batches of the second epoch
    return of_rows("exact", INPUTS[name], strategies=strategies, batch=1 if runs_out else 2)


AS_BEFORE = {f"input: {name}": _as_before(name) for name in INPUTS}
INPUT_CASES: dict[str, Case] = {**VARIABLES_IN_MAPS, **NOT_REPRODUCIBLE, **AS_BEFORE}

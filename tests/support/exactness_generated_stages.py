"""Stages of tf.data that a generated pipeline is put together from, each planned from a seed and built later."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support.exactness_python import SIGNATURE, own_draw, shared_draw

ROWS = 64
MOST_ROWS = 100  # above it nothing more is repeated: an epoch is to last some steps, not a hundred
Change = Callable[[tf.data.Dataset], tf.data.Dataset]


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")


@dataclass
class Plan:
    """A pipeline that is being put together.

    Attributes:
        rng: What every choice is drawn from, none of them later than here.
        batch: The size of its batches.
        drops: Whether only full batches are kept.
        least: How many rows an epoch has at least.
        most: How many it has at most, if no stage repeats without an end.
        endless: Whether one does.
        batched: Whether the elements are batches at this point.
        words: The stages so far, in words.
        changes: What makes them.
    """

    rng: random.Random
    batch: int
    drops: bool
    least: float = ROWS
    most: float = ROWS
    endless: bool = False
    batched: bool = False
    words: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def add(self, words: str, change: Change) -> None:
        self.words.append(words)
        self.changes.append(change)

    def parallel(self, share: float) -> dict[str, Any]:
        chosen = self.rng.choice([2, tf.data.AUTOTUNE])
        return {"num_parallel_calls": chosen} if self.rng.random() < share else {}

    def fresh(self) -> Change:
        """Another dataset of the same kind of elements, whatever it is given."""
        seed, batched = self.rng.choice([None, 9]), self.batched

        def make(_: tf.data.Dataset) -> tf.data.Dataset:
            rows = tf.data.Dataset.from_tensor_slices(data()).take(ROWS // 2).shuffle(ROWS // 2, seed=seed)
            return rows.batch(self.batch, drop_remainder=self.drops) if batched else rows

        return make


def mapped(dataset: tf.data.Dataset, change: Callable[[Any], Any], **options: Any) -> tf.data.Dataset:
    return dataset.map(lambda x, y: (change(x), y), **options)


def _marked(words: str, options: dict[str, Any]) -> str:
    return f"{words} in parallel" if options else words


def pure(plan: Plan) -> None:
    factor, options = plan.rng.uniform(0.5, 1.5), plan.parallel(0.4)
    plan.add(_marked("map", options), lambda d: mapped(d, lambda x: tf.tanh(factor * x), **options))


def tensorflow_noise(plan: Plan) -> None:
    seed, options = plan.rng.choice([None, 5]), plan.parallel(0.15)
    plan.add(
        _marked(f"tf.random (seed {seed})", options),
        lambda d: mapped(d, lambda x: x + tf.random.normal(tf.shape(x), stddev=0.3, seed=seed), **options),
    )


def _with_seed(row: Any, seed: Any) -> tuple[Any, Any]:
    pair = tf.stack([tf.constant(3, tf.int64), tf.cast(seed, tf.int64)])
    return row[0] + tf.random.stateless_normal(tf.shape(row[0]), pair, stddev=0.3), row[1]


def stateless_noise(plan: Plan) -> None:
    options = plan.parallel(0.4)
    change = lambda d: d.enumerate().map(lambda i, row: _with_seed(row, i), **options)  # noqa: E731
    plan.add(_marked("stateless random", options), change)


def zipped_seeds(plan: Plan) -> None:
    seed, anew = plan.rng.choice([None, 4]), plan.rng.choice([None, True, False])

    def change(dataset: tf.data.Dataset) -> tf.data.Dataset:
        seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=anew)
        return tf.data.Dataset.zip(dataset, seeds).map(_with_seed)

    plan.add(f"zip with Dataset.random (seed {seed}, rerandomize {anew})", change)


def _flipped(x: Any, layer: Any) -> Any:
    return tf.reshape(layer(tf.reshape(x, [*([-1] if x.shape.rank == 2 else []), 3, 2, 1]), training=True), tf.shape(x))


LAYERS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "GaussianNoise": lambda: _trained(keras.layers.GaussianNoise(0.3)),
    "Dropout": lambda: _trained(keras.layers.Dropout(0.3)),
    "RandomFlip": lambda: (lambda layer: lambda x: _flipped(x, layer))(keras.layers.RandomFlip()),
    "keras.random": lambda: lambda x: x + keras.random.normal(tf.shape(x), stddev=0.3),
    "keras.random (seed 5)": lambda: lambda x: x + keras.random.normal(tf.shape(x), stddev=0.3, seed=5),
    "keras.random (SeedGenerator)": lambda: _seeded(keras.random.SeedGenerator(5)),
    "tf.Variable counter": lambda: _counted(tf.Variable(0.0, trainable=False)),
    "tf.random.Generator": lambda: _generated(tf.random.Generator.from_seed(5)),
}
"""Functions for a map, each with a state of its own that lives in variables."""


def _trained(layer: Any) -> Callable[[Any], Any]:
    return lambda x: layer(x, training=True)


def _seeded(seeds: Any) -> Callable[[Any], Any]:
    return lambda x: x + keras.random.normal(tf.shape(x), stddev=0.3, seed=seeds)


def _counted(calls: tf.Variable) -> Callable[[Any], Any]:
    return lambda x: x * (1.0 + 0.2 * tf.sin(calls.assign_add(1.0)))


def _generated(generator: Any) -> Callable[[Any], Any]:
    return lambda x: x + generator.normal(tf.shape(x), stddev=0.3)


def layer(plan: Plan) -> None:
    name, options = plan.rng.choice(sorted(LAYERS)), plan.parallel(0.12)
    plan.add(_marked(name, options), lambda d: mapped(d, LAYERS[name](), **options))


def scan(plan: Plan) -> None:
    plan.add("scan", lambda d: d.scan(0.0, lambda n, row: (n + 1.0, (row[0] * (1.0 + 0.2 * tf.sin(n)), row[1]))))


def shuffle(plan: Plan) -> None:
    buffer, seed = plan.rng.choice([3, 10, ROWS]), plan.rng.choice([None, 3])
    anew = plan.rng.choice([True, True, False])
    words = f"shuffle {buffer}{'' if seed is None else f' (seed {seed})'}{'' if anew else ' once'}"
    plan.add(words, lambda d: d.shuffle(buffer, seed=seed, reshuffle_each_iteration=anew))


def repeat(plan: Plan) -> None:
    if plan.endless or (plan.most > MOST_ROWS and plan.rng.random() < 0.7):
        return
    if plan.most > MOST_ROWS or plan.rng.random() < 0.6:
        plan.endless = True
        plan.add("repeat", lambda d: d.repeat())
    else:
        plan.least, plan.most = 2 * plan.least, 2 * plan.most
        plan.add("repeat 2", lambda d: d.repeat(2))


def cache(plan: Plan) -> None:
    if not plan.endless:
        plan.add("cache", lambda d: d.cache())


def nest(plan: Plan) -> None:
    """Datasets within a function: of several rows each, or of one batch each."""
    kind, options = plan.rng.choice(["interleave", "flat_map", "interleave"]), plan.parallel(0.2)
    inner, name = plan.rng.choice(["plain", "shuffle", "shuffle", "layer"]), plan.rng.choice(sorted(LAYERS))
    seed, batched = plan.rng.choice([None, 5]), plan.batched
    if kind == "flat_map":
        options = {}

    def change(dataset: tf.data.Dataset) -> tf.data.Dataset:
        draw = LAYERS[name]() if inner == "layer" else None

        def part(x: Any, y: Any) -> tf.data.Dataset:
            rows = tf.data.Dataset.from_tensor_slices((x, y))
            rows = rows.shuffle(6, seed=seed) if inner == "shuffle" else rows
            rows = mapped(rows, draw) if draw else rows
            return rows.batch(plan.batch, drop_remainder=plan.drops) if batched else rows

        groups = dataset if batched else dataset.batch(6)
        return groups.flat_map(part) if kind == "flat_map" else groups.interleave(part, cycle_length=2, **options)

    what = {"plain": "", "shuffle": f" of shuffles (seed {seed})", "layer": f" of {name}"}[inner]
    plan.add(_marked(kind + what, options), change)


def keep_some(plan: Plan) -> None:
    if plan.least < 6 * plan.batch:
        return
    chance, batched = plan.rng.random() < 0.3, plan.batched
    plan.least = plan.least * 0.5

    def keep(x: Any, y: Any) -> Any:
        if chance:
            return tf.random.uniform([]) > 0.1
        return tf.reduce_mean(x[:, 0]) > -0.6 if batched else x[0] > -1.2

    plan.add("filter by tf.random" if chance else "filter", lambda d: d.filter(keep))


def cut(plan: Plan) -> None:
    if plan.least < 5 * plan.batch:
        return
    kind, size = plan.rng.choice(["take", "skip"]), plan.batch if plan.batched else 1
    if kind == "take":
        count = int(plan.least / size * 0.9)
        plan.least, plan.most = min(plan.least, count * size), min(plan.most, count * size)
        if plan.endless:
            plan.endless, plan.least, plan.most = False, count * size, count * size
        plan.add(f"take {count}", lambda d: d.take(count))
    else:
        plan.least -= size
        plan.add("skip 1", lambda d: d.skip(1))


def prefetch(plan: Plan) -> None:
    size = plan.rng.choice([1, 3, tf.data.AUTOTUNE])
    plan.add("prefetch", lambda d: d.prefetch(size))


def pair(plan: Plan) -> None:
    name = plan.rng.choice([None, *sorted(LAYERS)])

    def change(dataset: tf.data.Dataset) -> tf.data.Dataset:
        other = mapped(dataset, LAYERS[name]() if name else tf.tanh)
        return tf.data.Dataset.zip(dataset, other).map(lambda a, b: (0.5 * (a[0] + b[0]), a[1]))

    plan.add(f"zip with itself through {name or 'a map'}", change)


def join(plan: Plan) -> None:
    if plan.most > MOST_ROWS:
        return
    kind, fresh, seed = plan.rng.choice(["concatenate", "sample"]), plan.fresh(), plan.rng.choice([None, 4])
    plan.least, plan.most = plan.least + ROWS // 2 - plan.batch, plan.most + ROWS // 2
    if kind == "concatenate":
        plan.add("concatenate", lambda d: d.concatenate(fresh(d)))
    else:
        choose = tf.data.Dataset.sample_from_datasets
        plan.add(f"sample_from_datasets (seed {seed})", lambda d: choose([d, fresh(d)], [0.6, 0.4], seed=seed))


DRAWS: dict[str, Callable[[], Callable[[tuple[int, ...]], np.ndarray]]] = {
    "no state": lambda: lambda shape: np.zeros(shape, "float32"),
    "np.random": shared_draw,
    "an own generator": own_draw,
}


def numpy_function(plan: Plan) -> None:
    name = plan.rng.choice(sorted(DRAWS))

    def change(dataset: tf.data.Dataset) -> tf.data.Dataset:
        draw = DRAWS[name]()

        def through(x: Any) -> Any:
            noisy = tf.numpy_function(lambda a: a + 0.3 * draw(a.shape).astype("float32"), [x], tf.float32)
            return tf.ensure_shape(noisy, x.shape)

        return mapped(dataset, through)

    plan.add(f"numpy_function with {name}", change)


def batch(plan: Plan) -> None:
    plan.batched = True
    plan.add(f"batch {plan.batch}", lambda d: d.batch(plan.batch, drop_remainder=plan.drops))


def generator_source(draw: str) -> tf.data.Dataset:
    noise = DRAWS[draw]()

    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for x, y in zip(*data(), strict=True):
            yield x + 0.3 * noise(x.shape).astype("float32"), y

    return tf.data.Dataset.from_generator(rows, output_signature=SIGNATURE)


STAGES: dict[Callable[[Plan], None], int] = {
    **{pure: 3, tensorflow_noise: 2, stateless_noise: 1, zipped_seeds: 1, layer: 6, scan: 1, shuffle: 6, repeat: 3},
    **{cache: 3, nest: 3, keep_some: 2, cut: 2, prefetch: 3, pair: 2, join: 3, numpy_function: 1},
}

"""Trainings that no one thought of: pipeline, model, callbacks, validation data and kills drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support import tiny
from tests.support.exactness_inputs import (
    Anneals,
    AveragesInArray,
    CountsInDict,
    DrawsOfItsOwn,
    KeepsNothing,
    ListsLosses,
    LowersByGlobalNumpy,
    LowersEachThird,
    Noisy,
    OwnGenerator,
    ShuffledByItsGenerator,
    annealed,
    arrays,
    endless,
    in_python,
    mapped,
    own_draw,
    python_rows,
    shared_draw,
)
from tests.support.exactness_models import (
    Arguments,
    Case,
    CountsInPython,
    Noise,
    RisingLoss,
    Stepping,
    accumulated,
    adversaries,
    averaged,
    built,
    dense,
    drop,
    loss_scaled,
    mix,
    normalized,
    recurrent,
)
from tests.support.inputs import STEPS, Batches, SelfShuffling

ROWS = 64
MOST_ROWS = 100  # above it nothing more is repeated: an epoch is to last some steps, not a hundred
MIRRORED_SHARE = 8  # one in so many
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


def _trained(layer: Any) -> Callable[[Any], Any]:
    return lambda x: layer(x, training=True)


def _drawn(seed: Any = None) -> Callable[[Any], Any]:
    return lambda x: x + keras.random.normal(tf.shape(x), stddev=0.3, seed=seed)


def _counted(calls: tf.Variable) -> Callable[[Any], Any]:
    return lambda x: x * (1.0 + 0.2 * tf.sin(calls.assign_add(1.0)))


def _generated(generator: Any) -> Callable[[Any], Any]:
    return lambda x: x + generator.normal(tf.shape(x), stddev=0.3)


LAYERS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "GaussianNoise": lambda: _trained(keras.layers.GaussianNoise(0.3)),
    "Dropout": lambda: _trained(keras.layers.Dropout(0.3)),
    "RandomFlip": lambda: (lambda layer: lambda x: _flipped(x, layer))(keras.layers.RandomFlip()),
    "keras.random": _drawn,
    "keras.random (seed 5)": lambda: _drawn(5),
    "keras.random (SeedGenerator)": lambda: _drawn(keras.random.SeedGenerator(5)),
    "tf.Variable counter": lambda: _counted(tf.Variable(0.0, trainable=False)),
    "tf.random.Generator": lambda: _generated(tf.random.Generator.from_seed(5)),
}
"""Functions for a map, each with a state of its own that lives in variables."""


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


def _weak(name: str) -> Callable[[tuple[int, ...]], np.ndarray]:
    draw = DRAWS[name]()
    return lambda shape: 0.3 * draw(shape)


def numpy_function(plan: Plan) -> None:
    name = plan.rng.choice(sorted(DRAWS))

    def change(dataset: tf.data.Dataset) -> tf.data.Dataset:
        draw = _weak(name)
        return mapped(dataset, in_python(lambda a: a + draw(a.shape)))

    plan.add(f"numpy_function with {name}", change)


def batch(plan: Plan) -> None:
    plan.batched = True
    plan.add(f"batch {plan.batch}", lambda d: d.batch(plan.batch, drop_remainder=plan.drops))


STAGES: dict[Callable[[Plan], None], int] = {
    **{pure: 3, tensorflow_noise: 2, stateless_noise: 1, zipped_seeds: 1, layer: 6, scan: 1, shuffle: 6, repeat: 3},
    **{cache: 3, nest: 3, keep_some: 2, cut: 2, prefetch: 3, pair: 2, join: 3, numpy_function: 1},
}


OTHERS: dict[str, tuple[Callable[[], Arguments], int]] = {
    "PyDataset": (lambda: {"x": Batches()}, tiny.STEPS),
    "PyDataset, shuffled": (lambda: {"x": Batches(), "shuffle": True}, tiny.STEPS),
    "PyDataset with two workers": (lambda: {"x": Batches(workers=2), "shuffle": True}, tiny.STEPS),
    "PyDataset with np.random": (lambda: {"x": Noisy(shared_draw())}, tiny.STEPS),
    "PyDataset with an own generator": (lambda: {"x": OwnGenerator()}, tiny.STEPS),
    "PyDataset that shuffles itself": (lambda: {"x": SelfShuffling()}, tiny.STEPS),
    "PyDataset that shuffles itself by its generator": (lambda: {"x": ShuffledByItsGenerator()}, tiny.STEPS),
    "arrays": (lambda: arrays(shuffle=True), tiny.STEPS),
    "arrays in order": (lambda: arrays(shuffle=False), tiny.STEPS),
    "Python generator with np.random": (lambda: endless(shared_draw()), STEPS),
    "Python generator with an own generator": (lambda: endless(own_draw()), STEPS),
}


@dataclass(frozen=True)
class Input:
    """An input of fit().

    Attributes:
        words: What it is.
        make: Makes the arguments.
        batches: How many batches an epoch has at least.
        batch: The size of all its batches but the last.
    """

    words: str
    make: Callable[[], Arguments]
    batches: int
    batch: int


def generate(rng: random.Random, *, full_batches: bool, even: bool) -> Input:
    """Draws an input.

    Args:
        rng: What it is drawn from.
        full_batches: Whether its batches must all have one size.
        even: Whether they must have an even one.
    """
    if rng.random() < 0.16:
        name = rng.choice(sorted(OTHERS))
        return Input(name, OTHERS[name][0], OTHERS[name][1], tiny.BATCH)
    size = rng.choice([4, 6, 8] if even else [4, 5, 6, 7, 8])
    return _pipeline(Plan(rng, size, full_batches or even or rng.random() < 0.5))


def _pipeline(plan: Plan) -> Input:
    source = plan.rng.choice(["rows"] * 12 + sorted(DRAWS))
    count = plan.rng.randint(4, 7)
    place = plan.rng.randint(count // 2, count)
    for number in range(count + 1):
        if number == place:
            batch(plan)
        else:
            chosen = plan.rng.choices(list(STAGES), list(STAGES.values()))[0]
            chosen(plan)
    steps = plan.rng.randint(4, 6)
    options = {"steps_per_epoch": steps} if plan.endless else {}

    def make() -> Arguments:
        first = tf.data.Dataset.from_tensor_slices(data()) if source == "rows" else python_rows(_weak(source), data)
        for change in plan.changes:
            first = change(first)
        return {"x": first, **options}

    begin = source if source == "rows" else f"from_generator with {source}"
    words = " > ".join([begin, *plan.words]) + (f" [{steps} steps]" if plan.endless else "")
    return Input(words, make, steps if plan.endless else max(1, int(plan.least // plan.batch) - 1), plan.batch)


def _rows(size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data()).take(3 * size)


def _augmented(size: int, name: str) -> tf.data.Dataset:
    return mapped(_rows(size), LAYERS[name]()).batch(size)


def validation(rng: random.Random, size: int) -> tuple[str, Callable[[], Arguments]]:
    """Draws validation data, in batches that are full."""
    name, seed, freq = rng.choice(sorted(LAYERS)), rng.choice([None, 8]), rng.choice([1, 1, 1, 2])
    x, y = (part[: 3 * size] for part in data())
    made: dict[str, Callable[[], Any]] = {
        "arrays": lambda: {"validation_data": (x, y), "validation_batch_size": size},
        f"shuffled (seed {seed})": lambda: {
            "validation_data": _rows(4 * size).shuffle(20, seed=seed).batch(size, drop_remainder=True).take(3)
        },
        f"augmented by {name}": lambda: {"validation_data": _augmented(size, name)},
    }
    words = rng.choice(["none", "none", *made])
    if words == "none":
        return "none", dict
    return f"{words}, every {freq}", lambda: {**made[words](), "validation_freq": freq}


Callbacks = Callable[[], list[Any]]


@dataclass(frozen=True)
class Model:
    """A model that a case may train.

    Attributes:
        build: Builds and compiles it; gets the size of the batches.
        loss: The name under which it reports its loss.
        mirrored: Whether it can be trained by two replicas.
        evaluates: Whether it takes validation data.
        full_batches: Whether it takes batches of one size alone.
        callbacks: What belongs to it.
        resumed: What is otherwise in the resumed run.
    """

    build: Callable[[int], keras.Model]
    loss: str = "loss"
    mirrored: bool = False
    evaluates: bool = True
    full_batches: bool = False
    callbacks: Callbacks = list
    resumed: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def of_sequences(kind: type, size: int | None = None, **options: Any) -> keras.Model:
    first = keras.Input((6,)) if size is None else keras.Input(batch_shape=(size, 6))
    return recurrent(first, keras.layers.Reshape((3, 2)), kind(4, **options), jit_compile=False)


class CountsInVariable(keras.layers.Layer):
    """A variable that no attribute of Keras tracks: a closure holds it."""

    def __init__(self) -> None:
        super().__init__()
        calls = tf.Variable(0.0, trainable=False)
        self.calls = lambda: calls

    def call(self, x: Any) -> Any:
        return x * (1.0 + 0.1 * tf.sin(self.calls().assign_add(1.0)))


MODELS: dict[str, Model] = {
    "dense": Model(lambda size: dense(), mirrored=True),
    "dense, AUC": Model(lambda size: dense(weighted_metrics=["AUC"]), mirrored=True),
    "dense, eagerly": Model(lambda size: dense(run_eagerly=True)),
    "BatchNormalization": Model(lambda size: dense(inside=(keras.layers.BatchNormalization(),)), mirrored=True),
    "train_step": Model(lambda size: built(Stepping())),
    "train_step with tf.nn.dropout": Model(lambda size: built(Stepping(drop))),
    "train_step with tf.random.shuffle, eagerly": Model(lambda size: built(Stepping(mix), run_eagerly=True)),
    "train_step that counts, eagerly": Model(lambda size: built(CountsInPython(), run_eagerly=True)),
    "two optimizers": Model(lambda size: adversaries(), loss="maker", evaluates=False),
    "EMA": Model(lambda size: dense(averaged()), mirrored=True),
    "EMA that is swapped": Model(
        lambda size: dense(averaged()), callbacks=lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
    ),
    "accumulation": Model(lambda size: accumulated()),
    "loss scaling": Model(lambda size: loss_scaled()),
    "LSTM": Model(lambda size: of_sequences(keras.layers.LSTM, dropout=0.2), mirrored=True),
    "stateful LSTM": Model(lambda size: of_sequences(keras.layers.LSTM, size, stateful=True), full_batches=True),
    "stateful GRU": Model(
        lambda size: of_sequences(keras.layers.GRU, size, stateful=True, recurrent_dropout=0.2), full_batches=True
    ),
    "variable in the loss": Model(lambda size: dense(loss=RisingLoss())),
    "variable in the loss, by a callback": Model(lambda size: annealed(), mirrored=True, callbacks=lambda: [Anneals()]),
    "hidden variable in a layer": Model(lambda size: dense(inside=(CountsInVariable(),))),
    "Normalization adapted once": Model(
        lambda size: normalized(adapt=True), resumed={"model": lambda: normalized(adapt=False)}
    ),
    "tf.random": Model(lambda size: dense(inside=(Noise(),)), mirrored=True),
    "tf.random, eagerly": Model(lambda size: dense(inside=(Noise(),), run_eagerly=True)),
}
PLAIN = ["dense"] * 8 + ["BatchNormalization"] * 3 + ["train_step"] * 2


def model(rng: random.Random, *, mirrored: bool) -> str:
    """Draws one; often a plain one, so that much else is called exact."""
    able = [name for name in [*PLAIN, *MODELS] if MODELS[name].mirrored or not mirrored]
    return rng.choice(able)


CALLBACKS: dict[str, Callable[[str], list[Any]]] = {
    "EarlyStopping": lambda loss: [
        keras.callbacks.EarlyStopping(loss, mode="min", patience=9, restore_best_weights=True)
    ],
    "ReduceLROnPlateau": lambda loss: [
        keras.callbacks.ReduceLROnPlateau(loss, mode="min", patience=1, factor=0.5, min_delta=0.02)
    ],
    "LearningRateScheduler": lambda loss: [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)],
    "counter": lambda loss: [LowersEachThird()],
    "list": lambda loss: [ListsLosses()] if loss == "loss" else [],
    "dict": lambda loss: [CountsInDict()],
    "array": lambda loss: [AveragesInArray()] if loss == "loss" else [],
    "own generator": lambda loss: [DrawsOfItsOwn()],
    "np.random": lambda loss: [LowersByGlobalNumpy()],
    "no state": lambda loss: [KeepsNothing()],
}
SEEN = ["EarlyStopping", "ReduceLROnPlateau", "LearningRateScheduler", "np.random", "no state"]


def followers(rng: random.Random, chosen: Model) -> tuple[str, Callbacks]:
    """Draws none, one or two; those with a state that cannot be inspected less often."""
    names = [rng.choice([*SEEN, *SEEN, *CALLBACKS]) for _ in range(rng.choice([0, 0, 1, 1, 2]))]

    def make() -> list[Any]:
        return [*chosen.callbacks(), *(callback for name in names for callback in CALLBACKS[name](chosen.loss))]

    return ", ".join(names) or "none", make


PREFIX = "generated "


def generated(seed: int) -> Case:
    """The same in every process: all is drawn here, before anything is built. Nothing is expected of it."""
    rng = random.Random(seed)  # noqa: S311 - tests are to be the same again
    strategy = "mirrored" if rng.randrange(MIRRORED_SHARE) == 0 else "default"
    name = model(rng, mirrored=strategy == "mirrored")
    chosen = MODELS[name]
    given = generate(rng, full_batches=chosen.full_batches, even=strategy == "mirrored")
    validated, extra = validation(rng, given.batch) if chosen.evaluates else ("none", dict)
    called, made = followers(rng, chosen)
    epochs = rng.choice([3, 3, 4])
    save_freq = rng.choice([1, 1, 2, "epoch"])
    return Case(
        None,
        lambda model: {**given.make(), **extra()},
        lambda: chosen.build(given.batch),
        made,
        strategies=(strategy,),
        kills=_kills(rng, epochs, given.batches, save_freq),
        resumed=chosen.resumed,
        epochs=epochs,
        save_freq=save_freq,
        words=f"{given.words} | {name} | callbacks {called} | validation {validated}",
    )


def _kills(rng: random.Random, epochs: int, batches: int, save_freq: int | str) -> tuple[tuple[int, int], ...]:
    """Where it is killed: after the first backup, mostly after the first epoch, sometimes twice."""
    places = [(epoch, batch) for epoch in range(1, epochs) for batch in range(min(batches, 9))]
    if save_freq != "epoch" and rng.random() < 0.15:
        places = [(0, batch) for batch in range(int(save_freq), min(batches, 9))] or places
    first = rng.choice(places)
    later = [(epoch, batch) for epoch in range(1, epochs) for batch in range(min(batches, 9)) if (epoch, batch) > first]
    return (first, rng.choice(later)) if later and rng.random() < 0.2 else (first,)

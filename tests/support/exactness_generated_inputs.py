"""Inputs of fit() that are generated: pipelines of tf.data and what else it takes, with validation data."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tests.support import tiny
from tests.support.exactness_case import Arguments
from tests.support.exactness_changes import arrays
from tests.support.exactness_generated_stages import DRAWS, LAYERS, STAGES, Plan, batch, data, generator_source, mapped
from tests.support.exactness_python import (
    Noisy,
    OwnGenerator,
    ShuffledByItsGenerator,
    endless,
    own_draw,
    shared_draw,
)
from tests.support.inputs import STEPS, Batches, SelfShuffling

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
        first = tf.data.Dataset.from_tensor_slices(data()) if source == "rows" else generator_source(source)
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

"""A script that was changed between the killed run and the resumed one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.support import tiny
from tests.support.exactness_case import Arguments, Case, dense
from tests.support.exactness_models import adversaries
from tests.support.inputs import STEPS, rows


def changed(says: str, before: Callable[[], Arguments], after: Callable[[], Arguments], **options: Any) -> Case:
    return Case("not exact", lambda model: before(), says=says, resumed={"fit": lambda model: after()}, **options)


def rebuilt(says: str, before: Callable[[], keras.Model], after: Callable[[], keras.Model]) -> Case:
    return Case("not exact", model=before, says=says, resumed={"model": after})


def both(one: str, other: str, what: str = "") -> str:
    """Both values in their order, after what they are of."""
    return rf"(?is){what}.*{one}.*{other}"


def endless(batch: int) -> Arguments:
    return {"x": rows().repeat().batch(batch), "steps_per_epoch": STEPS}


def filtered(batch: int) -> Arguments:
    return {"x": rows().filter(lambda x, y: x[0] > -0.5).batch(batch)}


def some_rows(count: int) -> Arguments:
    return {"x": rows().take(count).shuffle(tiny.ROWS, seed=3).batch(tiny.BATCH)}


def arrays(**options: Any) -> Arguments:
    return dict(zip("xy", tiny.data(), strict=True)) | {"batch_size": tiny.BATCH, **options}


def in_order_of(seed: int = 3, buffer: int = tiny.ROWS) -> Arguments:
    return {"x": rows().shuffle(buffer, seed=seed).batch(tiny.BATCH)}


def weighted(weight: float) -> Arguments:
    return {"x": tiny.shuffled(), "class_weight": {0: 1.0, 1: weight}}


def with_rate(rate: Any) -> keras.Model:
    return dense(keras.optimizers.SGD(rate, momentum=0.9))


def with_schedule(rate: float) -> keras.Model:
    return with_rate(keras.optimizers.schedules.ExponentialDecay(rate, 5, 0.5))


def without_decay(pattern: str) -> keras.Model:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=[pattern])
    return dense(optimizer)


def of_two(first: str, second: str) -> keras.Model:
    """Two layers of one shape, in either order."""
    layers = [keras.layers.Dense(7, activation="relu", name=name) for name in (first, second)]
    ends = [keras.layers.Dense(7, name="begin"), *layers, keras.layers.Dense(1, activation="sigmoid", name="end")]
    model = keras.Sequential([keras.Input((6,)), *ends])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy")
    return model


def noisy(seed: int) -> Arguments:
    return {"x": tiny.shuffled().map(lambda x, y: (x + tf.random.normal([6], stddev=0.3, seed=seed), y))}


CHANGE_CASES: dict[str, Case] = {
    "changed: batch size of an endless dataset": changed(
        both("8", "4", "batch"), lambda: endless(8), lambda: endless(4)
    ),
    "changed: batch size of a dataset of unknown length": changed(
        both("8", "4", "batch"), lambda: filtered(8), lambda: filtered(4)
    ),
    "changed: number of rows": changed(
        both("40", "38"), lambda: some_rows(40), lambda: some_rows(38), strategies=("default", "mirrored")
    ),
    "changed: number of rows of an array": changed(
        both("40", "38"), arrays, lambda: {**arrays(), "x": tiny.data()[0][:38], "y": tiny.data()[1][:38]}
    ),
    "changed: shuffle of arrays": changed(
        both("True", "False", "shuffle"), lambda: arrays(shuffle=True), lambda: arrays(shuffle=False)
    ),
    "changed: class_weight": changed(both("2", "3", "class_weight"), lambda: weighted(2.0), lambda: weighted(3.0)),
    "changed: seed of the shuffle": changed(both("3", "4", "seed"), lambda: in_order_of(3), lambda: in_order_of(4)),
    "changed: buffer of the shuffle": changed(
        both("40", "20", "buffer"), in_order_of, lambda: in_order_of(buffer=tiny.ROWS // 2)
    ),
    "changed: seed of random numbers in a map": changed(both("5", "6", "seed"), lambda: noisy(5), lambda: noisy(6)),
    # the saved rate is restored, so that the old job continues: not what the one who changed it has asked for
    "changed: learning rate": rebuilt(
        both(r"0\.1", r"0\.05", "learning.rate"), lambda: with_rate(0.1), lambda: with_rate(0.05)
    ),
    "changed: rate of a second optimizer": rebuilt(
        both(r"0\.02", r"0\.01", "learning.rate"), adversaries, lambda: adversaries(0.01)
    ),
    "changed: schedule of the learning rate": rebuilt(
        both(r"0\.1", r"0\.2", "learning.rate"), lambda: with_schedule(0.1), lambda: with_schedule(0.2)
    ),
    "changed: momentum": rebuilt(
        both(r"0\.9", r"0\.5", "momentum"),
        lambda: dense(keras.optimizers.SGD(0.1, momentum=0.9)),
        lambda: dense(keras.optimizers.SGD(0.1, momentum=0.5)),
    ),
    "changed: exclude_from_weight_decay": rebuilt(
        both("bias", "kernel", "exclude_from_weight_decay"),
        lambda: without_decay("bias"),
        lambda: without_decay("kernel"),
    ),
    "changed: loss": rebuilt(both("binary_crossentropy", "mse|mean_squared", "loss"), dense, lambda: dense(loss="mse")),
    "changed: dtype policy": rebuilt(
        both("float32", "mixed_bfloat16", "dtype"), dense, lambda: dense(dtype="mixed_bfloat16")
    ),
    "changed: run_eagerly": rebuilt(
        both("False", "True", "run_eagerly"), lambda: dense(jit_compile=False), lambda: dense(run_eagerly=True)
    ),
    "changed: jit_compile": rebuilt(
        both("False", "True", "jit_compile"), lambda: dense(jit_compile=False), lambda: dense(jit_compile=True)
    ),
    "changed: activation": rebuilt(both("relu", "tanh", "activation"), dense, lambda: dense(activation="tanh")),
    "changed: rate of dropout": rebuilt(both(r"0\.3", r"0\.5", "rate"), dense, lambda: dense(rate=0.5)),
    "changed: layers swapped": rebuilt(
        both("left", "right"), lambda: of_two("left", "right"), lambda: of_two("right", "left")
    ),
    "changed: layers numbered by hand swapped": rebuilt(
        both("branch", "branch_1"), lambda: of_two("branch_1", "branch_2"), lambda: of_two("branch_2", "branch_1")
    ),
}

"""Run by every process of a strategy: holds what was read of all variables and compares it after more training."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks._compat import variables

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "adamw_ema": lambda: keras.optimizers.AdamW(0.1, use_ema=True, ema_momentum=0.5),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adamax": lambda: keras.optimizers.Adamax(0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.1),
    "lamb": lambda: keras.optimizers.Lamb(0.1),
    "accumulating": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1), dynamic_growth_steps=2),
}


def build(dtype: str = "float32") -> keras.Model:
    """An embedding (sparse updates), BatchNormalization, Dropout, a large and a small kernel."""
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(dtype)
    tokens = keras.Input((5,), dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(50, 8)(tokens))
    x = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(keras.layers.Dense(300)(x)))
    model = keras.Model(tokens, keras.layers.Dense(1, dtype="float32")(x))
    keras.config.set_dtype_policy("float32")
    return model


def dataset(batches: int = 4) -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    pairs = (rng.integers(0, 50, (batches * 8, 5)).astype("int32"), rng.normal(size=(batches * 8, 1)).astype("float32"))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices(pairs).batch(8).with_options(options)


def changed(model: keras.Model, **fit: Any) -> tuple[list[str], int]:
    """Trains, holds a snapshot, trains on; which held values changed, and how many variables did."""
    model.fit(dataset(), epochs=1, verbose=0, shuffle=False, **fit)
    found = variables.variable_set(model)
    held = [read.array() for read in found.hold()]
    copies = [np.array(array, copy=True) for array in held]
    model.fit(dataset(), epochs=5, verbose=0, shuffle=False, **fit)
    now = [read.array() for read in found.hold()]
    moved = sum(one.tobytes() != two.tobytes() for one, two in zip(now, copies, strict=True))
    pairs = zip(found.labels, held, copies, strict=True)
    return [label for label, one, two in pairs if one.tobytes() != two.tobytes()], moved


def differs_after_a_restore(model: keras.Model) -> list[str]:
    """Trains on twice from the same state, the second time from memory that the variables took over."""
    model.fit(dataset(), epochs=1, verbose=0, shuffle=False)
    found = variables.variable_set(model)
    saved: dict[bytes, np.ndarray[Any, Any]] = {}
    state = []
    for read in found.hold():
        value = read.array()
        key = value.tobytes() + repr((value.shape, value.dtype)).encode()
        if key not in saved:  # equal components share memory, as after a restore
            saved[key] = variables.empty(value.shape, value.dtype)
            saved[key][...] = value
        state.append(saved[key])
    ends = []
    for _ in range(2):
        every = [c for v in found.named.values() for c in variables.components(v)]
        for component, value in zip(every, state, strict=True):
            variables.assign(component, value)
        model.fit(dataset(), epochs=3, verbose=0, shuffle=False)
        ends.append([read.array().tobytes() for read in found.hold()])
    return [label for label, one, two in zip(found.labels, *ends, strict=True) if one != two]


def main(kind: str) -> None:
    if kind == "mirrored":
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    else:
        strategy = kdc.make_strategy("multi_worker", cluster_options=kdc.ClusterOptions(startup_timeout=60))
    results = {}
    for name in ("adam", "momentum"):
        with strategy.scope():
            model = build()
            model.compile(OPTIMIZERS[name](), "mse", metrics=["mae"])
        results[name] = (*changed(model), differs_after_a_restore(model))
    print("RESULTS " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

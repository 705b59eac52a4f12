"""A small training for `kdc rehearse`, with one thing in it that a rehearsal is to find."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc

BATCHES, BATCH = 9, 8


class Noise(keras.layers.Layer):
    """Draws from TensorFlow's own random operation, whose state is in its kernel."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + 0.1 * tf.random.normal(tf.shape(x)) if training else x


class Hidden(keras.callbacks.Callback):
    """Counts in an iterator whose place cannot be inspected: a resume is exact if it keeps no state, and it does."""

    def __init__(self) -> None:
        super().__init__()
        self.tick = itertools.chain(range(1, 1_000_000))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate.assign(0.01 / next(self.tick))


def stateful_batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Draws from a generator of random numbers that each pass moves on: a resume does not read past epochs again."""
    for _ in range(BATCHES):
        x = RANDOM.normal(size=(BATCH, 6)).astype("float32")
        yield x, x[:, :1]


RANDOM = np.random.default_rng(3)


def data(case: str) -> Any:
    if case == "generator":
        kinds = (tf.TensorSpec((BATCH, 6), tf.float32), tf.TensorSpec((BATCH, 1), tf.float32))
        return tf.data.Dataset.from_generator(stateful_batches, output_signature=kinds)
    x = np.random.default_rng(0).normal(size=(BATCHES * BATCH, 6)).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(BATCHES * BATCH)
    if case == "unordered":
        options = tf.data.Options()
        options.deterministic = False
        return rows.map(_delayed, num_parallel_calls=4).with_options(options).batch(BATCH)
    return rows.batch(BATCH)


def _delayed(a: Any, b: Any) -> tuple[Any, Any]:
    """Takes up to 20 milliseconds, of TensorFlow's alone: a process that ends amid a `py_function` may never end."""
    count = tf.cast(tf.math.floormod(tf.timestamp() * 1e6, 100.0) * 100.0, tf.int32)
    with tf.control_dependencies([tf.while_loop(lambda n: n < count, lambda n: n + 1, [0])[0]]):
        return tf.identity(a), b


def model(case: str) -> keras.Model:
    layers = [keras.layers.Dense(5, activation="relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    built = keras.Sequential([keras.Input((6,)), *([Noise()] if case == "noise" else []), *layers])
    built.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return built


def train(case: str, directory: str, options: dict[str, Any] | None) -> None:
    best = kdc.ModelCheckpoint(
        f"{directory}/checkpoints/best.keras", save_best_only=True, monitor="loss", storage_options=options
    )
    callbacks: list[Any] = [Hidden()] if case == "counter" else []
    callbacks += [best, kdc.TensorBoard(f"{directory}/logs", storage_options=options)]
    if case != "no-backup":
        callbacks.append(kdc.BackupAndRestore(f"{directory}/backup", save_freq=100, storage_options=options))
    for _ in range(2 if case == "two-fits" else 1):
        strategy = kdc.make_strategy()
        with strategy.scope():
            built = kdc.make_or_restore_model(lambda: model(case), f"{directory}/checkpoints", storage_options=options)
        validation = data("plain") if case == "validation" else None
        built.fit(data(case), epochs=5, validation_data=validation, verbose=2, callbacks=callbacks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--case", default="plain")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--storage-options", type=json.loads)
    args = parser.parse_args()
    if args.log is not None:
        args.log.parent.mkdir(parents=True, exist_ok=True)
        args.log.write_text("a file of the script's own")
    if args.case == "fails":
        sys.exit("this script fails by itself")
    if args.case == "hangs":
        time.sleep(600)
    if args.case != "no-seed":
        keras.utils.set_random_seed(1)
    if args.case == "deterministic":
        tf.config.experimental.enable_op_determinism()
    if args.case == "loop":
        kdc.Checkpointer(f"{args.directory}/backup", model=model("plain"))
    train(args.case, args.directory, args.storage_options)


if __name__ == "__main__":
    main()

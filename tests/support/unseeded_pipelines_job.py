"""A training without a seed on a form of input that guides use, which can leave a copy of its backups in mid-epoch."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.testing import KillAt, record_run

ROWS, BATCH, EPOCHS = 48, 8, 3
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = (X.sum(1) > 0).astype("float32")
Dataset = tf.data.Dataset
Fit = dict[str, Any]


class Batches(keras.utils.PyDataset):
    """Rows that Keras shuffles by batches."""

    def __len__(self) -> int:
        return ROWS // BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(index * BATCH, (index + 1) * BATCH)
        return X[part], Y[part]


def rows() -> Dataset:
    return Dataset.from_tensor_slices((X, Y))


def shuffled() -> Dataset:
    return rows().shuffle(ROWS)


def from_python() -> Dataset:
    signature = (tf.TensorSpec((4,)), tf.TensorSpec(()))
    made = Dataset.from_generator(lambda: zip(X, Y, strict=True), output_signature=signature)
    return kdc.advanced.stateless_input(
        made.apply(tf.data.experimental.assert_cardinality(ROWS)).shuffle(ROWS).batch(BATCH)
    )


def files(directory: Path) -> Dataset:
    """Rows in four files, as of images or records."""
    directory.mkdir(exist_ok=True)
    for number, part in enumerate(np.split(np.c_[X, Y], 4)):
        np.savetxt(directory / f"{number}.csv", part, delimiter=",", fmt="%.6f")
    found = Dataset.list_files(str(directory / "*.csv"))
    lines = found.interleave(tf.data.TextLineDataset, cycle_length=2)
    parsed = lines.map(lambda line: tf.stack(tf.io.decode_csv(line, [0.0] * 5)))
    data = parsed.map(lambda row: (row[:4], row[4])).apply(tf.data.experimental.assert_cardinality(ROWS))
    return data.shuffle(20).batch(BATCH)


def split() -> Fit:
    whole = rows().shuffle(ROWS, reshuffle_each_iteration=False)
    return {"x": whole.skip(8).batch(BATCH), "validation_data": whole.take(8).batch(BATCH)}


def augmented() -> Dataset:
    noise = keras.layers.GaussianNoise(0.1)
    return shuffled().batch(BATCH).map(lambda x, y: (noise(x, training=True), y))


def looked_up() -> Dataset:
    table = keras.layers.IntegerLookup(vocabulary=[0, 1])
    found = shuffled().map(lambda x, y: (x, table(tf.cast(y, tf.int64)) - 1), num_parallel_calls=tf.data.AUTOTUNE)
    return found.batch(BATCH)


def sampled() -> Dataset:
    positive, negative = (rows().filter(lambda _, y, label=label: y == label) for label in (1.0, 0.0))
    parts = [part.shuffle(ROWS).repeat() for part in (positive, negative)]
    return Dataset.sample_from_datasets(parts, [0.5, 0.5]).batch(BATCH)


def zipped() -> Dataset:
    return Dataset.zip((Dataset.from_tensor_slices(X), Dataset.from_tensor_slices(Y))).shuffle(ROWS).batch(BATCH)


FORMS: dict[str, Callable[[Path], Fit]] = {
    "arrays": lambda _: {"x": X, "y": Y, "batch_size": BATCH},
    "shuffle": lambda _: {"x": shuffled().batch(BATCH)},
    "cache": lambda _: {"x": rows().cache().shuffle(ROWS).batch(BATCH).prefetch(tf.data.AUTOTUNE)},
    "map": lambda _: {
        "x": shuffled()
        .map(lambda x, y: (x * 2, y), num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    },
    "table": lambda _: {"x": looked_up()},
    "zip": lambda _: {"x": zipped()},
    "split": lambda _: split(),
    "endless": lambda _: {"x": shuffled().repeat().batch(BATCH), "steps_per_epoch": 5},
    "files": lambda directory: {"x": files(directory)},
    "sample": lambda _: {"x": sampled(), "steps_per_epoch": 5},
    "generator": lambda _: {"x": from_python()},
    "PyDataset": lambda _: {"x": Batches()},
    "augmented": lambda _: {"x": augmented()},
    "validated": lambda _: {"x": shuffled().batch(BATCH), "validation_data": shuffled().batch(BATCH)},
    "batches": lambda _: {"x": rows().batch(BATCH).shuffle(6)},
}


class CopyAt(keras.callbacks.Callback):
    """Copies the backup directory once, between two steps, as a kill there would leave it."""

    def __init__(self, source: Path, target: Path | None) -> None:
        super().__init__()
        self.source, self.target = source, target

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.target and (self.epoch, batch) == (1, 3) and kdc.advanced.Cluster.detect().is_chief:
            shared_writer().finish_earlier()
            shutil.copytree(self.source, self.target)


kdc.advanced.register_callback_state(CopyAt, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy", choices=["default", "mirrored", "multi-worker"])
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("backup", type=Path)
    parser.add_argument("record")
    parser.add_argument("--copy", type=Path)
    parser.add_argument("--kill", type=KillAt.from_string, action="append", default=[])
    asked = parser.parse_args()
    strategy = tf.distribute.get_strategy()
    if asked.strategy == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    elif asked.strategy == "multi-worker":
        strategy = kdc.make_strategy()
    with strategy.scope():
        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers], name="model")
        model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    options = kdc.WriteOptions(when_busy="wait")
    backup = kdc.BackupAndRestore(asked.backup, save_freq=1, delete_checkpoint=False, write_options=options)
    callbacks = [*asked.kill, CopyAt(asked.backup, asked.copy), backup]
    history = model.fit(
        epochs=EPOCHS, verbose=0, callbacks=callbacks, **FORMS[asked.form](asked.backup.parent / "rows")
    )
    if backup.restored is not None:
        found = backup.restored
        print(f"ANSWER {found.verdict} at {found.position}: {[*found.notes, *found.conditions]}", flush=True)
    record_run(f"{asked.record}-worker{kdc.advanced.Cluster.detect().worker_index}", model, history)


if __name__ == "__main__":
    main()

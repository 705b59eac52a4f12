"""A small training under one of the strategies of TensorFlow, with one way of giving it data."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.testing import KillAt, record_run

DEVICES = ["/cpu:0", "/cpu:1"]
ROWS, BATCH, EPOCHS, FILES = 384, 48, 3, 6
STEPS = ROWS // BATCH
_SHARDS = {name: getattr(tf.data.experimental.AutoShardPolicy, name) for name in ("AUTO", "DATA", "OFF", "FILE")}


def _ring() -> Any:
    experimental = tf.distribute.experimental
    ring = experimental.CommunicationOptions(implementation=experimental.CommunicationImplementation.RING)
    return kdc.make_strategy(
        "multi_worker", cluster_options=kdc.ClusterOptions(startup_timeout=60), communication_options=ring
    )


def _mirrored(operations: Any = None) -> Any:
    return tf.distribute.MirroredStrategy(DEVICES, cross_device_ops=operations)


STRATEGIES: dict[str, Callable[[], Any]] = {
    "default": tf.distribute.get_strategy,
    "one device": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
    "mirrored": _mirrored,
    "mirrored, hierarchical copy": lambda: _mirrored(tf.distribute.HierarchicalCopyAllReduce()),
    "mirrored, reduction to one": lambda: _mirrored(tf.distribute.ReductionToOneDevice()),
    "central storage": lambda: tf.distribute.experimental.CentralStorageStrategy(DEVICES),
    "central storage, one device": lambda: tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"]),
    "multi-worker": lambda: kdc.make_strategy("multi_worker", cluster_options=kdc.ClusterOptions(startup_timeout=60)),
    "multi-worker, ring": _ring,
    "multi-worker, TensorFlow's own": lambda: tf.distribute.MultiWorkerMirroredStrategy(),
}


class WaitAt(keras.callbacks.Callback):
    """Waits after a step until a file is there."""

    def __init__(self, step: int, file: Path) -> None:
        super().__init__()
        self.step, self.file, self.trained = step, file, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.trained += 1
        while self.trained == self.step and not self.file.exists():
            time.sleep(0.05)


kdc.advanced.register_callback_state(WaitAt, None)


def model(random: bool) -> keras.Model:
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.25)] if random else []
    built = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "relu"), *layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], jit_compile=False)
    return built


def examples() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return (images[:ROWS] / 16).astype("float32"), labels[:ROWS]


def _examples(batch: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(examples()).shuffle(ROWS, seed=3).batch(batch, drop_remainder=True)


def _of_files(directory: Path) -> tf.data.Dataset:
    """The same from files, of which each worker reads its own."""
    directory.mkdir(exist_ok=True)
    paths = [str(directory / f"{number}.npy") for number in range(FILES)]
    images, labels = load_digits(return_X_y=True)
    for path, part in zip(paths, np.split(np.concatenate([images, labels[:, None]], 1)[:ROWS], FILES), strict=True):
        if not Path(path).exists():
            np.savetxt(f"{path}.{os.getpid()}", part, delimiter=",")
            Path(f"{path}.{os.getpid()}").rename(path)
    lines = tf.data.Dataset.from_tensor_slices(paths).interleave(tf.data.TextLineDataset, cycle_length=1)
    return lines.map(_parsed).shuffle(ROWS, seed=3).batch(BATCH, drop_remainder=True).repeat()


def _parsed(line: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    values = tf.strings.to_number(tf.strings.split(line, ","))
    return tf.ensure_shape(values[:64] / 16, [64]), tf.cast(values[64], tf.int64)


def data(strategy: Any, way: str, directory: Path) -> Any:
    if way == "distributed":
        return strategy.experimental_distribute_dataset(_examples(BATCH))
    if way == "from a function":
        return strategy.distribute_datasets_from_function(
            lambda context: _examples(context.get_per_replica_batch_size(BATCH)).repeat()
        )
    dataset = _of_files(directory) if way == "FILE" else _examples(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _SHARDS.get(way, _SHARDS["DATA"])
    return dataset.with_options(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("way", choices=["plain", "distributed", "from a function", *_SHARDS])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--backup", action="store_true")
    parser.add_argument("--kill", type=KillAt.from_string, action="append", default=[])
    parser.add_argument("--wait", type=int, help="the step after which each worker waits for the file 'go'")
    asked = parser.parse_args()
    cpu = tf.config.list_physical_devices("CPU")[0]
    if not asked.strategy.startswith("multi-worker"):
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.experimental.enable_op_determinism()
    backup = kdc.BackupAndRestore(
        asked.directory / "backup", save_freq=3, max_to_keep=9, write_options=kdc.WriteOptions(when_busy="wait")
    )
    strategy = STRATEGIES[asked.strategy]()
    keras.utils.set_random_seed(7)
    with strategy.scope():
        trained = model(random=asked.strategy != "central storage")
    waits = [] if asked.wait is None else [WaitAt(asked.wait, asked.directory / "go")]
    callbacks = [*asked.kill, *waits, *([backup] if asked.backup else [])]
    steps = {"steps_per_epoch": STEPS} if asked.way in {"distributed", "from a function", "FILE"} else {}
    history = trained.fit(
        data(strategy, asked.way, asked.directory.parent / "files"),
        epochs=EPOCHS, verbose=0, callbacks=callbacks, **steps,
    )  # fmt: skip
    if backup.restored is not None:
        print(f"ANSWER {backup.restored.verdict}", flush=True)
    record_run(f"{asked.directory}/run-worker{kdc.advanced.Cluster.detect().worker_index}", trained, history)


if __name__ == "__main__":
    main()

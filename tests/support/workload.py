"""A training script for kill tests: one strategy, one data source, faults and recordings as arguments."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.testing import CountCalls, KillAt, StepLog, record_run

BATCH = 48  # 1, 2 and 3 workers, and 2 replicas, get equal shares
STEPS = 9
TRAIN_ROWS = BATCH * STEPS
VALIDATION_ROWS = BATCH * 3
SOURCES = ("dataset", "shuffled", "infinite", "numpy", "pydataset")
STRATEGIES = ("default", "mirrored", "multi_worker")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES, default="default")
    parser.add_argument("--source", choices=SOURCES, default="dataset")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--validation", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--shuffled-validation", action="store_true", help="the validation data shuffle too")
    backup = parser.add_argument_group("backup")
    backup.add_argument("--backup-dir")
    backup.add_argument("--no-backup", action="store_true", help="ignore --backup-dir")
    backup.add_argument("--save-freq", default="epoch", type=lambda text: text if text.isalpha() else int(text))
    backup.add_argument("--when-busy", choices=["late", "wait"], default="wait", help="wait: no save is late")
    backup.add_argument("--time-limit", type=float, help="seconds of a time limit")
    backup.add_argument("--keep-backup", action="store_true", help="delete_checkpoint=False")
    others = parser.add_argument_group("other callbacks")
    others.add_argument("--lr-schedule", action="store_true", help="a LearningRateScheduler; a new value each epoch")
    others.add_argument("--early-stopping", action="store_true", help="an EarlyStopping that fires in epoch 2")
    faults = parser.add_argument_group("faults and recordings; {worker} in a path is this worker's index")
    faults.add_argument("--kill", type=KillAt.from_string, action="append", default=[])
    faults.add_argument("--kill-first", type=KillAt.from_string, help="as --kill, in the first attempt of `kdc launch`")
    faults.add_argument("--step-seconds", type=float, help="each step takes so much longer")
    faults.add_argument("--raise-at", help="epoch,batch: a RuntimeError at the end of that batch")
    faults.add_argument("--interrupt-at", help="epoch,batch: a KeyboardInterrupt at the end of that batch")
    faults.add_argument("--record", help="base name: writes <record>-worker<i>.npz and .json at the end")
    faults.add_argument("--count", help="base name: <count>-worker<i> gets a byte per executed training step")
    faults.add_argument("--step-log", help="base name: <step-log>-worker<i> gets 'pid epoch batch' per step")
    faults.add_argument("--audit", help="base name: <audit>-worker<i> gets a line per change below --backup-dir")
    return parser.parse_args(argv)


def make_strategy(kind: str) -> Any:
    if kind == "multi_worker":
        return kdc.make_strategy("multi_worker", cluster_options=kdc.ClusterOptions(startup_timeout=60))
    if kind == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return kdc.make_strategy("mirrored", devices=["CPU:0", "CPU:1"])
    return kdc.make_strategy("default")


def load() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    train = slice(0, TRAIN_ROWS)
    held_out = slice(TRAIN_ROWS, TRAIN_ROWS + VALIDATION_ROWS)
    return (images[train], labels[train]), (images[held_out], labels[held_out])


def batches(data: tuple[Any, Any], shuffle_seed: int | None = None, *, repeat: bool = False) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(data)
    if shuffle_seed is not None:
        dataset = dataset.shuffle(len(data[0]), seed=shuffle_seed, reshuffle_each_iteration=True)
    if repeat:
        dataset = dataset.repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.batch(BATCH, drop_remainder=True).with_options(options)


class Digits(keras.utils.PyDataset):
    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        super().__init__()
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images) // BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.images[rows], self.labels[rows]


def training_input(source: str, data: tuple[Any, Any]) -> dict[str, Any]:
    """The arguments of fit() that say what to train on."""
    if source == "dataset":
        return {"x": batches(data)}
    if source == "shuffled":
        return {"x": batches(data, shuffle_seed=3)}
    if source == "infinite":
        return {"x": batches(data, shuffle_seed=3, repeat=True), "steps_per_epoch": STEPS}
    if source == "numpy":
        return {"x": data[0], "y": data[1], "batch_size": BATCH, "shuffle": True}
    return {"x": Digits(*data), "shuffle": True}


def build_model(count: str | None) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            *([CountCalls(count + "-worker{worker}", name="count_calls")] if count else []),
            keras.layers.Conv2D(6, 3, strides=2, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # does not work with two replicas, and CountCalls cannot be compiled
    )
    return model


class RaiseAt(keras.callbacks.Callback):
    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__()
        self.where, self.error, self.epoch = tuple(map(int, where.split(","))), error, -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.where:
            raise self.error


def callbacks(args: argparse.Namespace) -> list[Any]:
    found: list[Any] = []
    if args.lr_schedule:  # a factor, not a table: only a restored rate continues right
        found.append(keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8))
    if args.early_stopping:  # epoch 0 sets the best, 1 and 2 are not better by 10
        found.append(keras.callbacks.EarlyStopping("loss", min_delta=10, patience=2, restore_best_weights=True))
    if args.step_log:
        found.append(StepLog(args.step_log + "-worker{worker}"))
    if args.raise_at:
        found.append(RaiseAt(args.raise_at, RuntimeError("the user's own error")))
    if args.interrupt_at:
        found.append(RaiseAt(args.interrupt_at, KeyboardInterrupt()))
    found += args.kill
    if args.kill_first and os.environ.get("KDC_ATTEMPT") == "0":
        found.append(args.kill_first)
    if args.step_seconds:
        found.append(
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: time.sleep(args.step_seconds))
        )
    if args.backup_dir and not args.no_backup:
        found.append(
            kdc.BackupAndRestore(
                args.backup_dir,
                save_freq=args.save_freq,
                delete_checkpoint=not args.keep_backup,
                write_options=kdc.WriteOptions(when_busy=args.when_busy),
                shutdown_options=kdc.ShutdownOptions(
                    time_limit=None if args.time_limit is None else datetime.timedelta(seconds=args.time_limit)
                ),
            )
        )
    return found


def audit(path: str, directory: str) -> None:
    """Notes every change of the file system below `directory` that this process makes through Python."""
    log = os.open(
        f"{path}-worker{kdc.advanced.Cluster.detect().worker_index}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    changes = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate", "shutil.move"}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in changes or writes) and any(str(a).startswith(directory) for a in arguments[:2]):
            os.write(log, f"{event} {arguments[0]}\n".encode())

    sys.addaudithook(hook)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    strategy = make_strategy(args.strategy)
    if args.audit:
        audit(args.audit, args.backup_dir)
    keras.utils.set_random_seed(7)
    train, held_out = load()
    with strategy.scope():
        model = build_model(args.count)
    validation = batches(held_out, shuffle_seed=5 if args.shuffled_validation else None) if args.validation else None
    every = callbacks(args)
    history = model.fit(
        **training_input(args.source, train),
        epochs=args.epochs,
        validation_data=validation,
        callbacks=every,
        verbose=2,
    )
    for callback in every:
        if isinstance(callback, kdc.BackupAndRestore) and callback.restored is not None:
            restored = callback.restored
            print(
                "; ".join([f"RESTORED {restored.commit} {restored.verdict}", *restored.notes, *restored.conditions]),
                flush=True,
            )
    finish(args.record, model, history)


def finish(record: str | None, model: keras.Model, history: keras.callbacks.History) -> None:
    """Records this worker's end next to `record`, and says that it came there."""
    if record:
        Path(record).parent.mkdir(parents=True, exist_ok=True)
        record_run(f"{record}-worker{kdc.advanced.Cluster.detect().worker_index}", model, history)
    print("finished", flush=True)


if __name__ == "__main__":
    main()

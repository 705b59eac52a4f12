"""A job of several workers in which one alone does something, or was given something else."""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.testing import StepLog

BATCH, STEPS = 12, 6
SLOW_SECONDS = 25


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "leave": lambda: os._exit(0),
}


class Acts(keras.callbacks.Callback):
    """Does something on this worker: ends training as an EarlyStopping with a metric of its own would, or fails."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == (1, 2):
            if self.where == "batch":
                self.model.stop_training = True
            elif self.where == "raise":
                raise ValueError("a bug of one worker")
            elif self.where in FAULTS:
                FAULTS[self.where]()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.where == "slow" and epoch == 1:
            ctypes.PyDLL(None).sleep(SLOW_SECONDS)  # with the GIL held: no thread of Python's runs meanwhile
        if self.where == "epoch" and epoch == 1:
            self.model.stop_training = True


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--who", type=int, default=1, help="which worker; -1: all of them")
    parser.add_argument("--does", default="nothing")
    parser.add_argument("--write-on", choices=["chief", "all"], help="checkpoints and events of each worker")
    parser.add_argument("--own-strategy", action="store_true", help="TensorFlow's own way to join the cluster")
    return parser.parse_args()


def make_data(rows: int) -> tf.data.Dataset:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH).with_options(options)


def main() -> None:
    args = parse_arguments()
    me = kdc.advanced.Cluster.detect().worker_index
    does = args.does if args.who in (me, -1) else "nothing"
    if does == "too late":
        tf.constant(1.0) + 1.0
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if args.own_strategy else kdc.make_strategy()
    keras.utils.set_random_seed(1)
    directory = Path(args.directory, "elsewhere" if does == "directory" else "backup")
    save_freq = 2 if does == "save_freq" else "epoch"
    backup = kdc.BackupAndRestore(directory, save_freq=save_freq, delete_checkpoint=False)
    data = make_data(BATCH * (STEPS - 1 if does == "rows" else STEPS))
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    callbacks: list[Any] = [StepLog(f"{args.directory}/steps-worker{{worker}}"), backup]
    if does in ("batch", "epoch", "raise", "slow", *FAULTS):
        callbacks.insert(0, Acts(does))
    if does == "checkpoint":
        callbacks.insert(0, kdc.ModelCheckpoint(f"{args.directory}/{{epoch}}.keras"))
    if args.write_on:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("keras_dist_callbacks").setLevel(logging.INFO)
        own = Path(args.directory, "shared" if does == "same path" else f"worker{me}")
        callbacks.insert(0, kdc.ModelCheckpoint(own / "{epoch}.keras", write_on=args.write_on))
        callbacks.insert(0, kdc.TensorBoard(own / "logs", write_on=args.write_on))
    with kdc.restartable():
        model.fit(data, epochs=4, verbose=0, callbacks=callbacks)
    print("finished", flush=True)
    if backup.restored is not None:
        print(f"resumed at step {backup.restored.position.step}, {backup.restored.verdict}", flush=True)


if __name__ == "__main__":
    os.environ["KDC_PEER_TIMEOUT"] = "22"  # not above: tests import this module
    main()

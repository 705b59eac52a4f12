"""A job in which one worker is lost, at a moment of its choice; started again, it continues."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.run.engine.worker_exchange import WorkerStateExchange
from keras_dist_callbacks.testing import StepLog
from tests.support.grouped import grouped

BATCH, STEPS, EPOCHS = 12, 6, 3


def cut_off(directory: str) -> None:
    """Asks for the cable to be pulled, and continues when it is."""
    Path(directory, "cut").touch()
    while not Path(directory, "is-cut").exists():
        time.sleep(0.01)


def note_time(directory: str) -> None:
    """From now on the others have to end."""
    Path(directory, "lost-at").write_text(repr(time.time()), encoding="utf-8")


def lose(fault: str, directory: str) -> None:
    """This worker is lost; when is noted."""
    note_time(directory)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "exit":
        os._exit(0)
    elif fault == "partition":
        cut_off(directory)
    else:
        raise ValueError("a bug of one worker")


class Loses(keras.callbacks.Callback):
    """Acts in the second epoch, in a step or in validation, or at the end."""

    def __init__(self, phase: str, act: Any) -> None:
        super().__init__()
        self.phase, self.act, self.epoch = phase, act, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.phase == "train" and (self.epoch, batch) == (1, 2):
            self.act()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.phase == "validation" and (self.epoch, batch) == (1, 1):
            self.act()

    def on_train_end(self, logs: Any = None) -> None:
        if self.phase == "end":
            self.act()


def lose_while_saving(act: Any) -> None:
    """Acts within the second save: on the chief before the commit, on a worker before its part is delivered."""
    owner, name = (
        (BackupStore, "commit") if kdc.advanced.Cluster.detect().is_chief else (WorkerStateExchange, "deliver")
    )
    saves = []
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def saving(*args: Any, **kwargs: Any) -> Any:
        saves.append(1)
        if len(saves) == 2:
            act()
        return plain(*args, **kwargs)

    setattr(owner, name, saving)


def dataset(rows: int, seed: int) -> tf.data.Dataset:
    x = np.random.default_rng(seed).normal(size=(rows, 4)).astype("float32")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(rows, seed=3)
    return data.batch(BATCH).with_options(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--who", type=int, default=-1, help="which worker is lost; -1: none")
    parser.add_argument("--fault", default="")
    parser.add_argument("--phase", default="")
    parser.add_argument("--loop", action="store_true", help="a loop with Checkpointer instead of fit()")
    args = parser.parse_args()
    with kdc.restartable():
        train(args)
    print("finished", flush=True)


def train(args: argparse.Namespace) -> None:
    if args.fault == "lone start":
        note_time(args.directory)
    strategy = kdc.make_strategy(cluster_options=kdc.ClusterOptions(startup_timeout=15.0))
    cluster = kdc.advanced.Cluster.detect()
    acts = cluster.worker_index == args.who
    act = functools.partial(lose, args.fault, args.directory)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    if acts and args.phase == "start-up":
        act()
    if acts and args.phase == "save":
        lose_while_saving(act)
    resumed = loop(args, strategy, model, acts, act) if args.loop else fit(args, model, acts, act)
    if cluster.is_chief:
        print(f"resumed at {resumed}", flush=True)
        np.savez(f"{args.directory}/final.npz", *model.get_weights())


def fit(args: argparse.Namespace, model: keras.Model, acts: bool, act: Any) -> int:
    """Trains; the step that it was resumed at."""
    backup = kdc.BackupAndRestore(
        f"{args.directory}/backup",
        save_freq=4,
        write_options=kdc.WriteOptions(when_busy="wait"),
        delete_checkpoint=False,
    )
    callbacks = [StepLog(f"{args.directory}/steps-worker{{worker}}"), backup]
    if acts:
        callbacks.insert(0, Loses(args.phase, act))
    model.fit(
        dataset(BATCH * STEPS, 0),
        epochs=EPOCHS,
        verbose=0,
        callbacks=callbacks,
        validation_data=dataset(BATCH * 3, 1),
    )
    return 0 if backup.restored is None else backup.restored.position.step


def loop(args: argparse.Namespace, strategy: tf.distribute.Strategy, model: keras.Model, acts: bool, act: Any) -> int:
    """Trains with a loop; the step that it was resumed at."""
    optimizer = model.optimizer
    data = strategy.experimental_distribute_dataset(dataset(BATCH * STEPS, 0))
    with strategy.scope():
        optimizer.build(model.trainable_variables)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> None:
        strategy.run(replica_step, args=(x, y))

    path = f"{args.directory}/backup"
    options: dict[str, Any] = {"save_freq": 4, "when_busy": "wait", "delete_checkpoint": False}
    with kdc.Checkpointer(path, model=model, optimizer=optimizer, **grouped(**options)) as checkpointer:
        checkpointer.restore()
        resumed = checkpointer.steps
        for epoch in checkpointer.epochs(EPOCHS):
            for x, y in checkpointer.batches(data):
                step(x, y)
                checkpointer.step()
                if acts and args.phase == "train" and (epoch, checkpointer.batch) == (1, 3):
                    act()
    return resumed


if __name__ == "__main__":
    main()

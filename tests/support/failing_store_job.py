"""A training of six epochs whose store refuses some of its files: what each worker takes for the best."""

from __future__ import annotations

import argparse
import itertools
import json
import os
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
from keras_dist_callbacks.cluster import messaging
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.storage.storage import Storage

LOSSES = [5.0, 4.0, 1.0, 3.0, 2.0, 2.5]


class Losses(keras.callbacks.Callback):
    """Reports given losses. What an epoch handed over is written, or has failed, when the next one ends."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        logs["loss"] = LOSSES[epoch]
        shared_writer().wait()


class Bests(keras.callbacks.Callback):
    """What a backup of this worker would keep as the best at the end of each epoch."""

    def __init__(self, checkpoint: kdc.ModelCheckpoint) -> None:
        super().__init__()
        self.checkpoint, self.seen = checkpoint, []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(self.checkpoint.get_state()["best"])


class SlowToHear(keras.callbacks.Callback):
    """At the end of training a worker hears seconds later what the chief said."""

    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self.worker = worker

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        fetch = messaging.fetch

        def late(*args: Any, **kwargs: Any) -> Any:
            time.sleep(3)
            return fetch(*args, **kwargs)

        if self.worker == Cluster.detect().worker_index:
            messaging.fetch = late


def refuse(numbers: list[int], first_of_all: int) -> None:
    """The store takes neither the files with these numbers nor any from a first one on."""
    replace, calls = Storage.replace, itertools.count()

    def sometimes(self: Storage, name: str, source: Path) -> None:
        if name.endswith(".keras"):
            number = next(calls)
            if number in numbers or number >= first_of_all:
                raise kdc.StorageError("the store is away")
        replace(self, name, source)

    Storage.replace = sometimes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy", choices=["default", "mirrored", "multi-worker"])
    parser.add_argument("directory")
    parser.add_argument("--refused", type=int, nargs="*", default=[])
    parser.add_argument("--away-from", type=int, default=99)
    parser.add_argument("--slow-to-hear", type=int)
    parser.add_argument("--most", type=int, default=10)
    parser.add_argument("--rules", type=json.loads, default={"save_best_only": True})
    asked = parser.parse_args()
    cpu = tf.config.list_physical_devices("CPU")[0]
    if asked.strategy == "mirrored":
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategies = {
        "default": tf.distribute.get_strategy,
        "mirrored": lambda: kdc.make_strategy("mirrored", devices=["CPU:0", "CPU:1"]),
        "multi-worker": kdc.make_strategy,
    }
    strategy = strategies[asked.strategy]()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
    checkpoint = kdc.ModelCheckpoint(
        f"{asked.directory}/{{epoch}}.keras",
        "loss",
        write_options=kdc.WriteOptions(max_failed_saves=asked.most),
        **asked.rules,
    )
    bests = Bests(checkpoint)
    refuse(asked.refused, asked.away_from)
    end = "fit() returns"
    try:
        model.fit(
            data, epochs=len(LOSSES), verbose=0, callbacks=[SlowToHear(asked.slow_to_hear), Losses(), checkpoint, bests]
        )
    except (kdc.StorageError, kdc.ClusterError) as error:
        end = str(error)
    found = {"bests": bests.seen, "best": checkpoint.best, "state": checkpoint.get_state()["best"], "end": end}
    best_path = checkpoint.best_path
    found["path"] = None if best_path is None else Path(best_path).name
    print("FOUND", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""A job of several workers, of which the chief alone has state: in Python, in a callback of its own, random states."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.testing import KillAt


class Counts(keras.callbacks.Callback):
    """Counts batches, and draws a random number at each epoch's begin: on the chief."""

    def __init__(self, *, is_chief: bool) -> None:
        super().__init__()
        self.is_chief = is_chief
        self.seen = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.is_chief:
            random.random()  # noqa: S311

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += self.is_chief


class Keeps(keras.callbacks.Callback):
    """Has a state of its own; in the list of the chief alone."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = np.zeros(3)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.sums = self.sums + batch

    def get_state(self) -> dict[str, Any]:
        return {"sums": self.sums}

    def set_state(self, state: dict[str, Any]) -> None:
        self.sums = state["sums"]


def main() -> None:
    strategy = kdc.make_strategy()
    me = kdc.advanced.Cluster.detect().worker_index
    keras.utils.set_random_seed(1)
    if me == 0:
        keras.random.normal(())  # makes Keras' global seed state
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
    counts, backup = (
        Counts(is_chief=me == 0),
        kdc.BackupAndRestore(sys.argv[1], save_freq=2, verbose=0, write_options=kdc.WriteOptions(when_busy="wait")),
    )
    callbacks = [counts, *([Keeps()] if me == 0 else []), backup]
    callbacks += [KillAt(epoch=1, batch=4, worker=0)] if "kill" in sys.argv else []
    model.fit(data, epochs=3, verbose=0, callbacks=callbacks)
    drawn = [random.random(), float(keras.random.normal(()))]  # noqa: S311
    print("AT THE END", counts.seen, drawn, [getattr(c, "sums", None) for c in callbacks], flush=True)
    if backup.restored is not None:
        print("RESUMED", backup.restored.position.step, backup.restored.notes, flush=True)


if __name__ == "__main__":
    main()

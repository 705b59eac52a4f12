"""A training that hangs in the first attempt of `kdc launch`: in its input, in a callback, or in its store."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.store import BackupStore

WHERE, DIRECTORY = sys.argv[1:]
HANGS_AT = 26 if os.environ["KDC_ATTEMPT"] == "0" else -1
lock, count = threading.Lock(), 0


def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    global count
    for _ in range(10):
        count += 1
        if WHERE == "input" and count == HANGS_AT:
            time.sleep(3600)
        yield np.ones((4, 3), np.float32) * (count % 10), np.ones((4, 1), np.float32)


class Locks(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.1)
        self.steps += 1
        if WHERE == "callback" and self.steps == HANGS_AT:
            print(f"hangs at {time.time()}", flush=True)
            with lock, lock:
                pass


kdc.advanced.register_callback_state(Locks, None)
commit = BackupStore.commit


def slow_commit(self: BackupStore, manifest: Any) -> None:
    if WHERE == "store" and HANGS_AT > 0 and manifest.position.step >= 30:
        time.sleep(3600)
    commit(self, manifest)


BackupStore.commit = slow_commit  # type: ignore[method-assign]
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
specs = (tf.TensorSpec((4, 3), tf.float32), tf.TensorSpec((4, 1), tf.float32))
dataset = tf.data.Dataset.from_generator(rows, output_signature=specs)
backup = kdc.BackupAndRestore(DIRECTORY, save_freq=10 if WHERE != "store" else "epoch")
model.fit(dataset, epochs=6, verbose=0, callbacks=[Locks(), backup])
print("finished", flush=True)

"""A training of two replicas on a PyDataset that returns views of its arrays, aligned to 64 bytes and not.

Prints how many values of the arrays training has changed, and a hash of the weights for each of the two.
"""

from __future__ import annotations

import hashlib
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc

ROWS, BATCH = 256, 64


def placed(values: Any, offset: int) -> Any:
    """A copy of an array, so many bytes after an address that is a multiple of 64."""
    memory = np.zeros(values.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    placed = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    placed[...] = values
    return placed


class Views(keras.utils.PyDataset):
    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x) // BATCH

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


def train(strategy: Any, offset: int) -> tuple[int, str]:
    """Returns how many values have changed, and a hash of the weights."""
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(0).normal(size=(ROWS, 16)).astype("float32")
    arrays = [placed(part, offset) for part in (x, x.sum(1), x[:BATCH], x[:BATCH].sum(1))]
    with strategy.scope():
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data, checked = Views(*arrays[:2]), Views(*arrays[2:])
    before = [array.copy() for array in arrays]
    with tempfile.TemporaryDirectory() as directory:
        model.fit(data, validation_data=checked, epochs=2, verbose=0, callbacks=[kdc.BackupAndRestore(directory)])
    changed = sum(int((now != then).sum()) for now, then in zip(arrays, before, strict=True))
    return changed, hashlib.sha256(b"".join(part.tobytes() for part in model.get_weights())).hexdigest()


if __name__ == "__main__":
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    tf.config.experimental.enable_op_determinism()
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    of_aligned, of_others = train(mirrored, 0), train(mirrored, 4)
    print(of_aligned[0] + of_others[0], of_aligned[1], of_others[1])

"""Models under CentralStorageStrategy with one device and with two: what a fit with our backups comes to."""

from __future__ import annotations

import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc

PARTS = {
    "dropout": lambda: [keras.layers.Dropout(0.1)],
    "batch normalization": lambda: [keras.layers.BatchNormalization()],
    "frozen dropout": lambda: [keras.layers.Dropout(0.1, trainable=False, name="frozen_dropout")],
    "frozen batch normalization": lambda: [keras.layers.BatchNormalization(trainable=False)],
    "averages of weights": lambda: [],
    "nothing": lambda: [],
}


def outcome(part: str, devices: list[str], *, backed_up: bool) -> str:
    keras.utils.clear_session()
    with tf.distribute.experimental.CentralStorageStrategy(devices).scope():
        model = keras.Sequential([keras.Input((3,)), *PARTS[part](), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(use_ema=part == "averages of weights"), "mse")
    rows = np.ones((8, 3), np.float32), np.ones(8, np.float32)
    with tempfile.TemporaryDirectory() as directory:
        try:
            callbacks = [kdc.BackupAndRestore(directory)] if backed_up else []
            model.fit(*rows, batch_size=4, verbose=0, callbacks=callbacks)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test compares it
            return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return "trained"


if __name__ == "__main__":
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    for number in (1, 2):
        for part in PARTS:
            for backed_up in (False, True):
                said = outcome(part, ["/cpu:0", "/cpu:1"][:number], backed_up=backed_up)
                print(f"{number}|{part}|{'ours' if backed_up else 'Keras'}|{said}", flush=True)
    sys.exit(0)

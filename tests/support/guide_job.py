"""The fault tolerance of Keras' guides to distributed training, with our `ModelCheckpoint` in the place of Keras'."""

from __future__ import annotations

import os
import sys

import keras
import numpy as np

import keras_dist_callbacks as kdc
from keras_dist_callbacks.testing import KillAt


def get_compiled_model() -> keras.Model:
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(200, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mean_squared_error")
    return model


def make_or_restore_model(checkpoint_dir: str) -> keras.Model:
    checkpoints = [checkpoint_dir + "/" + name for name in os.listdir(checkpoint_dir)]  # noqa: PTH208 - as the guide
    if checkpoints:
        latest_checkpoint = max(checkpoints, key=os.path.getctime)
        print("Restoring from", latest_checkpoint, flush=True)
        return keras.models.load_model(latest_checkpoint)
    print("Creating a new model", flush=True)
    return get_compiled_model()


def run_training(checkpoint_dir: str, kills: list[str]) -> None:
    if not os.path.exists(checkpoint_dir):  # noqa: PTH110 - as the guide
        os.makedirs(checkpoint_dir)  # noqa: PTH103 - as the guide
    model = make_or_restore_model(checkpoint_dir)
    callbacks = [
        kdc.ModelCheckpoint(
            filepath=checkpoint_dir + "/ckpt-loss={loss:.2f}-{epoch}-{batch}.keras",
            save_freq=1,
            monitor="loss",
            max_to_keep=3,
        ),
        *(KillAt(step=int(kill), after_commit=False) for kill in kills),
    ]
    rows = np.random.default_rng(0).random((60, 64), np.float32)
    model.fit(rows, rows.sum(1), batch_size=5, epochs=3, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    run_training(sys.argv[1], sys.argv[2:])

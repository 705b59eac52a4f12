"""The training that `benchmarks.pictures` draws: digits, slowed down, and killed in each of its first starts."""

import os
import sys
import time
from pathlib import Path

import keras

import keras_dist_callbacks as kdc
from keras_dist_callbacks.testing import KillAt

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train_digits

EPOCHS, SECONDS = 12, 0.2
KILLS = ((2, 3), (4, 12), (8, 8))
"""Epoch and batch of each, from 0; batches of an epoch: 25."""


class Slow(keras.callbacks.Callback):
    """Makes each step take its time."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """A step is complete."""
        time.sleep(SECONDS)


def rate(epoch: int, rate: float) -> float:
    """Halves the learning rate after every fourth epoch."""
    return rate / 2 if epoch and epoch % 4 == 0 else rate


def train(directory: str, attempt: int) -> None:
    """Trains, up to the kill of this start."""
    keras.utils.set_random_seed(42)
    dataset, validation = train_digits.load_data()
    callbacks = [
        keras.callbacks.LearningRateScheduler(rate),
        kdc.ModelCheckpoint(f"{directory}/checkpoints/ckpt-{{epoch:02d}}.keras", max_to_keep=2, keep_best=1),
        kdc.BackupAndRestore(f"{directory}/backup", save_freq=20, max_to_keep=8, delete_checkpoint=False),
        Slow(),
    ]
    for epoch, batch in KILLS[attempt : attempt + 1]:
        callbacks.append(KillAt(epoch=epoch, batch=batch, phase="train_batch_end"))
    model = train_digits.build_model()
    model.fit(dataset, epochs=EPOCHS, validation_data=validation, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    train(sys.argv[1], int(os.environ["KDC_ATTEMPT"]))

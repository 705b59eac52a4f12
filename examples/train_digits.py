"""Trains a small CNN on scikit-learn's digits; killed at any instant and started again, it resumes.

Alone:         python examples/train_digits.py runs/digits
In a cluster:  the same on every machine, with TF_CONFIG set, and a directory that the chief can write and
               all can read (or a URL such as gs://bucket/run1).

Start it again after a kill with the same directory. `make demo` does so and compares the result with that
of an uninterrupted run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

BATCH_SIZE = 60  # of all workers together
TRAIN_ROWS = 1500
EPOCHS = 4


def load_data() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    rows = tf.data.Dataset.from_tensor_slices((images, labels))
    train = rows.take(TRAIN_ROWS).shuffle(TRAIN_ROWS, seed=1).batch(BATCH_SIZE, drop_remainder=True)
    validation = rows.skip(TRAIN_ROWS).batch(BATCH_SIZE, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return train.with_options(options), validation.with_options(options)


def build_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(directory: str, epochs: int = EPOCHS, extra_callbacks: Sequence[Any] = ()) -> keras.callbacks.History:
    strategy = kdc.make_strategy()
    keras.utils.set_random_seed(42)
    dataset, validation = load_data()
    with strategy.scope():
        model = kdc.make_or_restore_model(build_model, f"{directory}/checkpoints")
    return model.fit(
        dataset,
        epochs=epochs,
        validation_data=validation,
        callbacks=[
            keras.callbacks.EarlyStopping(patience=3),
            kdc.ModelCheckpoint(f"{directory}/checkpoints/ckpt-{{epoch:04d}}.keras", max_to_keep=3),
            kdc.BackupAndRestore(f"{directory}/backup", save_freq=5, delete_checkpoint=False),
            kdc.TensorBoard(f"{directory}/tb"),
            kdc.PrintLR(),
            *extra_callbacks,
        ],
        verbose=2,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="checkpoints, backup and logs: a path or URL")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()
    train(arguments.directory, arguments.epochs)

"""The `make_or_restore_model` of Keras' guides to distributed training, with checkpoints alone and on any store.

    python examples/make_or_restore.py runs/restored

prints, but for the lines about the store:

    epoch 1: accuracy 0.58
    epoch 2: accuracy 0.90
    epoch 3: accuracy 0.93
    epoch 4: accuracy 0.94

Killed and started again, it takes the newest intact checkpoint and continues with the epoch after it. A checkpoint
holds the model and its optimizer, but not random states and the order of the data. Add `kdc.BackupAndRestore` for a
run that ends with the same weights as an uninterrupted one. `adopt=True` starts from checkpoints that Keras' own
`ModelCheckpoint` has left in the directory, if it has none of this package.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

BATCH_SIZE = 60
TRAIN_ROWS = 1500
EPOCHS = 4


def load_data() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    images, labels = load_digits(return_X_y=True)
    rows = tf.data.Dataset.from_tensor_slices(((images / 16.0).astype("float32"), labels))
    return rows.take(TRAIN_ROWS).batch(BATCH_SIZE), rows.skip(TRAIN_ROWS).batch(BATCH_SIZE)


def get_compiled_model() -> keras.Model:
    inputs = keras.Input((64,))
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(10)(hidden))
    model.compile(
        optimizer=keras.optimizers.Adam(0.005),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def run_training(directory: str, epochs: int = EPOCHS, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Trains what is left of so many epochs; returns a line for each epoch that it has trained."""
    strategy = kdc.make_strategy()
    keras.utils.set_random_seed(42)
    with strategy.scope():
        model = kdc.make_or_restore_model(get_compiled_model, directory, adopt=True)
    origin = kdc.restored_from(model)
    train_dataset, val_dataset = load_data()
    history = model.fit(
        train_dataset,
        epochs=epochs,
        initial_epoch=origin.initial_epoch if origin else 0,
        callbacks=[kdc.ModelCheckpoint(f"{directory}/ckpt-{{epoch}}.keras", save_freq="epoch"), *extra_callbacks],
        validation_data=val_dataset,
        shuffle=False,
        verbose=0,
    )
    accuracy = history.history.get("accuracy", [])
    return [f"epoch {epoch + 1}: accuracy {value:.2f}" for epoch, value in zip(history.epoch, accuracy, strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where checkpoints go: a path, or a URL such as gs://bucket/run1")
    print("\n".join(run_training(parser.parse_args().directory)))

"""TensorFlow's tutorial "Distributed training with Keras", on scikit-learn's digits, so that it survives being killed.

    python examples/mirrored_keras.py runs/mirrored

Every epoch saves its weights; those of the last one are loaded and evaluated:

    replicas: 2
    epoch 1: learning rate 0.001
    epoch 2: learning rate 0.001
    epoch 3: learning rate 0.001
    epoch 4: learning rate 0.0001
    epoch 5: learning rate 0.0001
    accuracy of ckpt-0005.weights.h5: 0.84

Killed at any instant and started again with the same directory, it continues, and ends with the same weights. What
differs from the tutorial's code: a `.weights.h5` in the checkpoints' name, which Keras 3 demands, three callbacks of
this package in the place of Keras' own, `BackupAndRestore`, seeds, and `kdc.latest_checkpoint`, where the tutorial asks
`tf.train`, which does not know Keras 3's files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

BATCH_SIZE_PER_REPLICA = 30
TRAIN_ROWS = 1500
EPOCHS = 5


def make_strategy() -> tf.distribute.Strategy:
    """All GPUs of this machine; where there are not two, its processor as if it were two devices."""
    if len(tf.config.list_physical_devices("GPU")) >= 2:
        return tf.distribute.MirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def load_data(batch_size: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    images, labels = load_digits(return_X_y=True)
    rows = tf.data.Dataset.from_tensor_slices((images.astype("float32").reshape(-1, 8, 8, 1), labels))
    rows = rows.map(lambda image, label: (image / 16.0, label))
    train = rows.take(TRAIN_ROWS).cache().shuffle(TRAIN_ROWS, seed=1).batch(batch_size)
    return train, rows.skip(TRAIN_ROWS).batch(batch_size)


def build_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.Adam(),
        metrics=["accuracy"],
    )
    return model


def decay(epoch: int) -> float:
    return 1e-3 if epoch < 3 else 1e-4


def train(directory: str, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Trains and evaluates; returns what there is to say."""
    strategy = make_strategy()
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(42)
    train_dataset, eval_dataset = load_data(BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync)
    with strategy.scope():
        model = build_model()
    history = model.fit(
        train_dataset,
        epochs=EPOCHS,
        shuffle=False,  # the dataset does so itself
        callbacks=[
            kdc.TensorBoard(f"{directory}/logs"),
            kdc.ModelCheckpoint(f"{directory}/checkpoints/ckpt-{{epoch:04d}}.weights.h5", save_weights_only=True),
            keras.callbacks.LearningRateScheduler(decay),
            kdc.PrintLR(),
            kdc.BackupAndRestore(f"{directory}/backup", delete_checkpoint=False),
            *extra_callbacks,
        ],
        verbose=0,
    )
    last = kdc.latest_checkpoint(f"{directory}/checkpoints")
    assert last is not None
    model.load_weights(last)
    accuracy = model.evaluate(eval_dataset, verbose=0, return_dict=True)["accuracy"]
    rates = enumerate(history.history["learning_rate"], 1)
    return [
        f"replicas: {strategy.num_replicas_in_sync}",
        *(f"epoch {epoch}: learning rate {rate:.6g}" for epoch, rate in rates),
        f"accuracy of {last.rpartition('/')[2]}: {accuracy:.2f}",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="checkpoints, backup and logs: a path; for a URL see make_or_restore.py")
    print("\n".join(train(parser.parse_args().directory)))

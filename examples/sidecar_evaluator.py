"""Trains a small network on scikit-learn's digits, while another process evaluates every checkpoint of it.

In two shells, in any order:

    python examples/sidecar_evaluator.py train runs/evaluated
    python examples/sidecar_evaluator.py evaluate runs/evaluated

The evaluator ends when the training has ended, and prints what it has found:

    epoch 1, step 25: accuracy 0.77
    epoch 2, step 50: accuracy 0.86
    epoch 3, step 75: accuracy 0.87
    epoch 4, step 100: accuracy 0.89

Each of the two may be killed and started again with the same arguments. The results are in runs/evaluated/tb/evaluator
for TensorBoard, and the best model is runs/evaluated/best.keras. In a cluster the evaluator is the task of the type
"evaluator" in TF_CONFIG.
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
    train = rows.take(TRAIN_ROWS).shuffle(TRAIN_ROWS, seed=1).batch(BATCH_SIZE)
    return train, rows.skip(TRAIN_ROWS).batch(BATCH_SIZE)


def build_model() -> keras.Model:
    keras.utils.set_random_seed(42)
    layers = [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def train(directory: str, extra_callbacks: Sequence[Any] = ()) -> keras.callbacks.History:
    dataset, _ = load_data()
    return build_model().fit(
        dataset,
        epochs=EPOCHS,
        shuffle=False,  # the dataset does so itself
        callbacks=[
            kdc.ModelCheckpoint(f"{directory}/checkpoints/{{epoch:04d}}.keras"),
            kdc.BackupAndRestore(f"{directory}/backup", save_freq=5),
            kdc.TensorBoard(f"{directory}/tb"),
            *extra_callbacks,
        ],
        verbose=2,
    )


def evaluate(directory: str, callbacks: Sequence[Any] = ()) -> list[str]:
    _, test = load_data()
    evaluator = kdc.SidecarEvaluator(
        None,  # take the models as they are in their files
        test,
        f"{directory}/checkpoints",
        callbacks=callbacks,
        poll_seconds=1,
        log_dir=f"{directory}/tb",
        export_best=f"{directory}/best.keras",
        monitor="accuracy",
        verbose=0,
    )
    return [f"epoch {r.epoch}, step {r.step}: accuracy {r.metrics['accuracy']:.2f}" for r in evaluator.start()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["train", "evaluate"])
    parser.add_argument("directory", help="checkpoints, backup, results and logs: a path or URL")
    arguments = parser.parse_args()
    if arguments.task == "train":
        train(arguments.directory)
    else:
        print("\n".join(evaluate(arguments.directory)))

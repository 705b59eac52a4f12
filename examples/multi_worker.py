"""TensorFlow's tutorial "Multi-worker training with Keras", on scikit-learn's digits, so that it survives being killed.

On two machines, or in two shells of one, with the same arguments:

    export TF_CONFIG='{"cluster": {"worker": ["localhost:12345", "localhost:23456"]},
                       "task": {"type": "worker", "index": 0}}'
    python examples/multi_worker.py --backup runs/multi/backup --checkpoints gs://bucket/run1 --logs logs

and the same with "index": 1. The first worker is the chief. It alone writes the backup and the checkpoints, which may
go to a store; logs are written by each worker to a place of its own. Each prints how its training has ended:

    worker 0 of 2: loss 1.40, accuracy 0.82

Whichever of the two is killed, at any instant: the other one ends with exit code 138, which means "start me again".
Started again with the same arguments, both continue, and end with the same weights as if nothing had happened. No path
differs between chief and worker, and there is no copy of a checkpoint to delete, as in the tutorial.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

PER_WORKER_BATCH_SIZE = 30
TRAIN_ROWS = 1500
EPOCHS = 3


def load_data(batch_size: int) -> tf.data.Dataset:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")[:TRAIN_ROWS].reshape(-1, 8, 8, 1)
    rows = tf.data.Dataset.from_tensor_slices((images, labels[:TRAIN_ROWS])).shuffle(TRAIN_ROWS, seed=1)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return rows.batch(batch_size, drop_remainder=True).with_options(options)


def build_and_compile_cnn_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(learning_rate=0.05),
        metrics=["accuracy"],
    )
    return model


def train(backup: str, checkpoints: str, logs: str, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Trains on this worker; returns what there is to say."""
    strategy = kdc.make_strategy()
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(42)
    cluster = kdc.advanced.Cluster.detect()
    dataset = load_data(PER_WORKER_BATCH_SIZE * cluster.num_workers)
    with strategy.scope():
        model = build_and_compile_cnn_model()
    history = model.fit(
        dataset,
        epochs=EPOCHS,
        callbacks=[
            kdc.BackupAndRestore(backup, delete_checkpoint=False),
            kdc.ModelCheckpoint(f"{checkpoints}/ckpt-{{epoch:04d}}.keras", max_to_keep=2),
            kdc.TensorBoard(f"{logs}/worker{cluster.worker_index}", write_on="all"),
            *extra_callbacks,
        ],
        shuffle=False,  # the dataset does so itself
        verbose=0,
    ).history
    me = f"worker {cluster.worker_index} of {cluster.num_workers}"
    return [f"{me}: loss {history['loss'][-1]:.2f}, accuracy {history['accuracy'][-1]:.2f}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places = {
        "backup": "a directory that all workers can read, or a URL",
        "checkpoints": "where the chief's checkpoints go: a path or URL",
        "logs": "a directory on this machine, or a URL",
    }
    vertex = os.environ.get("AIP_CHECKPOINT_DIR", "").rstrip("/")  # set by Vertex AI
    for name, meaning in places.items():
        parser.add_argument(f"--{name}", required=not vertex, default=f"{vertex}/{name}", help=meaning)
    arguments = parser.parse_args()
    with kdc.restartable():
        print("\n".join(train(arguments.backup, arguments.checkpoints, arguments.logs)))

"""A training loop of one's own under any strategy; killed at any instant and started again, it resumes.

    python examples/custom_training_loop.py runs/custom

prints

    epoch 1: loss 2.0455, accuracy 0.2951
    epoch 2: loss 1.4211, accuracy 0.5764
    epoch 3: loss 1.0025, accuracy 0.7135

The loop is the usual one of `tf.distribute`: a replica's step in `strategy.run`, losses reduced over replicas.
"""

from __future__ import annotations

import argparse
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

BATCH_SIZE = 48  # of all replicas together
ROWS = 48 * 12


def load_data() -> tf.data.Dataset:
    images, labels = load_digits(return_X_y=True)
    rows = tf.data.Dataset.from_tensor_slices(((images / 16.0).astype("float32")[:ROWS], labels[:ROWS]))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return rows.shuffle(ROWS, seed=1).batch(BATCH_SIZE, drop_remainder=True).with_options(options)


def build() -> tuple[Any, Any, Any]:
    """The model, its optimizer and a metric, with all their variables."""
    layers = [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    accuracy.update_state([0], [[0.0] * 10])  # creates its variables
    accuracy.reset_state()
    return model, optimizer, accuracy


def make_train_step(strategy: Any, model: Any, optimizer: Any, accuracy: Any) -> Any:
    """A function of one global batch that returns its loss."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_sum(loss_of(labels, logits)) / BATCH_SIZE
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        accuracy.update_state(labels, logits)
        return loss

    @tf.function
    def train_step(batch: Any) -> Any:
        losses = strategy.run(replica_step, args=batch)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return train_step


def train(directory: str, epochs: int = 3, save_freq: int = 1, on_step: Any = None) -> tuple[Any, list[float]]:
    """Trains; returns the model and each epoch's loss. `on_step(epoch, batch)` is called before each step."""
    strategy = kdc.make_strategy()
    keras.utils.set_random_seed(42)
    with strategy.scope():
        model, optimizer, accuracy = build()
    train_step = make_train_step(strategy, model, optimizer, accuracy)
    dataset = strategy.experimental_distribute_dataset(load_data())
    state: dict[str, Any] = {"losses": [], "running": 0.0}
    checkpointer = kdc.Checkpointer(
        f"{directory}/backup",
        model=model,
        optimizer=optimizer,
        metrics=[accuracy],
        state=state,
        save_freq=save_freq,
        write_options=kdc.WriteOptions(when_busy="wait"),
        delete_checkpoint=False,
    )
    with checkpointer:
        checkpointer.restore()
        for epoch in checkpointer.epochs(epochs):
            for batch in checkpointer.batches(dataset):
                if on_step is not None:
                    on_step(epoch, checkpointer.batch)
                state["running"] += float(train_step(batch))
                checkpointer.step()
            state["losses"].append(state["running"] / checkpointer.batch)
            print(f"epoch {epoch + 1}: loss {state['losses'][-1]:.4f}, accuracy {float(accuracy.result()):.4f}")
            state["running"] = 0.0
            accuracy.reset_state()
    return model, state["losses"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", help="where backups go: a path, or a URL such as gs://bucket/run1")
    train(parser.parse_args().directory)

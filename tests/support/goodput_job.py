"""A training at a certain pace that is killed now and then, and notes when it does what: by a clock of its own."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

os.environ["GOODPUT_JOB_BEGAN"] = str(time.time())
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc

BATCH, STEPS = 8, 50


class Ticks(keras.callbacks.Callback):
    """Waits in each step, notes its end, and ends the process after some of them, once each; waits in validation.

    The last worker is the one that ends.
    """

    def __init__(self, asked: argparse.Namespace) -> None:
        super().__init__()
        self.asked = asked
        cluster = kdc.advanced.Cluster.detect()
        self.file = asked.directory / f"ticks-{cluster.worker_index}"
        self.ends = cluster.worker_index == cluster.num_workers - 1

    def note(self, what: str, when: float | None = None) -> None:
        with self.file.open("a") as file:
            file.write(f"{os.getpid()} {time.time() if when is None else when:.6f} {what}\n")

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.note("fit")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        time.sleep(self.asked.pace)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step_done(int(self.model.optimizer.iterations.value.numpy()))  # also of a mirrored one

    def step_done(self, step: int) -> None:
        self.note(str(step))
        for number, steps in ((signal.SIGKILL, self.asked.kill), (signal.SIGTERM, self.asked.term)):
            if self.ends and step in steps and not (marker := self.asked.directory / f"ended-{step}").exists():
                marker.touch()
                os.kill(os.getpid(), number)

    def on_test_begin(self, logs: Any = None) -> None:
        self.note("test")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(self.asked.pace)

    def on_test_end(self, logs: Any = None) -> None:
        self.note("tested")


kdc.advanced.register_callback_state(Ticks, None)


def fit(ticks: Ticks, x: Any, y: Any, options: dict[str, Any]) -> None:
    asked = ticks.asked
    strategy = kdc.make_strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    backup = kdc.BackupAndRestore(asked.directory / "backup", **options)
    validation = {"validation_data": (x, y), "validation_batch_size": BATCH} if asked.validation else {}
    model.fit(x, y, batch_size=BATCH, epochs=asked.epochs, verbose=0, callbacks=[ticks, backup], **validation)


def loop(ticks: Ticks, x: Any, y: Any, options: dict[str, Any]) -> None:
    asked = ticks.asked
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

    @tf.function
    def train_step(inputs: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )

    checkpointer = kdc.Checkpointer(asked.directory / "backup", model=model, optimizer=optimizer, **options)
    ticks.note("fit")
    with checkpointer:
        checkpointer.restore()
        for _ in checkpointer.epochs(asked.epochs):
            for batch in checkpointer.batches(batches):
                time.sleep(asked.pace)
                train_step(*batch)
                checkpointer.step()
                ticks.step_done(checkpointer.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pace", type=float, default=0.02, help="seconds that each step waits")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--save", type=int, default=20)
    parser.add_argument("--kill", type=int, action="append", default=[], help="after this step, once")
    parser.add_argument("--term", type=int, action="append", default=[], help="likewise, by SIGTERM")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--loop", action="store_true", help="with Checkpointer")
    asked = parser.parse_args()
    ticks = Ticks(asked)
    ticks.note("begin", float(os.environ["GOODPUT_JOB_BEGAN"]))
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(BATCH * STEPS, 4)).astype("float32")
    options = {"save_freq": asked.save, "write_options": kdc.WriteOptions(when_busy="wait")}
    (loop if asked.loop else fit)(ticks, x, x[:, :1], options)
    ticks.note("end")


if __name__ == "__main__":
    main()

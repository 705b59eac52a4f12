"""The training that `benchmarks.tensorboard` kills: each step logged, a backup every 20 steps."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_dist_callbacks as kdc

EPOCHS, STEPS, BATCH, SAVED = 6, 50, 8, 20


class Kill(keras.callbacks.Callback):
    """Ends the process by SIGKILL after some of its steps."""

    def __init__(self, after: int, pace: float) -> None:
        super().__init__()
        self.after, self.pace = after, pace

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """A step is complete, and logged by the callbacks before this one."""
        time.sleep(self.pace)
        if int(self.model.optimizer.iterations) == self.after:
            os.kill(os.getpid(), signal.SIGKILL)


kdc.advanced.register_callback_state(Kill, None)


def callbacks(kind: str, directory: Path) -> list[Any]:
    """Returns what logs and saves: Keras' own, or ours."""
    logs, backup = directory / "logs", directory / "backup"
    if kind == "keras":
        return [
            keras.callbacks.TensorBoard(str(logs), update_freq=1),
            keras.callbacks.BackupAndRestore(str(backup), save_freq=SAVED),
        ]
    exactly = kdc.WriteOptions(when_busy="wait")
    return [kdc.TensorBoard(logs, update_freq=1), kdc.BackupAndRestore(backup, SAVED, write_options=exactly)]


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["keras", "kdc"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kill", type=int, default=0, help="after this step of the training")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that each step waits")
    asked = parser.parse_args()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.003), "mse")
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 16)).astype("float32")
    every = [*callbacks(asked.kind, asked.directory), Kill(asked.kill, asked.pace)]
    y = x[:, :1] * x[:, 1:2]
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(x, y), callbacks=every)


if __name__ == "__main__":
    main()

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

import keras_dist_callbacks as kdc

BATCH, STEPS = 8, 50


class Ticks(keras.callbacks.Callback):
    """Waits in each step, notes its end, and kills the process after some of them, once each."""

    def __init__(self, directory: Path, pace: float, kills: list[int]) -> None:
        super().__init__()
        self.directory, self.pace, self.kills = directory, pace, kills

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        time.sleep(self.pace)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations)
        note(self.directory, str(step))
        if step in self.kills and not (marker := self.directory / f"killed-{step}").exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


kdc.advanced.register_callback_state(Ticks, None)


def note(directory: Path, what: str, when: float | None = None) -> None:
    with (directory / "ticks").open("a") as file:
        file.write(f"{os.getpid()} {time.time() if when is None else when:.6f} {what}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pace", type=float, default=0.02, help="seconds that each step waits")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--save", type=int, default=20)
    parser.add_argument("--kill", type=int, action="append", default=[], help="after this step, once")
    asked = parser.parse_args()
    note(asked.directory, "begin", float(os.environ["GOODPUT_JOB_BEGAN"]))
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(BATCH * STEPS, 4)).astype("float32")
    backup = kdc.BackupAndRestore(
        asked.directory / "backup", save_freq=asked.save, write_options=kdc.WriteOptions(when_busy="wait")
    )
    ticks = Ticks(asked.directory, asked.pace, asked.kill)
    note(asked.directory, "fit")
    model.fit(x, x[:, :1], batch_size=BATCH, epochs=asked.epochs, verbose=0, callbacks=[ticks, backup])
    note(asked.directory, "end")


if __name__ == "__main__":
    main()

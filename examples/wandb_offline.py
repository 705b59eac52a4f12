"""Tracks a training with Weights & Biases, offline; killed and started again, the newest file has every epoch once.

    python examples/wandb_offline.py runs/wandb
    wandb sync runs/wandb/wandb/latest-run

Offline, each process writes a file of its own. A killed process loses its last rows, because wandb writes them some
seconds later. So the rows are part of the backup, and a resumed process logs them again. Its file is complete and
replaces those before it. One line is printed for each epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import wandb
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

ROWS, EPOCHS = 600, 3


class LogAll(keras.callbacks.Callback):
    """Logs each epoch's metrics, and at a resume those of the epochs before it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Logs a row."""
        self._log({name: float(value) for name, value in (logs or {}).items()})

    def get_state(self) -> dict[str, Any]:
        """What a backup is to hold."""
        return {"rows": self.rows}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """At a resume."""
        for row in state["rows"]:
            self._log(row)

    def _log(self, row: dict[str, float]) -> None:
        wandb.log({f"epoch/{name}": value for name, value in row.items()}, step=len(self.rows))
        self.rows.append(row)


def train(directory: str, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Trains, or resumes; returns what is printed."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    wandb.init(project="digits", id="training", mode="offline", dir=directory)
    keras.utils.set_random_seed(7)
    images, labels = load_digits(return_X_y=True)
    layers = [keras.Input((64,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2)]
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    backup = kdc.BackupAndRestore(
        f"{directory}/backup", save_freq=7, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
    )
    log = LogAll()
    x = (images / 16.0).astype("float32")[:ROWS]
    model.fit(x, labels[:ROWS], batch_size=50, epochs=EPOCHS, verbose=0, callbacks=[*extra_callbacks, log, backup])
    wandb.finish()
    return [f"epoch {number}: {row}" for number, row in enumerate(log.rows, 1)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the files of wandb and the backup go")
    print("\n".join(train(parser.parse_args().directory)))

"""A training script for kill tests: callbacks that write files, Keras' and ours, in one directory."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras

import keras_dist_callbacks as kdc
from keras_dist_callbacks.testing import KillAt
from tests.support import (
    busy_machine,  # noqa: F401 - it changes this process on request
    tiny,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kill", type=KillAt.from_string, action="append", default=[])
    arguments = parser.parse_args()
    directory = arguments.directory
    x, y = tiny.data()
    tiny.fit(
        tiny.rich_model(),
        directory / "backup",
        [
            keras.callbacks.CSVLogger(directory / "rows.csv"),
            kdc.ChiefOnly(keras.callbacks.CSVLogger(directory / "appended.csv", append=True)),
            keras.callbacks.ModelCheckpoint(directory / "keras-{epoch}.weights.h5", save_weights_only=True),
            kdc.ModelCheckpoint(directory / "ours" / "{epoch}.keras", max_to_keep=2),
            kdc.ModelCheckpoint(directory / "ours" / "best.keras", save_best_only=True),
            kdc.TensorBoard(directory / "board", update_freq=1),
            keras.callbacks.ReduceLROnPlateau("loss", min_delta=10, patience=1),
            *arguments.kill,
        ],
        epochs=4,
        save_freq=2,
        validation_data=(x[:16], y[:16]),
    )


if __name__ == "__main__":
    main()

"""Trains a head on a frozen backbone, then both; killed in either phase and started again, it resumes there.

    python examples/frozen_backbone.py runs/backbone

Each phase is a `fit()` with a backup of its own, in which the frozen weights are written once. A phase that was
finished trains no step again. One line is printed for each epoch, with its loss. The backbone begins with random
weights here, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

ROWS = 200


def load_data() -> tuple[Any, Any]:
    images, labels = load_digits(return_X_y=True)
    small = (images[:ROWS] / 8.0 - 1.0).astype("float32").reshape(-1, 8, 8, 1)
    return np.repeat(small.repeat(4, axis=1).repeat(4, axis=2), 3, axis=3), labels[:ROWS]


def train(directory: str, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Trains, or resumes; returns what is printed."""
    keras.utils.set_random_seed(7)
    backbone = keras.applications.MobileNet((32, 32, 3), 0.25, include_top=False, weights=None, pooling="avg")
    model = keras.Sequential([backbone, keras.layers.Dropout(0.2), keras.layers.Dense(10, activation="softmax")])
    lines = []
    for phase, rate in (("head", 1e-2), ("both", 1e-4)):
        backbone.trainable = phase == "both"
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
        place = f"{directory}/{phase}"
        backup = kdc.BackupAndRestore(
            place, save_freq=3, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
        )
        history = model.fit(*load_data(), batch_size=40, epochs=2, verbose=0, callbacks=[*extra_callbacks, backup])
        lines += [f"{phase}, epoch {number}: loss {loss!r}" for number, loss in enumerate(history.history["loss"], 1)]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the backups of both phases go")
    print("\n".join(train(parser.parse_args().directory)))

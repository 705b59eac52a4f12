"""A small job for a crash tester that is not ours: `--keras-callback` runs it with Keras' own BackupAndRestore."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_dist_callbacks as kdc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keras-callback", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    layers = [keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    backup = (
        keras.callbacks.BackupAndRestore(f"{args.out}/backup", save_freq=4, delete_checkpoint=False)
        if args.keras_callback
        else kdc.BackupAndRestore(
            f"{args.out}/backup", save_freq=4, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
        )
    )
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[backup])
    weights = b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())
    (args.out / "final.bin").write_bytes(weights)


if __name__ == "__main__":
    main()

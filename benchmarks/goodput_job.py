"""The training that `benchmarks.goodput` kills: steps of a fixed length, and a log of what each start took."""

import os
import sys
import time

LOG, CALLBACK, DIRECTORY, EPOCHS, STEPS, SECONDS = sys.argv[1:]


def note(part: str) -> None:
    """Appends a line with the time and this process' id."""
    with open(LOG, "a") as file:
        file.write(f"{part} {time.time():.3f} {os.getpid()}\n")


note("start")

import keras  # noqa: E402 - the time of the imports is measured
import numpy as np  # noqa: E402

import keras_dist_callbacks as kdc  # noqa: E402

if CALLBACK == "kdc":
    backup = kdc.BackupAndRestore(DIRECTORY, save_freq=20)
else:
    backup = keras.callbacks.BackupAndRestore(DIRECTORY, save_freq=20)
note("import")
strategy = kdc.make_strategy()
note("join")


class Watch(keras.callbacks.Callback):
    """Notes the first batch, and makes each step take its time."""

    first = True

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """The model is restored."""
        if self.first:
            note("restore")

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """A step is complete."""
        if self.first:
            note("trace")
        self.first = False
        time.sleep(float(SECONDS))


if CALLBACK == "kdc":
    kdc.advanced.register_callback_state(Watch, None)
keras.utils.set_random_seed(1)
rows = int(STEPS) * 32
x = np.random.default_rng(1).normal(size=(rows, 64)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int32")
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
model.fit(x, y, batch_size=32, epochs=int(EPOCHS), verbose=0, callbacks=[Watch(), backup])
note("end")

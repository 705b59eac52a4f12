"""`python -m tests.support.kept_crashes DIRECTORY GIVEN`: twelve epochs of a fit() that is killed in each of them.

GIVEN is `max_to_keep keep_every save_freq` as JSON. A forked process trains until a SIGKILL in its n-th epoch, another
one continues to the end. Prints a line of JSON for each n: the steps of the backups after the kill, and at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.support.retention_crashes import forked

STEPS, EPOCHS, BATCH = 10, 12, 4


class KillAt(keras.callbacks.Callback):
    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.place = epoch * STEPS + 8

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == self.place:
            os.kill(os.getpid(), signal.SIGKILL)


kdc.advanced.register_callback_state(KillAt, None)


def train(directory: Path, given: list[Any], *callbacks: Any) -> None:
    max_to_keep, keep_every, save_freq = given
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 3)).astype("float32")
    backup = kdc.BackupAndRestore(
        directory,
        save_freq=save_freq,
        max_to_keep=max_to_keep,
        keep_every=keep_every,
        delete_checkpoint=False,
        write_options=kdc.WriteOptions(when_busy="wait"),
    )
    model.fit(x, x[:, :1], batch_size=BATCH, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[*callbacks, backup])


def kept(directory: Path) -> list[int]:
    store = BackupStore(Storage.open(directory))
    manifests = [store.manifest(commit) for commit in store.commits()]
    for manifest in manifests:
        store.verify(manifest)
    return sorted({manifest.position.step for manifest in manifests})


def main(directory: Path, given: list[Any]) -> None:
    for epoch in range(EPOCHS):
        place = directory / str(epoch)
        code = forked(lambda place=place, epoch=epoch: train(place, given, KillAt(epoch)))
        after_kill = kept(place)
        ended = forked(lambda place=place: train(place, given))
        if (code, ended) != (-signal.SIGKILL, 0):
            sys.exit(f"epoch {epoch}: exit codes {code} and {ended}")
        print(json.dumps([after_kill, kept(place)]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

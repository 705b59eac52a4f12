"""A training script of which a test starts two on one directory: slow, saves after every step."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

from tests.support import (
    busy_machine,  # noqa: F401 - it changes this process on request
    tiny,
)


class Slowly(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        time.sleep(float(sys.argv[2]))


model = tiny.rich_model()
tiny.fit(model, sys.argv[1], [Slowly()], epochs=int(sys.argv[3]), options={"delete_checkpoint": False})
print("ENDED WELL", flush=True)

"""A slow training script that saves after every step; for tests that start two on one directory, or look at one."""

from __future__ import annotations

import json
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
options = {"delete_checkpoint": False, "storage_options": json.loads(os.environ.get("KDC_STORAGE_OPTIONS", "null"))}
tiny.fit(model, sys.argv[1], [Slowly()], epochs=int(sys.argv[3]), options=options)
print("ENDED WELL", flush=True)

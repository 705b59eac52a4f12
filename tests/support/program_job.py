"""Runs a training with a program of others: `program_job.py NAME DIRECTORY RECORD [none|backup] [BATCHES]`.

With a number of batches it is killed by SIGKILL after them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

import keras_dist_callbacks as kdc
from keras_dist_callbacks.testing import record_run
from tests.support.example_job import KillBehind
from tests.support.program_cases import PROGRAMS


def main(name: str, directory: str, record: str, kind: str, *kills: str) -> None:
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(7)
    more: list[Any] = [KillBehind(int(batches)) for batches in kills]
    if kind == "backup":
        more.append(
            kdc.BackupAndRestore(place / "backup", save_freq=3, write_options=kdc.WriteOptions(when_busy="wait"))
        )
    model, history = PROGRAMS[name].train(place, more)
    record_run(record, model, history)


if __name__ == "__main__":
    main(*sys.argv[1:])

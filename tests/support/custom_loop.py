"""Runs the example of a custom training loop, killed where requested, and records its end."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks._compat.variables import components

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import custom_training_loop

directory, record, kill = sys.argv[1:4]
me = kdc.advanced.Cluster.detect().worker_index


def on_step(epoch: int, batch: int) -> None:
    with open(f"{record}-steps{me}", "a") as file:
        file.write(f"{epoch}:{batch}\n")
    if f"{epoch}:{batch}" == kill and me == kdc.advanced.Cluster.detect().num_workers - 1:
        from keras_dist_callbacks.run.engine.writer import shared_writer

        shared_writer().wait()
        Path(f"{record}-steps{me}").write_text(Path(f"{record}-steps{me}").read_text().rsplit("\n", 2)[0] + "\n")
        os.kill(os.getpid(), signal.SIGKILL)


model, losses = custom_training_loop.train(directory, on_step=on_step)
weights = {v.path: [c.numpy().tobytes().hex() for c in components(v)] for v in model.variables}
Path(f"{record}-end{me}").write_text(json.dumps({"losses": [x.hex() for x in losses], "weights": weights}))

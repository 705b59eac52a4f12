"""A job of one or two workers whose store takes longer for a backup than training for many steps.

late_saves_job.py DIRECTORY [late | wait | lost WORKER]: with one of them, backups are written slowly. With `late` and
`wait`, which is the value of `when_busy`, all workers are killed once some are written; with `lost`, one is killed
while a backup is late.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.run import run
from keras_dist_callbacks.run.engine.worker_exchange import WorkerStateExchange
from keras_dist_callbacks.run.engine.writer import shared_writer
from tests.support.grouped import grouped
from tests.support.workload import batches, build_model, finish, load

TIMEOUT = 2.5
"""Seconds after which a worker gives up what no one answers: less than a backup takes."""
BYTES_PER_SECOND = {"late": 15_000, "wait": 6_000, "lost": 20_000}
STEP_SECONDS = 0.4
CUT_AT = {"late": (2, 4), "wait": (0, 2)}
LOST_AT = (1, 4)


class Cut(keras.callbacks.Callback):
    """Kills this process, or the worker that is to be lost."""

    def __init__(self, what: str, lost: int | None, backup: kdc.BackupAndRestore) -> None:
        super().__init__()
        self.backup = backup
        self.what, self.lost = what, lost
        self.worker, self.epoch = kdc.advanced.Cluster.detect().worker_index, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.what:
            time.sleep(STEP_SECONDS)
        if CUT_AT.get(self.what) == (self.epoch, batch):
            began = time.monotonic()
            shared_writer().wait(60)
            print(f"everything is written after {time.monotonic() - began:.1f} s", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.lost is not None and self.worker == 0:
            late = self.backup._session.run.schedule._late_since is not None
            print(f"late after {self.epoch},{batch}: {late}", flush=True)
        if self.worker == self.lost and (self.epoch, batch) == LOST_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    directory, what = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    lost = int(sys.argv[3]) if what == "lost" else None
    strategy = kdc.make_strategy(cluster_options=kdc.ClusterOptions(startup_timeout=60, heartbeat_timeout=10))
    keras.utils.set_random_seed(7)
    train, _ = load()
    with strategy.scope():
        model = build_model(None)
    slow: dict[str, Any] = {}
    if what:
        slow = {"max_bytes_per_second": BYTES_PER_SECOND[what], "when_busy": "wait" if what == "wait" else "late"}
        run.WorkerStateExchange = lambda cluster, name, most, _: WorkerStateExchange(
            cluster, name, most, TIMEOUT
        )  # all else may be slow
    backup = kdc.BackupAndRestore(directory / "backup", save_freq=1, delete_checkpoint=False, **grouped(**slow))
    # after the backup's callback: it has seen the step at whose end the job is killed
    history = model.fit(batches(train), epochs=3, callbacks=[backup, Cut(what, lost, backup)], verbose=0)
    if backup.restored is not None:
        print(f"RESTORED {backup.restored.position}", flush=True)
    finish(str(directory / "end"), model, history)


if __name__ == "__main__":
    main()

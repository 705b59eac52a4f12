"""A training on arrays without any seed, which can leave a copy of its backups in mid-epoch and continue."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.testing import KillAt, record_run
from tests.support.strategy_job import STRATEGIES, examples, model

EPOCHS, BATCH = 4, 48


class CopyAt(keras.callbacks.Callback):
    """Copies the backup directory once, between two steps, as a kill there would leave it."""

    def __init__(self, source: Path, target: Path, epoch: int, batch: int) -> None:
        super().__init__()
        self.source, self.target, self.where = source, target, (epoch, batch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.where and kdc.advanced.Cluster.detect().is_chief:
            shared_writer().finish_earlier()
            shutil.copytree(self.source, self.target)


kdc.advanced.register_callback_state(CopyAt, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("backup", type=Path)
    parser.add_argument("record")
    parser.add_argument("--copy", type=Path)
    parser.add_argument("--kill", type=KillAt.from_string, action="append", default=[])
    asked = parser.parse_args()
    if not asked.strategy.startswith("multi-worker"):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = STRATEGIES[asked.strategy]()
    with strategy.scope():
        trained = model(random=True)
    options = kdc.WriteOptions(when_busy="wait")
    backup = kdc.BackupAndRestore(asked.backup, save_freq=3, delete_checkpoint=False, write_options=options)
    copies = [CopyAt(asked.backup, asked.copy, 1, 5)] if asked.copy is not None else []
    images, labels = examples()
    history = trained.fit(
        images, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[*asked.kill, *copies, backup]
    )
    if backup.restored is not None:
        print(f"ANSWER {backup.restored.verdict} {backup.restored.position}", flush=True)
    record_run(f"{asked.record}-worker{kdc.advanced.Cluster.detect().worker_index}", trained, history)


if __name__ == "__main__":
    main()

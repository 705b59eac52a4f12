"""A training with one row that is infinite, in the same batch of each epoch; started by `kdc launch`."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.testing import record_run

BATCH, STEPS, BAD = 8, 6, 3


def strategy(name: str) -> Any:
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    return kdc.make_strategy() if name == "multi_worker" else tf.distribute.get_strategy()


class KillOnce(keras.callbacks.Callback):
    """Kills its process in the last batch of the first epoch that it comes to, once for all processes."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == STEPS - 1:
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


kdc.advanced.register_callback_state(KillOnce, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--strategy", default="default")
    parser.add_argument("--place", type=int, default=0, help="of the row in its global batch")
    parser.add_argument("--kill", action="store_true", help="the first time that a process is beyond the first skip")
    args = parser.parse_args()
    if args.strategy == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    x = np.random.default_rng(0).normal(size=(BATCH * STEPS, 4)).astype("float32")
    x[BAD * BATCH + args.place] = np.inf
    with strategy(args.strategy).scope():
        layers = [keras.layers.Dense(3), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("adam", "mse", jit_compile=False)
    data = tf.data.Dataset.from_tensor_slices((x, np.nan_to_num(x[:, :1], posinf=0.0))).batch(BATCH)
    options = {"save_freq": 1, "on_nonfinite": kdc.Rollback(), "delete_checkpoint": False}
    wait = kdc.WriteOptions(when_busy="wait")  # else steps that take no time leave no backup behind the bad one
    backup = kdc.BackupAndRestore(f"{args.directory}/backup", write_options=wait, **options)
    killed = Path(args.directory, "killed")
    kill = [KillOnce(killed)] if args.kill and not killed.exists() else []
    history = model.fit(data, epochs=2, verbose=0, callbacks=[*kill, backup])
    worker = max(0, kdc.advanced.Cluster.detect().worker_index)
    record_run(f"{args.directory}/run-{worker}", model, history)
    print("END", int(keras.ops.convert_to_numpy(model.optimizer.iterations)), flush=True)


if __name__ == "__main__":
    main()

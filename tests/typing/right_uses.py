"""Right uses of the public names, in which type checkers find nothing; nothing of it is run."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Literal, assert_type

import keras
import numpy as np

import keras_dist_callbacks as kdc
from keras_dist_callbacks import ConfigError, StorageError, advanced
from keras_dist_callbacks.advanced import Cluster


class Named(keras.Model):
    """A user's own."""

    name_of_data = "digits"


def build() -> Named:
    """Makes one."""
    return Named()


backup = kdc.BackupAndRestore(Path("backup"), save_freq=datetime.timedelta(minutes=10), strict="certain")
kdc.BackupAndRestore("backup", "auto", max_overhead=0.01, strict=True)
kdc.BackupAndRestore("backup", save_freq=False, shutdown_options=kdc.ShutdownOptions(signals=["SIGUSR1", 15]))
kdc.ModelCheckpoint("m.keras", mode="min", save_freq=100, write_on="all")
kdc.TensorBoard("logs", update_freq="batch")
kdc.PrintLR(100)
kdc.EpochDataset(lambda epoch: np.arange(epoch))
kdc.ChiefOnly(keras.callbacks.CSVLogger("log.csv"))
kdc.make_strategy("mirrored", devices=["CPU:0"], cluster_options=kdc.ClusterOptions(startup_timeout=60))

assert_type(kdc.make_or_restore_model(build, "checkpoints"), Named)
assert_type(kdc.load_backup("backup"), dict[str, np.ndarray[Any, Any]])
assert_type(kdc.load_backup("backup", build(), commit="2-14"), Named)
assert_type(backup.restored, kdc.Restored | None)
assert_type(kdc.restored_from(build()), kdc.Restored | None)
assert_type(Cluster.detect(), Cluster)
assert_type(advanced.stateless_input([1, 2]), list[int])
if backup.restored is not None:
    assert_type(backup.restored.verdict, Literal["exact", "exact if", "not exact"])
try:
    kdc.latest_checkpoint("checkpoints", retry=kdc.RetryPolicy(total_seconds=5))
except StorageError as error:
    assert_type(error.unavailable, bool)
except (ConfigError, kdc.DamagedBackupError) as error:
    assert_type(str(error), str)

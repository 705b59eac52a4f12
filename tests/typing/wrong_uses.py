"""Wrong uses of the public names; each line says which code mypy gives its error, or that it finds nothing.

It is read by type checkers only: nothing of it is run.
"""

from __future__ import annotations

import keras

import keras_dist_callbacks as kdc
from keras_dist_callbacks import register_callback_state, testing  # mypy: attr-defined

model = keras.Sequential()
backup = kdc.BackupAndRestore("backup")

# words
kdc.BackupAndRestore("backup", save_freq="batch")  # mypy: arg-type
kdc.BackupAndRestore("backup", save_freq=2.5)  # mypy: arg-type
kdc.BackupAndRestore("backup", strict="sure")  # mypy: arg-type
kdc.Checkpointer("backup", model=model, save_freq="steps")  # mypy: arg-type
kdc.Checkpointer("backup", model=model, strict=1.0)  # mypy: arg-type
kdc.ModelCheckpoint("m.keras", mode="maximum")  # mypy: arg-type
kdc.ModelCheckpoint("m.keras", save_freq="batch")  # mypy: arg-type
kdc.ModelCheckpoint("m.keras", write_on="workers")  # mypy: arg-type
kdc.TensorBoard("logs", update_freq="step")  # mypy: arg-type
kdc.TensorBoard("logs", write_on="workers")  # mypy: arg-type
kdc.PrintLR("batch")  # mypy: arg-type
kdc.SidecarEvaluator(model, model, "checkpoints", mode="best")  # mypy: arg-type
kdc.WriteOptions(when_busy="skip")  # mypy: arg-type
kdc.make_strategy("mirror")  # mypy: arg-type
testing.KillAt(3, phase="batch_end")  # mypy: arg-type

# keywords
kdc.BackupAndRestore()  # mypy: call-arg
kdc.BackupAndRestore("backup", save_frequency=100)  # mypy: call-arg
kdc.BackupAndRestore("backup", replay="read")  # mypy: call-arg
kdc.BackupAndRestore("backup", retry=kdc.RetryPolicy())  # mypy: call-arg
kdc.BackupAndRestore("backup", "epoch", False, True, 0.02)  # mypy: arg-type, call-arg
kdc.Checkpointer("backup")  # mypy: call-arg
kdc.Checkpointer("backup", model)  # mypy: call-arg
kdc.ChiefOnly()  # mypy: call-arg
kdc.ClusterOptions(60)  # mypy: call-arg
kdc.ShutdownOptions(preemption_signals="SIGTERM")  # mypy: call-arg
kdc.WriteOptions(kdc.RetryPolicy())  # mypy: call-arg
kdc.make_strategy(startup_timeout=60)  # mypy: call-arg
kdc.load_backup("backup", epoch=3)  # mypy: call-overload
kdc.latest_checkpoint("checkpoints", "gcs")  # mypy: arg-type, call-arg
kdc.restartable(138)  # mypy: call-arg

# other types
kdc.BackupAndRestore(3)  # mypy: arg-type
kdc.BackupAndRestore("backup", storage_options="key=1")  # mypy: arg-type
kdc.BackupAndRestore("backup", reread_input="yes")  # mypy: arg-type
kdc.BackupAndRestore("backup", write_options={"fsync": False})  # mypy: arg-type
kdc.BackupAndRestore("backup", write_options=kdc.ShutdownOptions())  # mypy: arg-type
kdc.ModelCheckpoint("m.keras", max_to_keep="3")  # mypy: arg-type
kdc.ModelCheckpoint("m.keras", save_best_only="yes")  # mypy: arg-type
kdc.EpochDataset([1, 2])  # mypy: arg-type
kdc.EpochDataset(lambda: [1, 2])  # mypy: arg-type, misc
kdc.ShutdownOptions(signals=15)  # mypy: arg-type
kdc.ShutdownOptions(notice=3)  # mypy: arg-type
kdc.ShutdownOptions(grace_period="25 s")  # mypy: arg-type
kdc.RetryPolicy(total_seconds="60")  # mypy: arg-type
kdc.ClusterOptions(startup_timeout="5m")  # mypy: arg-type
kdc.make_strategy(cluster_options={"timeout": 60})  # mypy: arg-type
kdc.make_or_restore_model("build", "checkpoints")  # mypy: arg-type
kdc.make_or_restore_model(lambda path: model, "checkpoints")  # mypy: arg-type, misc
kdc.gce_notice(8080)  # mypy: arg-type
kdc.advanced.Cluster(task_type=3)  # mypy: arg-type
kdc.advanced.register_callback_state("Ema", None)  # mypy: arg-type

# what comes back
kdc.latest_checkpoint("checkpoints").removesuffix(".keras")  # mypy: union-attr
kdc.load_backup("backup").compile("sgd")  # mypy: attr-defined
kdc.restored_from(model).epoch  # mypy: union-attr
backup.restored.notes  # mypy: union-attr
backup.restored is not None and backup.restored.verdict == "inexact"  # mypy: comparison-overlap
kdc.WriteOptions().fsync = False  # mypy: misc

# names
kdc.BackupAndRestor("backup")  # mypy: attr-defined
kdc.Cluster.detect()  # mypy: attr-defined
kdc.StorageFailure  # mypy: attr-defined
kdc.advanced.Clusters  # mypy: attr-defined

# where Keras' classes count: it has no type hints, so that mypy knows nothing of them
kdc.ChiefOnly("CSVLogger")  # mypy: nothing
kdc.SidecarEvaluator("model", model, "checkpoints")  # mypy: nothing
kdc.Checkpointer("backup", model="model")  # mypy: nothing
kdc.make_or_restore_model(model, "checkpoints")  # mypy: nothing
kdc.make_or_restore_model(lambda: 3, "checkpoints")  # mypy: nothing
kdc.load_backup("backup", "2-14")  # mypy: nothing
backup.restord  # mypy: nothing

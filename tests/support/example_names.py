"""What the examples of docstrings use and do not make: a model, its data, a loop, and what an earlier run has left."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.support import tiny


class GradualUnfreezing(keras.callbacks.Callback):
    unfrozen = 1


class Rows(keras.utils.PyDataset):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = tiny.data()

    def __len__(self) -> int:
        return tiny.STEPS

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * tiny.BATCH, (index + 1) * tiny.BATCH)
        return self.x[rows], self.y[rows]


def _loop() -> dict[str, Any]:
    model, loss, optimizer = tiny.model(), keras.metrics.Mean(name="loss"), keras.optimizers.SGD(0.1)

    def train_step(batch: Any) -> None:
        with tf.GradientTape() as tape:
            value = keras.ops.mean(keras.losses.binary_crossentropy(batch[1], model(batch[0], training=True)))
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        loss.update_state(value)

    def train_epoch(batches: Iterable[Any]) -> None:
        for batch in batches:
            train_step(batch)

    optimizer.build(model.trainable_variables)
    return {"model": model, "optimizer": optimizer, "loss": loss, "train_step": train_step, "train_epoch": train_epoch}


def _leave_a_run(directory: str) -> str:
    """Returns what the newest backup is called."""
    saving = [
        kdc.ModelCheckpoint(f"{directory}/checkpoints/ckpt-{{epoch}}.keras"),
        kdc.BackupAndRestore(f"{directory}/backup", delete_checkpoint=False, verbose=0),
    ]
    tiny.model().fit(*tiny.data(), epochs=2, verbose=0, callbacks=saving, validation_data=tiny.data())
    return BackupStore(Storage.open(f"{directory}/backup")).commits()[-1].label


def names() -> dict[str, Any]:
    """What examples use and do not make."""
    x, y = tiny.data()
    found: dict[str, Any] = {"kdc": kdc, "keras": keras, "tf": tf, "x": x, "y": y, "build_model": tiny.model}
    found |= {**_loop(), "dataset": tiny.shuffled(), "batches": Rows(), "batches_per_epoch": tiny.STEPS}
    return {
        **found,
        "files": tf.data.Dataset.from_tensor_slices((x, y)),
        "GradualUnfreezing": GradualUnfreezing,
        "__name__": "__main__",
    }


def shortened(code: str) -> str:
    """The same with a directory in place of the bucket, two epochs and fewer rows."""
    code = re.sub(r"(?:gs|s3|az|abfs)://bucket", "bucket", re.sub(r"(\bepochs=|\.epochs\()\d+", r"\g<1>2", code))
    return code.replace("16000", "1600")


def run(code: str) -> None:
    """Runs an example in the current directory."""
    given, code = names(), shortened(code)
    with contextlib.ExitStack() as held:
        if re.search(r"load_backup|SidecarEvaluator|best_checkpoint|rollback", code):
            code = code.replace("2-14", _leave_a_run("bucket/run1" if "bucket" in code else "."))
        if "checkpointer." in code and "kdc.Checkpointer(" not in code:
            loop = kdc.Checkpointer("loop", model=given["model"], optimizer=given["optimizer"], verbose=0)
            given["checkpointer"] = held.enter_context(loop)
            loop.restore()
        exec(compile(code, "an example", "exec"), given)  # noqa: S102 - our own documentation

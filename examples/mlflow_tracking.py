"""Tracks a training with MLflow; killed and started again, it resumes in the same run, no epoch doubled or lost.

    python examples/mlflow_tracking.py runs/mlflow
    python examples/mlflow_tracking.py runs/mlflow --autolog

MLflow keeps every point that it is given, and sends them in the background: an epoch that ends twice, before a kill and
after it, would be there twice, and one that was not sent yet not at all. So a callback sends each epoch's metrics at
once, and not again if they are there; autologging keeps its parameters, data set and model, and leaves metrics to it.
One line is printed for each point of the run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import mlflow
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

ROWS, EPOCHS, NEVER = 600, 3, 10**9


class LogOnce(keras.callbacks.Callback):
    """Logs each epoch's metrics to the active run, unless an earlier process did."""

    def __init__(self) -> None:
        super().__init__()
        self.logged = -1

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Looks what is there."""
        client, run = mlflow.MlflowClient(), mlflow.active_run().info.run_id
        self.logged = max((point.step for point in client.get_metric_history(run, "loss")), default=-1)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Logs, and waits until it is there."""
        if epoch > self.logged:
            mlflow.log_metrics({name: float(value) for name, value in (logs or {}).items()}, step=epoch)


kdc.advanced.register_callback_state(LogOnce, None)  # what it has logged is in the run


def open_run(directory: str) -> Any:
    """The run that a killed process has left, or a new one."""
    if mlflow.get_experiment_by_name("digits") is None:
        mlflow.create_experiment("digits", Path(directory, "artifacts").absolute().as_uri())
    experiment = mlflow.set_experiment("digits").experiment_id
    found = mlflow.MlflowClient().search_runs([experiment], "attributes.run_name = 'training'")
    return mlflow.start_run(run_id=found[0].info.run_id) if found else mlflow.start_run(run_name="training")


def train(directory: str, autolog: bool = False, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Trains, or resumes; returns what is printed."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(f"sqlite:///{directory}/mlflow.db")
    if autolog:
        mlflow.tensorflow.autolog(log_every_epoch=False, log_every_n_steps=NEVER, log_models=False, checkpoint=False)
    keras.utils.set_random_seed(7)
    images, labels = load_digits(return_X_y=True)
    layers = [keras.Input((64,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2)]
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    backup = kdc.BackupAndRestore(
        f"{directory}/backup", save_freq=7, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
    )
    callbacks = [*extra_callbacks, *([] if autolog else [mlflow.tensorflow.MlflowCallback(False, NEVER)])]
    options = {"batch_size": 50, "epochs": EPOCHS, "validation_split": 0.2, "verbose": 0}
    with open_run(directory) as run:
        x = (images / 16.0).astype("float32")[:ROWS]
        model.fit(x, labels[:ROWS], callbacks=[*callbacks, LogOnce(), backup], **options)
    client, run_id = mlflow.MlflowClient(), run.info.run_id
    names = ("loss", "accuracy", "val_loss", "val_accuracy")
    points = [(point.step, name, point.value) for name in names for point in client.get_metric_history(run_id, name)]
    return [f"epoch {step + 1}: {name} {value!r}" for step, name, value in sorted(points)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where MLflow's database and the backup go")
    parser.add_argument("--autolog", action="store_true", help="with mlflow.tensorflow.autolog()")
    arguments = parser.parse_args()
    print("\n".join(train(arguments.directory, arguments.autolog)))

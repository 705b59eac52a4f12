"""Searches hyperparameters with keras-tuner; killed at any instant and started again, it resumes within the trial.

    python examples/keras_tuner_search.py runs/search random
    python examples/keras_tuner_search.py runs/search hyperband

Each trial has a backup of its own, next to what keras-tuner keeps of the trial. At the end one line is printed for each
trial: its number, its hyperparameters and its score, which are the same whether the search was killed or not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import keras
import keras_tuner
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

ROWS, TRAIN_ROWS, BATCH_SIZE = 600, 480, 48


def build_model(hp: Any) -> keras.Model:
    keras.utils.set_random_seed(7)  # each trial from the same start, whichever were trained before it in this process
    units = hp.Choice("units", [8, 16, 32])
    layers = [keras.Input((64,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(0.2)]
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    rate = hp.Float("learning_rate", 1e-3, 1e-1, sampling="log")
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class _BackedUp:
    """What a tuner needs to continue within a trial: a backup in the directory of the trial."""

    def run_trial(self, trial: Any, *args: Any, callbacks: Sequence[Any] = (), **kwargs: Any) -> Any:
        place = f"{self.get_trial_dir(trial.trial_id)}/backup"
        backup = kdc.BackupAndRestore(
            place, save_freq=5, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
        )
        return super().run_trial(trial, *args, callbacks=[*callbacks, backup], **kwargs)


class RandomSearch(_BackedUp, keras_tuner.RandomSearch):
    """Trials of one length."""


class Hyperband(_BackedUp, keras_tuner.Hyperband):
    """Short trials, of which the best continue for longer."""


def make_tuner(directory: str, kind: str) -> keras_tuner.Tuner:
    options = {"objective": "val_accuracy", "seed": 3, "directory": directory, "project_name": kind}
    if kind == "random":
        return RandomSearch(build_model, max_trials=3, **options)
    return Hyperband(build_model, max_epochs=3, factor=3, **options)


def search(directory: str, kind: str, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Searches, or resumes; returns what is printed."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    train = images[:TRAIN_ROWS], labels[:TRAIN_ROWS]
    validation = images[TRAIN_ROWS:ROWS], labels[TRAIN_ROWS:ROWS]
    tuner = make_tuner(directory, kind)
    tuner.search(
        *train, validation_data=validation, epochs=3, batch_size=BATCH_SIZE, verbose=0, callbacks=list(extra_callbacks)
    )
    trials = sorted(tuner.oracle.trials.values(), key=lambda trial: trial.trial_id)
    return [f"trial {trial.trial_id}: {trial.hyperparameters.values}, score {float(trial.score)!r}" for trial in trials]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="trials and their backups")
    parser.add_argument("tuner", choices=["random", "hyperband"])
    arguments = parser.parse_args()
    print("\n".join(search(arguments.directory, arguments.tuner)))

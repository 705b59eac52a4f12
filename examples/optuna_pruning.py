"""Searches hyperparameters with Optuna, which prunes bad trials; killed and started again, it resumes within the trial.

    python examples/optuna_pruning.py runs/optuna

The study lies in a file, and each trial has a backup of its own. A trial that was interrupted is still "running" in the
study: it is closed as failed, and one with the same parameters takes over its backup and what it has reported. Optuna's
samplers do not save their random state, so each trial gets one with a seed of its own. One line is printed for each
trial that was completed or pruned.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState
from sklearn.datasets import load_digits

import keras_dist_callbacks as kdc

ROWS, TRIALS, EPOCHS = 600, 4, 4
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


class Report(keras.callbacks.Callback):
    """Reports each epoch's score to a trial, and ends it if the pruner decides so."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Reports."""
        self.trial.report(float((logs or {})["val_accuracy"]), epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


kdc.advanced.register_callback_state(Report, None)  # what it has reported is in the study


def objective(directory: str, extra_callbacks: Sequence[Any]) -> Callable[[Trial], float]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")[:ROWS]

    def score(trial: Trial) -> float:
        keras.utils.set_random_seed(7)  # each trial from the same start
        units = trial.suggest_categorical("units", [4, 8, 32])
        rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
        layers = [keras.Input((64,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(0.2)]
        model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
        place = f"{directory}/trial-{trial.user_attrs['place']}"
        backup = kdc.BackupAndRestore(
            place, save_freq=5, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
        )
        options = {"batch_size": 48, "epochs": EPOCHS, "validation_split": 0.2, "verbose": 0}
        history = model.fit(images, labels[:ROWS], callbacks=[*extra_callbacks, Report(trial), backup], **options)
        return float(history.history["val_accuracy"][-1])

    return score


def search(directory: str, extra_callbacks: Sequence[Any] = ()) -> list[str]:
    """Searches, or resumes; returns what is printed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(f"{directory}.log"))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    study = optuna.create_study(
        storage=storage, study_name="digits", load_if_exists=True, pruner=pruner, direction="maximize"
    )
    score = objective(directory, extra_callbacks)
    while (place := sum(trial.state in ENDED for trial in study.trials)) < TRIALS:
        interrupted = [trial for trial in study.trials if trial.state == TrialState.RUNNING]
        study.sampler = optuna.samplers.RandomSampler(seed=place)
        for trial in interrupted:
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)
        trial = study.ask()
        trial.set_user_attr("place", place)
        for epoch, value in interrupted[-1].intermediate_values.items() if interrupted else ():
            trial.report(value, epoch)
        try:
            study.tell(trial, score(trial))
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
    ended = [trial for trial in study.trials if trial.state in ENDED]
    return [f"{t.state.name.lower()} {t.params}: {t.intermediate_values}" for t in ended]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the trials' backups go; the study is next to it")
    print("\n".join(search(parser.parse_args().directory)))

"""scikit-learn's `cross_val_score` over a Keras model; killed and started again, it resumes within the fold.

    python examples/cross_validation.py runs/folds

Each fold has a backup of its own, in a directory that is named after the rows it is trained with: scikit-learn gives an
estimator no number of its fold. A fold that was finished trains no step again. One line is printed for each fold, with
its score.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score

import keras_dist_callbacks as kdc

ROWS, FOLDS = 600, 3


class DigitsClassifier(ClassifierMixin, BaseEstimator):
    """A Keras model as scikit-learn wants it; its callbacks are copied for each fold.

    Args:
        directory: Below it each fold has a directory.
        epochs: How long each is trained.
        callbacks: More callbacks for each fit.
    """

    def __init__(self, directory: str, epochs: int = 3, callbacks: Sequence[Any] = ()) -> None:
        self.directory, self.epochs, self.callbacks = directory, epochs, callbacks

    def fit(self, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> DigitsClassifier:
        """Trains, or resumes."""
        keras.utils.set_random_seed(7)  # each fold from the same start, whichever were trained before it
        fold = hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest()[:12]
        backup = kdc.BackupAndRestore(
            f"{self.directory}/{fold}",
            save_freq=5,
            delete_checkpoint=False,
            write_options=kdc.WriteOptions(when_busy="wait"),
        )
        self.classes_ = np.unique(labels)
        layers = [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dropout(0.2)]
        self.model_ = keras.Sequential([*layers, keras.layers.Dense(len(self.classes_), activation="softmax")])
        self.model_.compile("adam", "sparse_categorical_crossentropy")
        options = {"batch_size": 50, "epochs": self.epochs, "verbose": 0}
        self.model_.fit(images, labels, callbacks=[*self.callbacks, backup], **options)
        return self

    def predict(self, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The digits."""
        return self.classes_[self.model_.predict(images, verbose=0).argmax(axis=1)]


def scores(directory: str, extra_callbacks: Sequence[Any] = (), workers: int = 1) -> list[str]:
    """Scores each fold, or resumes; returns what is printed."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    estimator = DigitsClassifier(directory, callbacks=[kdc.PrintLR(), *extra_callbacks])
    found = cross_val_score(estimator, images[:ROWS], labels[:ROWS], cv=FOLDS, n_jobs=workers, error_score="raise")
    return [f"fold {number}: {float(score)!r}" for number, score in enumerate(found)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the folds' backups go")
    parser.add_argument("--workers", type=int, default=1, help="folds that are trained at the same time")
    arguments = parser.parse_args()
    print("\n".join(scores(arguments.directory, workers=arguments.workers)))

"""What a training with a program of others is, and the small model and data that all of them take."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

warnings.filterwarnings("ignore", message=".*shuffle=True.*")
ROWS, BATCH, EPOCHS = 480, 48, 3  # ten batches an epoch
SETTINGS: dict[str, Any] = {"epochs": EPOCHS, "verbose": 0}
REFUSED = "refused"
More = Sequence[Any]
Trained = tuple[keras.Model, Any]  # with its History


@dataclass(frozen=True)
class Program:
    """A training that uses another program.

    Attributes:
        distribution: What is to be installed.
        module: What is imported.
        answer: What a resume is called: "exact", "exact if" or "not exact"; or `REFUSED`, if it is an error.
        train: Gets a directory of its own and more callbacks.
        says: A regular expression that must be found in what is printed at the resume.
        identical: Whether the end of a killed run is that of an uninterrupted one.
        killed_behind: So many batches.
    """

    distribution: str
    module: str
    answer: str
    train: Callable[[Path, More], Trained]
    says: str = ""
    identical: bool = True
    killed_behind: int = 17  # in the second epoch, two batches after a backup


def digits(rows: int = ROWS) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    images, labels = load_digits(return_X_y=True)
    return (images / 16.0).astype("float32")[:rows], labels[:rows]


def network(rate: float = 0.01) -> keras.Model:
    """Its weights depend on every batch, on their order and on masks."""
    layers = [keras.Input((64,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def beside(*callbacks: Any, more: More) -> Trained:
    """Arrays, shuffled, with validation."""
    (x, y), model = digits(600), network()
    options = {"batch_size": BATCH, "validation_split": 0.2, **SETTINGS}
    return model, model.fit(x, y, callbacks=[*callbacks, *more], **options)


def on(data: Any, more: More, **options: Any) -> Trained:
    model = network()
    return model, model.fit(data, callbacks=[*more], **{**SETTINGS, **options})


def of_function(train: Callable[..., Trained], **options: Any) -> Callable[[Path, More], Trained]:
    return lambda place, more: train(place, more, **options)

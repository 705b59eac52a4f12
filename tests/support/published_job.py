"""Runs a script as published, with our callback added to each `fit()`.

`published_job.py SCRIPT DIRECTORY RECORD none|backup [BATCHES]`; with a number of batches it is killed by SIGKILL after
them. Data sets that Keras downloads are replaced by random ones, those of other libraries by the script that
`PUBLISHED_DATA` names; each `fit()` and `evaluate()` gets the first rows only.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="2", KERAS_BACKEND="tensorflow", MPLBACKEND="Agg")

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.testing import record_run
from tests.support import example_job
from tests.support.example_job import KillBehind

BATCHES, EPOCHS = 6, 2
_IMAGES = {
    "mnist": ((28, 28), 10),
    "fashion_mnist": ((28, 28), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
}


class NeedsDownloadError(Exception):
    """The script needs data that cannot be replaced here."""


def images(shape: tuple[int, ...], classes: int, rows: int) -> Any:
    rng = np.random.default_rng(0)

    def part(rows: int) -> tuple[Any, Any]:
        labels = np.arange(rows) % classes
        shades = (labels * 55 // classes).astype("uint8").reshape(-1, *(1 for _ in shape))
        pixels = rng.integers(0, 200, (rows, *shape), "uint8") + shades
        return pixels, labels.reshape(-1, *(1 for _ in shape[2:])).astype("uint8")

    return part(rows), part(10_000)


def reviews(num_words: int | None = None, **_: Any) -> Any:
    rng = np.random.default_rng(0)
    sequences = np.empty(2000, object)
    sequences[:] = [rng.integers(1, num_words or 1000, rng.integers(5, 60)).tolist() for _ in range(2000)]
    labels = np.array([len(sequence) % 2 for sequence in sequences])
    return (sequences[:1000], labels[:1000]), (sequences[1000:], labels[1000:])


def refuse(*_: Any, **__: Any) -> Any:
    raise NeedsDownloadError


def replace_data() -> None:
    for library in (keras, tf.keras):
        for name, (shape, classes) in _IMAGES.items():
            getattr(library.datasets, name).load_data = functools.partial(
                images, shape, classes, 50_000 if shape[2:] else 60_000
            )
        library.datasets.imdb.load_data = library.datasets.reuters.load_data = reviews
        library.utils.get_file = refuse
        library.utils.plot_model = lambda *_, **__: None
    os.system = refuse
    if more := os.environ.get("PUBLISHED_DATA"):
        runpy.run_path(more)


def first_rows(data: Any, rows: int) -> Any:
    """The first rows or batches of what `fit()` is given."""
    if isinstance(data, tf.data.Dataset):
        return data.take(BATCHES)
    if isinstance(data, dict):
        return {name: first_rows(part, rows) for name, part in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(first_rows(part, rows) for part in data)
    return data[:rows] if isinstance(data, np.ndarray | tf.Tensor) else data


class Fits:
    """Adds our callback to each `fit()`, and records its end."""

    def __init__(self, directory: Path, record: str, kind: str, kills: list[int]) -> None:
        self._directory, self._record, self._kind = directory, record, kind
        self._more = [KillBehind(batches) for batches in kills]
        self.count = 0

    def around(self, fit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fit)
        def fit_with_backups(model: Any, x: Any = None, y: Any = None, *args: Any, **options: Any) -> Any:
            number, self.count = self.count, self.count + 1
            callbacks = [*(options.pop("callbacks", None) or []), *self._more]
            if self._kind == "backup":
                at = self._directory / f"backup-{number}"
                write = kdc.WriteOptions(when_busy="wait")
                callbacks.append(kdc.BackupAndRestore(at, save_freq=2, delete_checkpoint=False, write_options=write))
            options["epochs"] = min(options.get("epochs", 1), EPOCHS) + options.get("initial_epoch", 0)
            rows = BATCHES * (args[0] if args else options.get("batch_size") or 32)
            for name in ("validation_data", "sample_weight"):
                options[name] = first_rows(options.get(name), rows)
            history = fit(model, first_rows(x, rows), first_rows(y, rows), *args, callbacks=callbacks, **options)
            record_run(f"{self._record}-{number}", model, history)
            return history

        return fit_with_backups


def of_first_rows(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(evaluate)
    def evaluate_first_rows(model: Any, x: Any = None, y: Any = None, *args: Any, **options: Any) -> Any:
        rows = BATCHES * (args[0] if args else options.get("batch_size") or 32)
        return evaluate(model, first_rows(x, rows), first_rows(y, rows), *args, **options)

    return evaluate_first_rows


def main(script: str, directory: str, record: str, kind: str, *kills: str) -> None:
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    script = str(Path(script).resolve())
    os.chdir(place)
    replace_data()
    keras.utils.set_random_seed(7)
    kdc.advanced.register_callback_state(Fits, None)
    fits = Fits(place, record, kind, [int(batches) for batches in kills])
    keras.Model.fit = fits.around(keras.Model.fit)
    keras.Model.evaluate = of_first_rows(keras.Model.evaluate)
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except NeedsDownloadError:
        print("NEEDS A DOWNLOAD", flush=True)
    except Exception as error:
        print(f"AFTER {fits.count} FITS: {type(error).__name__}: {error}", flush=True)
        raise
    finally:
        print(f"BATCHES {example_job.trained} IN {fits.count} FITS", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

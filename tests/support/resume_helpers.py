"""Interrupts a fit() again and again, and shows everything that its callbacks decided and wrote."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from keras_dist_callbacks.checkpoints.record import EXTENSIONS
from tests.support import tiny
from tests.support.callback_helpers import scalars
from tests.support.checkpoints import listed

Make = Callable[[Path], Sequence[Any]]


class StopInValidation(keras.callbacks.Callback):
    """Ends training with an exception within the validation after an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.where = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.epoch == self.where:
            raise tiny.Stop


def in_order(callbacks: Sequence[Any], order: int) -> list[Any]:
    """One of three orders of a list: as it is, backwards, every other one first."""
    return [list(callbacks), list(callbacks)[::-1], [*callbacks[1::2], *callbacks[::2]]][order % 3]


def orders(chain: int, attempts: int) -> list[int]:
    """The orders of successive attempts: each is kept once and changed once; chain 1 changes where chain 0 keeps."""
    return [attempt // 2 + chain for attempt in range(chain, chain + attempts)]


def attempts(make: Make, directory: Path, orders: Sequence[int]) -> Callable[[], list[Any]]:
    """`callbacks` of `tiny.resumes`: for each attempt in its order, and then for a run that is not interrupted.

    They write to `directory / "resumed"` and to `directory / "uninterrupted"`.
    """
    made: list[Any] = []
    left = iter([*(("resumed", order) for order in orders), ("uninterrupted", orders[-1])])

    def callbacks() -> list[Any]:
        close_files(made)
        name, order = next(left)
        made[:] = in_order(make(directory / name), order)
        return list(made)

    return callbacks


def close_files(callbacks: Sequence[Any]) -> None:
    """What the end of a killed process does to the files that Keras leaves open."""
    for callback in callbacks:
        file = getattr(getattr(callback, "callback", callback), "csv_file", None)
        if file is not None:
            file.close()


def saved_models(directory: Path) -> dict[str, str]:
    """Each checkpoint's name, and a digest of the values in it."""
    found = {}
    for path in sorted([*directory.rglob("*.weights.h5"), *directory.rglob("*.keras")]):
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as file:
                config = re.sub(r'"shared_object_id": \d+', "", archive.read("config.json").decode())
                digest = _digest(file) + config
        else:
            with path.open("rb") as file:
                digest = _digest(file)
        found[str(path.relative_to(directory))] = digest
    return found


def _digest(file: Any) -> str:
    values: dict[str, str] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            values[name] = hashlib.sha256(np.asarray(item).tobytes()).hexdigest()

    with h5py.File(file, "r") as content:
        content.visititems(add)
    return json.dumps(values, sort_keys=True)


def records(directory: Path) -> dict[str, Any]:
    """What the records of our checkpoints say about training; not in which attempt they were written."""
    kept = ("epoch", "step", "monitor", "value", "best_only", "template")
    found = {}
    for place in {path.parent for extension in EXTENSIONS for path in directory.rglob(f"*{extension}")}:
        for checkpoint in listed(place).checkpoints:
            path = str((place / checkpoint.name).relative_to(directory))
            found[path] = [getattr(checkpoint.record, name) for name in kept]
    return found


def events(directory: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Value by step of each scalar in TensorBoard's files; one that was logged twice must be the same twice.

    But for what backups and restarts cost.
    """
    found: dict[tuple[str, str], dict[int, float]] = {}
    for run in sorted({path.parent for path in directory.rglob("events.out.*")}):
        for tag, values in scalars(run).items():
            if tag.startswith(("goodput/", "badput/", "backup/")):
                continue
            series = found.setdefault((str(run.relative_to(directory)), tag), {})
            for step, value in values:
                assert series.setdefault(step, value) == value, f"{run} {tag}: step {step} has two values"
    return {name: dict(sorted(series.items())) for name, series in found.items()}


def rows(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*.csv"))}


def assert_same_files(directory: Path, reference: Path) -> None:
    """Checkpoints, their records, CSV files and TensorBoard events."""
    assert rows(directory) == rows(reference)
    assert saved_models(directory) == saved_models(reference)
    assert records(directory) == records(reference)
    assert events(directory) == events(reference)

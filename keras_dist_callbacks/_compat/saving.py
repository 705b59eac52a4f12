"""Keras' ModelCheckpoint with the writing taken out.

When to save, under which name and whether a value is the best so far is decided by Keras' own code, so that
every argument keeps Keras' meaning; only what happens then is replaced. Keras has no public seam there.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_dist_callbacks._compat.incompatible import incompatible
from keras_dist_callbacks.terminal import say, warn

_METHODS = {
    "_save_model": ("self", "epoch", "batch", "logs"),
    "_get_file_path": ("self", "epoch", "batch", "logs"),
}
_DECISION = ("self", "epoch", "batch", "logs", "filepath")  # of `_should_save_model`, which Keras 3.8 has not
_COUNTERS = ("_batches_seen_since_last_saving", "_last_batch_seen")


class ModelCheckpointPolicy(keras.callbacks.ModelCheckpoint):
    """Calls `write` where Keras' ModelCheckpoint would write a file.

    Attributes:
        reports: Whether this worker prints or logs what it decides.

    Raises:
        CompatError: This Keras' ModelCheckpoint differs from the known ones.
    """

    best: Any
    verbose: int
    reports = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _check()
        super().__init__(*args, **kwargs)
        if not all(hasattr(self, name) for name in _COUNTERS):
            raise incompatible(f"ModelCheckpoint has no {' or no '.join(_COUNTERS)}")

    def write(self, filepath: str, epoch: int, batch: int | None, logs: dict[str, Any]) -> None:
        """Called when a file is due.

        Args:
            filepath: The formatted path.
            epoch: Index of the running epoch.
            batch: Index of the batch that just ended; None at an epoch's end.
            logs: What Keras reports.
        """
        raise NotImplementedError

    @property
    def counters(self) -> list[int | None]:
        """Batches since the last save, and the last batch index seen."""
        return [getattr(self, name) for name in _COUNTERS]

    @counters.setter
    def counters(self, values: list[int | None]) -> None:
        for name, value in zip(_COUNTERS, values, strict=True):
            setattr(self, name, value)

    def _save_model(self, epoch: int, batch: int | None, logs: dict[str, Any] | None) -> None:
        logs = logs or {}
        filepath, before = self._get_file_path(epoch, batch, logs), self.best
        if hasattr(self, "_should_save_model"):
            if self.save_best_only and self.monitor_op is None:
                self._set_monitor_op()  # Keras does so at an epoch's end only, and fails on earlier saves
            with self._silently():
                due = self._should_save_model(epoch, batch, logs, filepath)
        else:
            due = self._is_due(logs)
        if self.reports and (due or logs.get(self.monitor) is not None):
            self._say_decision(epoch, filepath, before, due=due)
        if due:
            self.write(filepath, epoch, batch, logs)

    @contextlib.contextmanager
    def _silently(self) -> Iterator[None]:
        """Keras' own line would end training where stdout is broken."""
        verbose, self.verbose = self.verbose, 0
        try:
            yield
        finally:
            self.verbose = verbose

    def _say_decision(self, epoch: int, filepath: str, before: Any, *, due: bool) -> None:
        """The line that Keras prints."""
        saving = f"saving model to {filepath}"
        if not due:
            what = f"{self.monitor} did not improve from {_number(before)}"
        elif self.best is not before:
            what = f"{self.monitor} improved from {_number(before)} to {_number(self.best)}, {saving}"
        else:
            what = saving
        say(f"Epoch {epoch + 1}: {what}", verbose=self.verbose, after_bar=True)

    def _is_due(self, logs: dict[str, Any]) -> bool:
        """Returns the decision that Keras 3.8 takes in the middle of its `_save_model`."""
        current = logs.get(self.monitor) if self.save_best_only else None
        if self.save_best_only and current is None:
            warn(f"Can save best model only with {self.monitor} available, skipping.", UserWarning)
            return False
        improved = current is None or np.ndim(current) > 0 or bool(self.monitor_op(current, self.best))
        if improved and current is not None and np.ndim(current) == 0:
            self.best = current
        return improved


def _number(value: Any) -> str:
    return "None" if value is None else f"{value:.5f}"


def _check() -> None:
    base = keras.callbacks.ModelCheckpoint
    wanted = {**_METHODS, "_should_save_model": _DECISION} if hasattr(base, "_should_save_model") else _METHODS
    for name, parameters in wanted.items():
        method = getattr(base, name, None)
        if method is None or tuple(inspect.signature(method).parameters) != parameters:
            raise incompatible(f"ModelCheckpoint has no {name}({', '.join(parameters)})")

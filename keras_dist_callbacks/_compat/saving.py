"""Keras' ModelCheckpoint with the writing taken out.

When to save, under which name and which of two values is better is decided by Keras' own code, so that every argument
keeps Keras' meaning; what happens then is replaced. Keras has no public seam there. Whether there is a value to compare
is decided here: versions of Keras differ, and some replace the best file by a model that was never compared.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal

import keras
import numpy as np

from keras_dist_callbacks._compat.incompatible import incompatible
from keras_dist_callbacks.base.terminal import say, warn

_SAVE_WHERE = "save where it is reported, as with save_freq='epoch' and validation_freq=1"
_COUNTERS = ("_batches_seen_since_last_saving", "_last_batch_seen")


class ModelCheckpointPolicy(keras.callbacks.ModelCheckpoint):
    """Calls `_write` where Keras' ModelCheckpoint would write a file.

    Attributes:
        start_from_epoch: Epochs at whose ends, and in which, nothing is saved yet.

    Raises:
        CompatError: This Keras' ModelCheckpoint differs from the known ones.
    """

    best: Any
    verbose: int
    start_from_epoch = 0
    _threshold: float | None  # what `best` is before the first value
    _reports = True  # whether this worker prints or logs what it decides
    _needs_value = False  # whether nothing is saved without a value of the monitored quantity
    _warns = True  # that there is no value to compare: once in a fit()

    def __init__(self, *args: Any, initial_value_threshold: float | None, **kwargs: Any) -> None:
        parameters = ("self", "epoch", "batch", "logs")
        for name in ("_save_model", "_get_file_path"):
            method = getattr(keras.callbacks.ModelCheckpoint, name, None)
            if method is None or tuple(inspect.signature(method).parameters) != parameters:
                raise incompatible(f"ModelCheckpoint has no {name}({', '.join(parameters)})")
        super().__init__(*args, initial_value_threshold=initial_value_threshold, **kwargs)
        self._needs_value = self.save_best_only
        self.best = self._threshold = initial_value_threshold  # Keras 3.8 begins with an infinity instead of None
        if not all(hasattr(self, name) for name in _COUNTERS):
            raise incompatible(f"ModelCheckpoint has no {' or no '.join(_COUNTERS)}")

    def _wants(self, filepath: str, epoch: int, batch: int | None, logs: dict[str, Any]) -> bool:
        """Called when Keras would write a file: whether it is to be written. The arguments are those of `_write`."""
        raise NotImplementedError

    def _write(self, filepath: str, epoch: int, batch: int | None, logs: dict[str, Any]) -> None:
        """Called when a file is due.

        Args:
            filepath: The formatted path.
            epoch: Index of the running epoch.
            batch: Index of the batch that just ended; None at an epoch's end.
            logs: What Keras reports.
        """
        raise NotImplementedError

    def _why_unnamed(self, epoch: int, logs: dict[str, Any]) -> str | None:
        """Called before the name of a file is made.

        Args:
            epoch: Index of the running epoch.
            logs: What Keras reports.

        Returns:
            Why no name can be made now, but later; None if it can.
        """
        return None

    @property
    def _better(self) -> Literal["min", "max"]:
        """Which values of the monitored quantity are better; with `mode="auto"` the compiled metrics say it.

        Raises:
            ValueError: They do not.
        """
        if self.monitor_op is None:
            self._set_monitor_op()  # Keras does so at an epoch's end only, and fails on earlier saves
        return "min" if bool(self.monitor_op(0.0, 1.0)) else "max"

    @property
    def _counters(self) -> list[int | None]:
        """Batches since the last save, and the last batch index seen."""
        return [getattr(self, name) for name in _COUNTERS]

    @_counters.setter
    def _counters(self, values: list[int | None]) -> None:
        for name, value in zip(_COUNTERS, values, strict=True):
            setattr(self, name, value)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """A fit() begins."""
        super().on_train_begin(logs)
        self._warns = True

    def _save_model(self, epoch: int, batch: int | None, logs: dict[str, Any] | None) -> None:
        if epoch < self.start_from_epoch:
            return
        logs, before = logs or {}, self.best
        reason = self._why_no_value(logs) if self._needs_value else None
        if reason is not None:
            self._report_nothing(epoch, batch, reason)
            return
        improves = not self.save_best_only or self._improves(logs[self.monitor])
        unnamed = self._why_unnamed(epoch, logs) if improves else None
        if unnamed is not None:
            self.best = before
            self._report_nothing(epoch, batch, unnamed)
            return
        filepath = self._get_file_path(epoch, batch, logs) if improves else ""
        due = improves and self._wants(filepath, epoch, batch, logs)
        if self._reports and (due or self.monitor in logs):
            self._say_decision(epoch, filepath, before, improves=improves, due=due)
        if due:
            self._write(filepath, epoch, batch, logs)
        else:
            self.best = before  # no file is as good as that

    def _why_no_value(self, logs: dict[str, Any]) -> str | None:
        """Returns why no model is the best by these logs; None if they hold a value to compare."""
        value = logs.get(self.monitor)
        if value is None:
            return f"{not_reported(self.monitor, logs)}. Monitor what is there, or {_SAVE_WHERE}"
        if np.ndim(value):
            return f"{self.monitor} is an array of the shape {tuple(np.shape(value))} instead of a number"
        if math.isnan(value) and (self.best is None or not self.save_best_only):  # as the best it would stay for ever
            return f"{self.monitor} is nan"
        return None

    def _report_nothing(self, epoch: int, batch: int | None, reason: str) -> None:
        where = f"epoch {epoch + 1}" if batch is None else f"batch {batch + 1} of epoch {epoch + 1}"
        text = f"ModelCheckpoint saves nothing at {where}, because {reason}"
        if self._reports and self._warns:
            warn(text, UserWarning)
        elif self._reports:
            say(text, verbose=self.verbose, after_bar=True)
        self._warns = False

    def _improves(self, value: Any) -> bool:
        """Returns whether a value is the best so far, and keeps it if it is."""
        smaller, larger = (value, self.best) if self._better == "min" else (self.best, value)
        improves = self.best is None or bool(smaller < larger)
        if improves:
            self.best = value
        return improves

    def _say_decision(self, epoch: int, filepath: str, before: Any, *, improves: bool, due: bool) -> None:
        """The line that Keras prints, or that no rule would keep the file."""
        saving = f"saving model to {filepath}" if due else f"{filepath} is not saved, because no rule would keep it"
        if not improves:
            what = f"{self.monitor} did not improve from {_number(before)}"
        elif self.best is not before:
            what = f"{self.monitor} improved from {_number(before)} to {_number(self.best)}, {saving}"
        else:
            what = saving
        say(f"Epoch {epoch + 1}: {what}", verbose=self.verbose, after_bar=True)


def not_reported(name: str, logs: dict[str, Any]) -> str:
    """Returns that a name is missing, and which there are."""
    return f"{name} is not in the logs ({', '.join(logs) or 'which are empty'})"


def _number(value: Any) -> str:
    return "None" if value is None else f"{value:.5f}"

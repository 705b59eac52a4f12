"""Keras' ModelCheckpoint with the writing taken out.

When to save, under which name and whether a value is the best so far is decided by Keras' own code, so that
every argument keeps Keras' meaning; only what happens then is replaced. Keras has no public seam there.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras

from keras_dist_callbacks.errors import CompatError

_METHODS = {
    "_save_model": ("self", "epoch", "batch", "logs"),
    "_should_save_model": ("self", "epoch", "batch", "logs", "filepath"),
    "_get_file_path": ("self", "epoch", "batch", "logs"),
}
_COUNTERS = ("_batches_seen_since_last_saving", "_last_batch_seen")


class DecidingModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Calls `write` where Keras' ModelCheckpoint would write a file.

    Raises:
        CompatError: This Keras' ModelCheckpoint differs from the known ones.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _check()
        super().__init__(*args, **kwargs)
        if not all(hasattr(self, name) for name in _COUNTERS):
            raise _incompatible(f"has no {' or no '.join(_COUNTERS)}")

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
        if self.save_best_only and self.monitor_op is None:
            self._set_monitor_op()  # Keras does so at an epoch's end only, and fails on earlier saves
        filepath = self._get_file_path(epoch, batch, logs)
        if self._should_save_model(epoch, batch, logs, filepath):
            self.write(filepath, epoch, batch, logs)


def _check() -> None:
    for name, parameters in _METHODS.items():
        method = getattr(keras.callbacks.ModelCheckpoint, name, None)
        if method is None or tuple(inspect.signature(method).parameters) != parameters:
            raise _incompatible(f"has no {name}({', '.join(parameters)})")


def _incompatible(what: str) -> CompatError:
    return CompatError(
        f"Keras {keras.__version__}: ModelCheckpoint {what}; install a Keras that the README lists, or a newer "
        "keras-dist-callbacks"
    )

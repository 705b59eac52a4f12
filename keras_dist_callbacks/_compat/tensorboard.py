"""Keras' TensorBoard with its private step counters and writers in reach."""

from __future__ import annotations

from typing import Any

import keras

from keras_dist_callbacks.errors import CompatError

_COUNTERS = ("_global_train_batch", "_global_test_batch")
_NEEDED = (*_COUNTERS, "_writers")


class OpenTensorBoard(keras.callbacks.TensorBoard):
    """Keras' TensorBoard, which can be flushed and whose counters can be saved.

    Raises:
        CompatError: This Keras' TensorBoard differs from the known ones.
    """

    _writers: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not all(hasattr(self, name) for name in _NEEDED) or not hasattr(type(self), "_train_writer"):
            raise CompatError(
                f"Keras {keras.__version__}: TensorBoard has no {', '.join((*_NEEDED, '_train_writer'))}; install a "
                "Keras that the README lists, or a newer keras-dist-callbacks"
            )

    @property
    def counters(self) -> list[int]:
        """Training and test batches seen, which are the steps of batch-level summaries."""
        return [getattr(self, name) for name in _COUNTERS]

    @counters.setter
    def counters(self, values: list[int]) -> None:
        for name, value in zip(_COUNTERS, values, strict=True):
            setattr(self, name, value)

    def flush(self) -> None:
        """Writes what TensorFlow holds in memory to the event files."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Closes the event files; TensorFlow would make a deleted one anew when it lets go of it."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

    def scalar(self, name: str, value: float, step: int) -> None:
        """Adds a value to the training run, whatever `update_freq` is."""
        with self._train_writer.as_default(), self.summary.record_if(True):
            self.summary.scalar(name, value, step=step)

"""Keras' TensorBoard with its private step counters and writers in reach."""

from __future__ import annotations

import importlib
import time
from typing import Any

import keras

from keras_dist_callbacks._compat.incompatible import incompatible
from keras_dist_callbacks.base.errors import ConfigError

_COUNTERS = ("_global_train_batch", "_global_test_batch")
_NEEDED = (*_COUNTERS, "_writers")
_OPENED = ("_train_writer", "_val_writer")


def require_package() -> None:
    """Imports what `tf.summary` imports when the first value is written, which is after a trained step.

    Raises:
        ConfigError: The package tensorboard is missing or does not load.
    """
    try:
        importlib.import_module("tensorboard.plugins.scalar.summary_v2")
    except ImportError as error:
        raise ConfigError(
            "kdc.TensorBoard needs the package tensorboard, which TensorFlow does not install since version 2.21 "
            f'({error}): pip install "keras-dist-callbacks[tensorboard]"'
        ) from error


def flush(board: Any) -> None:
    """Writes what TensorFlow holds in memory for a TensorBoard callback to its event files."""
    for writer in board._writers.values():
        writer.flush()


def create_files(board: Any, *, of_validation: bool) -> None:
    """Creates the files that Keras creates with their first values: of training and, if asked, of validation."""
    for name in _OPENED[: 1 + of_validation]:
        getattr(board, name)


def get_counters(board: Any) -> dict[str, Any]:
    """Returns what a backup keeps of Keras' TensorBoard; the events up to here are written out first."""
    flush(board)
    return {"counters": [getattr(board, name) for name in _COUNTERS]}


def set_counters(board: Any, state: dict[str, Any]) -> None:
    """Continues at the steps that `get_counters` returned, after `on_train_begin` or `on_epoch_begin`."""
    for name, value in zip(_COUNTERS, state["counters"], strict=True):
        setattr(board, name, value)
    if board._prev_summary_state and pushes_each_step():  # the default step, for summaries of the user's own
        board._pop_writer()
        board._push_writer(board._train_writer, board._global_train_batch)
    if board.write_steps_per_second:  # of what this process trains, not of what it found
        board._previous_epoch_iterations = float(board.model.optimizer.iterations.numpy())
        board._epoch_start_time = time.time()


def pushes_each_step() -> bool:
    """Whether TensorBoard sets its writer and default step at each step; Keras 3.8 does so at the start of fit() only.

    There a writer that was set at another step would record nothing, unless `update_freq` divides that step.
    """
    return "_push_writer" in keras.callbacks.TensorBoard.on_train_batch_begin.__code__.co_names


class TensorBoardWithState(keras.callbacks.TensorBoard):
    """Keras' TensorBoard, which can be flushed.

    Raises:
        CompatError: This Keras' TensorBoard differs from the known ones.
        ConfigError: The package tensorboard is missing.
    """

    _writers: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_package()
        super().__init__(*args, **kwargs)
        if not all(hasattr(self, name) for name in _NEEDED) or not all(hasattr(type(self), name) for name in _OPENED):
            raise incompatible(f"TensorBoard has no {', '.join((*_NEEDED, *_OPENED))}")

    def flush(self) -> None:
        """Writes what TensorFlow holds in memory to the event files."""
        flush(self)

    def close(self) -> None:
        """Closes the event files; TensorFlow would create a deleted one again when it closes it."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

    def scalar(self, name: str, value: float, step: int) -> None:
        """Adds a value to the training run, whatever `update_freq` is."""
        with self._train_writer.as_default(), self.summary.record_if(True):
            self.summary.scalar(name, value, step=step)

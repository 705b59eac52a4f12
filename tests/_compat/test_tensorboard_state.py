"""TensorBoard's writer after a resume, as Keras itself would have set it."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import pytest

from keras_dist_callbacks._compat import tensorboard_state


class Board(SimpleNamespace):
    """What `set_counters` needs of TensorBoard."""

    def __init__(self) -> None:
        super().__init__(
            _prev_summary_state=["default"], _train_writer="train", write_steps_per_second=False, pushed=[]
        )

    def _pop_writer(self) -> None:
        self.pushed.append("pop")

    def _push_writer(self, writer: str, step: int) -> None:
        self.pushed.append((writer, step))


def test_a_resume_sets_the_writer_to_its_step() -> None:
    board = Board()
    tensorboard_state.set_counters(board, {"counters": [7, 2]})
    assert board.pushed == (["pop", ("train", 7)] if tensorboard_state.pushes_each_step() else [])
    assert (board._global_train_batch, board._global_test_batch) == (7, 2)


def test_a_resume_leaves_the_writer_alone_where_keras_sets_it_once_at_the_start_of_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keras.callbacks.TensorBoard, "on_train_batch_begin", lambda self, batch, logs=None: None)
    board = Board()
    tensorboard_state.set_counters(board, {"counters": [7, 2]})
    assert board.pushed == []
    assert board._global_train_batch == 7

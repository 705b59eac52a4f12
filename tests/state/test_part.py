"""The parts of a training's state: each has its place in the format, and all check before one assigns."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_dist_callbacks.backups.manifest import PARTS
from keras_dist_callbacks.backups.snapshot import Piece, Position, Snapshot, WorkerState
from keras_dist_callbacks.base.errors import BackupMismatchError
from keras_dist_callbacks.state.fit_parts import FitParts
from keras_dist_callbacks.state.part import Part
from tests.support import tiny


def test_the_format_knows_each_part_of_a_fit_and_no_other_but_those_of_a_loop_and_of_the_engine() -> None:
    names = [part.name for part in map(_class_of, dataclasses.fields(FitParts))]
    assert len(set(names)) == len(names)
    assert {*names, "loop", "earlier", "engine"} == set(PARTS)


def _class_of(field: dataclasses.Field[object]) -> type[Part]:
    known = {cls.__name__: cls for cls in _below(Part)}
    return known[str(field.type)]


def _below(cls: type[Part]) -> list[type[Part]]:
    return [cls, *(sub for base in cls.__subclasses__() for sub in _below(base))]


def test_a_part_is_given_its_own_piece_alone_without_the_names_of_others() -> None:
    place = Position("within", 0, 3, 3)
    pieces = {"random": Piece({"now": 1}), "random_at_epoch": Piece({"entered": 2}), "unsaved": Piece()}
    snapshot = Snapshot.of(place, pieces)
    tensors = {"variables/a/b@0": np.ones(2), "step/0": np.zeros(1)}
    read = WorkerState(place, tensors, snapshot.state, {}, ({"step/0": np.ones(1)},))
    assert read.of("random").mine.state == {"now": 1}
    assert list(read.of("variables").mine.tensors) == ["a/b@0"]
    assert list(read.of("step").others[0]) == ["0"]
    assert [read.has(part) for part in ("unsaved", "loop")] == [True, False]


class Counting(keras.utils.PyDataset):
    """Four batches; counts the epochs whose end it has heard of."""

    ended = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return np.full((2, 6), index, "float32"), np.zeros((2, 1), "float32")

    def on_epoch_end(self) -> None:
        self.ended += 1


@pytest.mark.slow
def test_a_backup_of_another_model_is_refused_before_past_epochs_are_replayed(tmp_path: Path) -> None:
    tiny.interrupt(tmp_path, 2, 1, x=Counting())
    other = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    other.compile("sgd", "mse")
    weights, data = other.get_weights(), Counting()
    with pytest.raises(BackupMismatchError, match="does not match the backup"):
        tiny.fit(other, tmp_path, x=data)
    assert data.ended == 1  # Keras itself says so before training begins
    tiny.assert_same(other.get_weights(), weights)

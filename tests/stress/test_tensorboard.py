"""What TensorBoard shows of killed trainings, with each of its loaders, open before the kills and after them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from benchmarks.tensorboard import KILLS, LOADERS, Board, accumulated, folds, train, twice
from benchmarks.tensorboard_job import EPOCHS, STEPS

pytestmark = [pytest.mark.chaos, pytest.mark.kill, pytest.mark.process, pytest.mark.timeout(900)]
EVERY = list(range(1, EPOCHS * STEPS + 1))
LOSS = "logs/train", "batch_loss"


def killed(kind: str, directory: Path) -> None:
    assert [train(kind, directory, kill) for kill in (*KILLS, 0)] == [-9] * len(KILLS) + [0]


def test_no_step_of_ours_is_shown_twice(tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:
        open_before = {loader: opened.enter_context(Board(tmp_path, loader)) for loader in LOADERS}
        for kill in (*KILLS, 0):
            assert train("kdc", tmp_path, kill) == (-9 if kill else 0)
            shown = {loader: board.settled(*LOSS) for loader, board in open_before.items()}
        assert shown["data server"] == EVERY
        assert sorted({*shown["Python loader"]}) == EVERY
        assert folds(shown["Python loader"]) == len(KILLS), "what it has read before stays until it is started again"
        open_after = {loader: opened.enter_context(Board(tmp_path, loader)) for loader in LOADERS}
        assert [board.settled(*LOSS) for board in open_after.values()] == [EVERY, EVERY]
    assert accumulated(tmp_path / LOSS[0], LOSS[1]) == EVERY


def test_keras_own_curves_go_back_or_lack_steps(tmp_path: Path) -> None:
    killed("keras", tmp_path)
    with contextlib.ExitStack() as opened:
        shown = {loader: opened.enter_context(Board(tmp_path, loader)).settled(*LOSS) for loader in LOADERS}
    assert twice(shown["Python loader"]) > 0
    assert folds(shown["Python loader"]) == len(KILLS)
    assert len(shown["data server"]) < len(EVERY)


def test_steps_of_a_process_that_was_killed_before_its_first_backup_are_in_two_files(tmp_path: Path) -> None:
    assert [train("kdc", tmp_path, kill) for kill in (15, 0)] == [-9, 0]
    with contextlib.ExitStack() as opened:
        shown = {loader: opened.enter_context(Board(tmp_path, loader)).settled(*LOSS) for loader in LOADERS}
    assert shown["data server"] == EVERY
    assert folds(shown["Python loader"]) == 1

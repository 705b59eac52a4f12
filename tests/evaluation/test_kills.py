"""A training and its evaluator as processes of their own, each of them killed and started again."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import keras
import pytest

from keras_dist_callbacks.testing import LocalCluster, run_until_done
from tests.support import tiny
from tests.support.callback_helpers import ignore_keras_warnings, scalars
from tests.support.checkpoints import listed
from tests.support.evaluator_job import EPOCHS
from tests.support.processes import worker_processes
from tests.support.tf_config import WORKERS, config

pytestmark = [pytest.mark.kill, pytest.mark.slow, ignore_keras_warnings]

STEPS = [tiny.STEPS * epoch for epoch in range(1, EPOCHS + 1)]
PATIENCE = 240.0


def process(directory: Path, task: str, *arguments: str) -> LocalCluster:
    command = [sys.executable, "-m", "tests.support.evaluator_job", task, str(directory), *arguments]
    return worker_processes(command, 1, directory.parent / f"logs-{task}")


def evaluated(directory: Path) -> list[int]:
    """The steps that the processes of the evaluator have reported a result of."""
    logs = sorted((directory.parent / "logs-evaluate").iterdir())
    return [
        int(step) for path in logs for step in re.findall(r"evaluated \S+ \(epoch \d+, step (\d+)\)", path.read_text())
    ]


def logged(directory: Path) -> dict[str, list[tuple[int, float]]]:
    return scalars(directory / "tb" / "evaluator")


def test_a_killed_training_and_a_killed_evaluator_leave_each_result_once(tmp_path: Path) -> None:
    """One file is kept; the training is killed between epochs and after a save, the evaluator in the midst of both."""
    directory = tmp_path / "run"
    kept = ["--max-to-keep", "1", "--in-step"]
    with process(directory, "train", *kept) as training, process(directory, "evaluate") as evaluator:
        training.start(["--kill", "epoch=2,phase=epoch_begin"])
        evaluator.start(["--kill", "evaluation:1"])
        assert evaluator.wait(PATIENCE) == [-9]
        evaluator.start(["--kill", "_put_events:3"])  # the first is at its start
        assert training.wait(PATIENCE) == [-9], training.tails()
        assert evaluator.wait(PATIENCE) == [-9]
        evaluator.start()
        training.start(["--kill", "epoch=2,phase=epoch_end"])  # after a save that it repeats
        assert training.wait(PATIENCE) == [-9], training.tails()
        training.start()
        assert training.wait(PATIENCE) == [0], training.tails()
        assert evaluator.wait(PATIENCE) == [0], evaluator.tails()
        assert "epoch 3, batch 4 (step 14)" in training.log(0, 2), "it should save the end of epoch 3 again"
    found = logged(directory)
    assert [step for step, _ in found["evaluation_loss_vs_iterations"]] == STEPS
    assert [step for step, _ in found["evaluation_accuracy_vs_iterations"]] == STEPS
    told = evaluated(directory)
    assert len(told) == len(set(told)), "a result was told twice"
    model = keras.models.load_model(directory / "ckpt" / f"{EPOCHS}.keras")
    last = model.evaluate(*tiny.data(), verbose=0, return_dict=True)
    assert found["evaluation_loss_vs_iterations"][-1][1] == pytest.approx(last["loss"])


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("name", ["{epoch}.weights.h5", "latest.weights.h5", "latest.keras"])
def test_every_checkpoint_that_lives_long_enough_is_evaluated(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "run"
    kept = ["--name", name, "--in-step", *(["--max-to-keep", "1"] if "{" in name else [])]
    with process(directory, "train", *kept) as training, process(directory, "evaluate") as evaluator:
        evaluator.start()  # before the training: there is no directory yet
        training.start()
        assert training.wait(PATIENCE) == [0], training.tails()
        assert evaluator.wait(PATIENCE) == [0], evaluator.tails()
    assert [step for step, _ in logged(directory)["evaluation_loss_vs_iterations"]] == STEPS
    assert evaluated(directory) == STEPS


def test_a_training_that_waits_for_no_one_has_its_last_checkpoint_evaluated(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with process(directory, "train", "--max-to-keep", "1") as training, process(directory, "evaluate") as evaluator:
        evaluator.start(env={"TF_CONFIG": json.dumps(config(WORKERS, "evaluator"))})  # joins no worker
        training.start()
        assert training.wait(PATIENCE) == [0], training.tails()
        assert evaluator.wait(PATIENCE) == [0], evaluator.tails()
    steps = [step for step, _ in logged(directory)["evaluation_loss_vs_iterations"]]
    assert [step for step, _ in scalars(directory / "board/validation")["evaluation_loss_vs_iterations"]] == steps
    assert steps[-1] == STEPS[-1]
    assert len(steps) == len(set(steps))
    assert "Traceback" not in evaluator.log(0)


def test_an_evaluator_that_is_killed_everywhere_ends_with_each_result_once(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with process(directory, "train") as training:
        training.start()
        assert training.wait(PATIENCE) == [0], training.tails()
    kills = ["evaluation:2", "_put_record:1", "_put_events:2", "publish:1"]
    with process(directory, "evaluate") as evaluator:
        attempts = run_until_done(evaluator, len(kills), PATIENCE, extra_args=[["--kill", kill] for kill in kills])
    assert [attempt.returncodes[0] for attempt in attempts] == [-9, -9, -9, -9, 0]
    found = logged(directory)["evaluation_loss_vs_iterations"]
    assert [step for step, _ in found] == STEPS
    told = evaluated(directory)
    assert len(told) == len(set(told))
    (best,) = listed(directory / "export").checkpoints
    assert best.record.value == pytest.approx(min(value for _, value in found))


def test_an_evaluator_of_backups_ends_when_the_training_deletes_them(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with (
        process(directory, "train", "--wait") as training,
        process(directory, "evaluate", "--of", "backup") as evaluator,
    ):
        evaluator.start()
        training.start()
        assert training.wait(PATIENCE) == [0], training.tails()
        assert evaluator.wait(PATIENCE) == [0], evaluator.tails()
    steps = [step for step, _ in logged(directory)["evaluation_loss_vs_iterations"]]
    assert steps == sorted(set(steps)) != []
    assert list((directory / "backup").iterdir()) == [directory / "backup/journals"]


def test_an_evaluator_that_is_early_for_a_second_run_is_not_ended_by_the_first(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with process(directory, "train") as training, process(directory, "evaluate") as evaluator:
        training.start(["--epochs", "1"])
        assert training.wait(PATIENCE) == [0], training.tails()
        evaluator.start()
        assert evaluator.wait(PATIENCE) == [0], evaluator.tails()
        evaluator.start(["--rerun-seconds", str(PATIENCE)])
        deadline = time.monotonic() + PATIENCE
        while "waiting for a new run to start" not in evaluator.log(0):
            assert time.monotonic() < deadline, evaluator.tails()
            time.sleep(0.05)
        training.start(["--epochs", "2"])
        assert training.wait(PATIENCE) == [0], training.tails()
        assert evaluator.wait(PATIENCE) == [0], evaluator.tails()
    assert [step for step, _ in logged(directory)["evaluation_loss_vs_iterations"]] == STEPS[:2]
    assert evaluated(directory) == STEPS[:2]  # the first epoch's model is the same one

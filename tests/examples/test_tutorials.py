"""The tutorials' programs: killed and started again, each prints what its docstring says, and ends as it promises."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.testing import run_until_done
from tests.support import ROOT
from tests.support.callback_helpers import scalars
from tests.support.docstrings import assert_said
from tests.support.processes import worker_processes

pytestmark = [pytest.mark.kill, pytest.mark.slow]

# Of a shuffle with a seed under a strategy, nothing else is left open.
ONLY_READS = (
    r"Resumed from .*: exact if the training data were read before fit\(\) as often as in the interrupted run, which "
    r"was not compared \(under a strategy, iterators do not show their seeds\)$"
)


def run(place: Path, name: str, kills: Sequence[str] = (), workers: int = 1) -> tuple[list[str], str, list[list[int]]]:
    """What each worker printed at the end, what they said on their way, and how each attempt ended."""
    result = place / "result.txt"
    command = [sys.executable, "-m", "tests.support.example_job", name, str(place), str(result)]
    with worker_processes(command, workers, place / "said") as cluster:
        attempts = run_until_done(cluster, len(kills), 250.0, extra_args=[[kill] for kill in kills])
    said = "\n".join(path.read_text() for path in sorted((place / "said").iterdir()))
    codes = [list(attempt.returncodes) for attempt in attempts]
    assert codes[-1] == [0] * workers, said
    results = [result, *(Path(f"{result}.{worker}") for worker in range(1, workers))]
    return [path.read_text() for path in results], said, codes


def assert_same_end(one: Path, other: Path) -> None:
    """Weights, optimizer and metrics, bit by bit."""
    found, wanted = (kdc.load_backup(place / "backup") for place in (one, other))
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted[name], name)


@pytest.mark.chaos
def test_the_mirrored_tutorial_killed_twice_ends_as_it_would_have(tmp_path: Path) -> None:
    (wanted,), _, _ = run(tmp_path / "uninterrupted", "mirrored")
    (found,), said, codes = run(tmp_path / "killed", "mirrored", ["30", "35"])
    assert codes == [[-9], [-9], [0]]
    assert len(re.findall(ONLY_READS, said, re.MULTILINE)) == 2, said
    assert found == wanted
    assert_said("mirrored_keras", found)
    assert_same_end(tmp_path / "killed", tmp_path / "uninterrupted")


@pytest.mark.chaos
def test_the_multi_worker_tutorial_continues_whichever_worker_is_killed(tmp_path: Path) -> None:
    wanted, _, _ = run(tmp_path / "uninterrupted", "multi-worker", workers=2)
    found, said, codes = run(tmp_path / "killed", "multi-worker", ["0:30", "1:15"], workers=2)
    assert codes == [[-9, 138], [138, -9], [0, 0]]
    assert len(re.findall(ONLY_READS, said, re.MULTILINE)) >= 2, said
    assert found == wanted
    assert_said("multi_worker", found[0])
    assert_same_end(tmp_path / "killed", tmp_path / "uninterrupted")
    assert sorted(path.name for path in (tmp_path / "killed/checkpoints").glob("*.keras")) == [
        "ckpt-0002.keras",
        "ckpt-0003.keras",
    ]
    assert all(list((tmp_path / "killed/logs").glob(f"worker{worker}/train/events*")) for worker in (0, 1))


def test_make_or_restore_continues_with_the_epoch_after_the_newest_checkpoint(tmp_path: Path) -> None:
    (wanted,), _, _ = run(tmp_path / "uninterrupted", "make or restore")
    assert_said("make_or_restore", wanted)
    assert len(wanted.splitlines()) == 4
    (found,), said, codes = run(tmp_path / "killed", "make or restore", ["60"])
    assert codes == [[-9], [0]]
    assert "ckpt-2.keras (2 epochs finished, step 50); without BackupAndRestore, give fit() initial_epoch=2" in said
    assert found.splitlines() == wanted.splitlines()[2:]


@pytest.mark.chaos
@pytest.mark.parametrize("victim", [0, 1])
def test_the_evaluator_task_of_a_cluster_evaluates_what_its_killed_workers_save(tmp_path: Path, victim: int) -> None:
    place, result = tmp_path / "run", tmp_path / "result.txt"
    command = [sys.executable, "-m", "tests.support.example_job"]
    trainer = [*command, "multi-worker", str(place), str(result)]
    evaluator = [*command, "evaluator of multi-worker", str(place), str(tmp_path / "evaluated.txt")]
    task = {"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "evaluator", "index": 0}}
    with (
        worker_processes(trainer, 2, tmp_path / "said") as workers,
        worker_processes(evaluator, 1, tmp_path / "beside") as beside,
    ):
        beside.start(["40"], env={"TF_CONFIG": json.dumps(task)})
        attempts = run_until_done(workers, 1, 250.0, extra_args=[[f"{victim}:40"]])
        assert attempts[0].returncodes[victim] == -9
        assert attempts[-1].returncodes == (0, 0), workers.tails()
        assert beside.wait(60) == [-9]  # in the second evaluation, if not before
        beside.start(env={"TF_CONFIG": json.dumps(task)})
        assert beside.wait(200) == [0], beside.tails()
    lines = next(tmp_path.glob("evaluated.txt*")).read_text().splitlines()
    steps = [int(step) for step in re.findall(r"step (\d+)", "\n".join(lines))]
    assert steps[-1] == 75
    assert steps == sorted(set(steps))
    assert [step for step, _ in scalars(place / "logs/evaluator")["evaluation_accuracy_vs_iterations"]] == steps
    last = keras.models.load_model(place / "checkpoints/ckpt-0003.keras")
    sys.path.insert(0, str(ROOT / "examples"))
    data = importlib.import_module("multi_worker").load_data(50)
    said = float(lines[-1].rpartition(" ")[2])
    assert last.evaluate(data, verbose=0, return_dict=True)["accuracy"] == pytest.approx(said)

"""The tutorials' programs: killed and started again, each prints what its docstring says, and ends as it promises."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.testing import run_until_done
from tests.support.docstrings import assert_said
from tests.support.processes import job

pytestmark = [pytest.mark.kill, pytest.mark.slow]


def run(place: Path, name: str, kills: Sequence[str] = (), workers: int = 1) -> tuple[list[str], str, list[list[int]]]:
    """What each worker printed at the end, what they said on their way, and how each attempt ended."""
    result = place / "result.txt"
    command = [sys.executable, "-m", "tests.support.example_job", name, str(place), str(result)]
    with job(command, workers, place / "said") as cluster:
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


def test_the_mirrored_tutorial_killed_twice_ends_as_it_would_have(tmp_path: Path) -> None:
    (wanted,), _, _ = run(tmp_path / "undisturbed", "mirrored")
    (found,), said, codes = run(tmp_path / "killed", "mirrored", ["30", "35"])
    assert codes == [[-9], [-9], [0]]
    assert len(re.findall(r"Restored .*; exact$", said, re.MULTILINE)) == 2, said
    assert found == wanted
    assert_said("mirrored_keras", found)
    assert_same_end(tmp_path / "killed", tmp_path / "undisturbed")


@pytest.mark.chaos
def test_the_multi_worker_tutorial_goes_on_whichever_worker_is_killed(tmp_path: Path) -> None:
    wanted, _, _ = run(tmp_path / "undisturbed", "multi-worker", workers=2)
    found, said, codes = run(tmp_path / "killed", "multi-worker", ["0:30", "1:15"], workers=2)
    assert codes == [[-9, 138], [138, -9], [0, 0]]
    assert len(re.findall(r"Restored .*; exact$", said, re.MULTILINE)) >= 2, said
    assert found == wanted
    assert_said("multi_worker", found[0])
    assert_same_end(tmp_path / "killed", tmp_path / "undisturbed")
    assert sorted(path.name for path in (tmp_path / "killed/checkpoints").glob("*.keras")) == [
        "ckpt-0002.keras",
        "ckpt-0003.keras",
    ]
    assert all(list((tmp_path / "killed/logs").glob(f"worker{worker}/train/events*")) for worker in (0, 1))


def test_make_or_restore_goes_on_with_the_epoch_behind_the_newest_checkpoint(tmp_path: Path) -> None:
    (wanted,), _, _ = run(tmp_path / "undisturbed", "make or restore")
    assert_said("make_or_restore", wanted)
    assert len(wanted.splitlines()) == 4
    (found,), said, codes = run(tmp_path / "killed", "make or restore", ["60"])
    assert codes == [[-9], [0]]
    assert "ckpt-2.keras (2 epochs finished, step 50); without BackupAndRestore, give fit() initial_epoch=2" in said
    assert found.splitlines() == wanted.splitlines()[2:]

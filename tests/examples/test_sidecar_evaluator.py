"""The example of an evaluator, with its training killed and itself killed, prints what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import run_until_done
from tests.support import ROOT
from tests.support.processes import worker_processes

pytestmark = [pytest.mark.kill, pytest.mark.slow]

LINE = r"epoch (\d+), step (\d+): accuracy ([\d.]+)"


def run(tmp_path: Path, name: str, kill: str) -> str:
    result = tmp_path / f"{name}.txt"
    command = [sys.executable, "-m", "tests.support.example_job", name, str(tmp_path / "run"), str(result)]
    with worker_processes(command, 1, tmp_path / f"{name}-logs") as cluster:
        attempts = run_until_done(cluster, 1, 250.0, extra_args=[[kill]])
        assert [attempt.returncodes[0] for attempt in attempts] == [-9, 0], cluster.tails()
    return result.read_text()


def test_the_killed_example_prints_what_it_says(tmp_path: Path) -> None:
    run(tmp_path, "trained beside an evaluator", "40")
    printed = re.findall(LINE, run(tmp_path, "evaluator", "7"))
    said = re.findall(LINE, (ROOT / "examples/sidecar_evaluator.py").read_text())
    assert [line[:2] for line in printed] == [line[:2] for line in said]
    assert [float(line[2]) for line in printed] == pytest.approx([float(line[2]) for line in said], abs=0.05)
    assert (tmp_path / "run" / "best.keras").exists()
    assert len(list((tmp_path / "run/tb/evaluator").glob("events*"))) <= 2  # one of each process

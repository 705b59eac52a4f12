"""Each example with another library: killed twice and started again, it prints what an uninterrupted run prints."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import run_until_done
from tests.support.processes import worker_processes

pytestmark = [pytest.mark.kill, pytest.mark.slow]

# what it needs, and after how many batches of each process it is killed
RECIPES = {
    "random search": ("keras_tuner", ["17", "24"]),
    "hyperband": ("keras_tuner", ["17", "24"]),
    "cross-validation": ("sklearn", ["9", "27"]),
    "DataLoader": ("torch", ["18", "8"]),
    "StatefulDataLoader": ("torchdata", ["18", "8"]),
    "frozen backbone": ("keras", ["8", "7"]),
    "optuna": ("optuna", ["17", "34"]),
    "mlflow": ("mlflow", ["12", "8"]),  # each after the end of an epoch that no backup holds
    "mlflow's autolog": ("mlflow", ["12", "8"]),
    "wandb": ("wandb", ["13", "8"]),
    "keras_hub": ("keras_hub", ["9", "5"]),
}
LONG = {"frozen backbone"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.chaos] * (n in LONG)) for n in RECIPES])
def test_a_killed_recipe_ends_as_an_uninterrupted_one(tmp_path: Path, name: str) -> None:
    package, kills = RECIPES[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    printed = {}
    for run, faults in {"uninterrupted": [], "killed": kills}.items():
        place = [str(tmp_path / run), str(tmp_path / f"{run}.txt")]
        command = [sys.executable, "-m", "tests.support.example_job", name, *place]
        with worker_processes(command, 1, tmp_path / f"{run}-logs") as cluster:
            attempts = run_until_done(cluster, len(faults), 800.0, extra_args=[[batches] for batches in faults])
            logs = "\n".join(path.read_text() for path in sorted((tmp_path / f"{run}-logs").iterdir()))
        assert [attempt.returncodes[0] for attempt in attempts] == [*[-9] * len(faults), 0], logs
        assert logs.count("Resumed from") >= len(faults), logs
        assert "not exact" not in logs, logs
        printed[run] = (tmp_path / f"{run}.txt").read_text()
    assert printed["killed"] == printed["uninterrupted"]

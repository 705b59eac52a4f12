"""A store that refuses checkpoint files: which one is the best on every worker, and how training ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import SUPPORT
from tests.support.checkpoints import listed
from tests.support.processes import worker_processes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

IN_CHAOS = [pytest.param(*row, marks=pytest.mark.chaos) for row in (("default", 1), ("mirrored", 1))]
STRATEGIES = [*IN_CHAOS, ("multi-worker", 2)]
OTHERS = [*IN_CHAOS, pytest.param("multi-worker", 2, marks=pytest.mark.chaos)]


def run(tmp_path: Path, strategy: str, workers: int, *options: str) -> tuple[list[dict[str, Any]], list[int]]:
    """What each worker found, and the epochs of the files that are there."""
    command = [sys.executable, str(SUPPORT / "failing_store_job.py"), strategy, str(tmp_path / "ckpt"), *options]
    with worker_processes(command, workers, tmp_path / "logs") as cluster:
        cluster.start()
        assert cluster.wait(150) == [0] * workers, cluster.tails()
        lines = [cluster.log(worker).rpartition("FOUND ")[2].partition("\n")[0] for worker in range(workers)]
    return [json.loads(line) for line in lines], sorted(
        one.record.epoch for one in listed(tmp_path / "ckpt").checkpoints
    )


@pytest.mark.parametrize(("strategy", "workers"), STRATEGIES)
def test_the_best_of_three_refused_files_is_tried_until_it_is_in_place(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    found, epochs = run(tmp_path, strategy, workers, "--refused", "2", "3", "4")
    assert epochs == [1, 2, 3]
    for worker in found:
        assert worker["bests"] == [None, 5.0, 4.0, 4.0, 4.0, 4.0], "what is pending is not the best in a backup"
        assert (worker["best"], worker["state"], worker["path"]) == (1.0, 1.0, "3.keras")
        assert worker["end"] == "fit() returns"


@pytest.mark.parametrize(("strategy", "workers"), OTHERS)
def test_where_newer_files_take_the_place_of_the_refused_best_it_is_the_best_on_no_worker(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    rules = json.dumps({"max_to_keep": 1, "keep_best": 1})
    found, epochs = run(tmp_path, strategy, workers, "--refused", "2", "3", "4", "--rules", rules)
    assert epochs == [6]
    assert [(worker["path"], worker["end"]) for worker in found] == [("6.keras", "fit() returns")] * workers


@pytest.mark.parametrize(
    ("strategy", "workers", "best_only"),
    [
        ("default", 1, False),
        ("multi-worker", 2, True),
        pytest.param("mirrored", 1, False, marks=pytest.mark.chaos),
        pytest.param("multi-worker", 2, False, marks=pytest.mark.chaos),
    ],
)
def test_all_workers_follow_the_rules_and_nothing_worse_takes_the_place_of_a_refused_best(
    tmp_path: Path, strategy: str, workers: int, best_only: bool
) -> None:
    rules = json.dumps({"keep_best": 1, "save_best_only": best_only})
    found, epochs = run(tmp_path, strategy, workers, "--refused", "2", "--rules", rules)
    assert epochs == [3]
    best = 1.0 if best_only else None
    expected = {"path": "3.keras", "end": "fit() returns", "best": best, "state": best}
    assert [{name: worker[name] for name in expected} for worker in found] == [expected] * workers


@pytest.mark.parametrize(("strategy", "workers"), STRATEGIES)
def test_a_store_that_is_down_at_the_end_ends_training_on_every_worker(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    found, epochs = run(tmp_path, strategy, workers, "--away-from", "2")
    assert epochs == [1, 2]
    for worker in found:
        assert worker["end"].endswith("the store is away"), worker
        assert (worker["best"], worker["state"], worker["path"]) == (4.0, 4.0, "2.keras")


@pytest.mark.parametrize(("strategy", "workers"), OTHERS)
def test_too_many_refused_files_in_a_row_end_training_on_every_worker(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    found, epochs = run(tmp_path, strategy, workers, "--away-from", "2", "--most", "2")
    assert epochs == [1, 2]
    for worker in found:
        assert "2 files in a row were not saved" in worker["end"]
        assert len(worker["bests"]) == 4, "at the end of the epoch after the second failure"
        assert worker["state"] == 4.0


def test_the_chief_stays_until_all_workers_have_heard_how_training_ended(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "multi-worker", 2, "--slow-to-hear", "1")
    assert [worker["end"] for worker in found] == ["fit() returns"] * 2

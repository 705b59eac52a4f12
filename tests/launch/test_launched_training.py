"""Real trainings under `kdc launch` end as uninterrupted ones do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.testing import assert_same_run
from keras_dist_callbacks.testing.local_cluster import _WORKER_ENV
from tests.support import SUPPORT
from tests.support.launching import Launched
from tests.support.processes import worker_processes

pytestmark = [pytest.mark.kill, pytest.mark.cluster, pytest.mark.slow]


def arguments(directory: Path, workers: int) -> list[str]:
    strategy = ["--strategy", "multi_worker"] if workers > 1 else []
    return [*strategy, "--save-freq", "2", "--backup-dir", f"{directory}/backup", "--record", f"{directory}/run"]


def uninterrupted(directory: Path, workers: int) -> None:
    command = [sys.executable, str(SUPPORT / "workload.py"), *arguments(directory, workers)]
    with worker_processes(command, workers, directory / "logs") as cluster:
        cluster.start()
        assert cluster.wait(120) == [0] * workers, cluster.tails()


@pytest.mark.parametrize("workers", [2, 1])
@pytest.mark.in_gate(1)
def test_a_killed_worker_is_restarted_and_the_end_is_bit_identical(tmp_path: Path, workers: int) -> None:
    uninterrupted(tmp_path / "reference", workers)
    script = str(SUPPORT / "workload.py")
    kill = f"phase=train_batch_begin,epoch=1,batch=4,worker={workers - 1}"
    run = [sys.executable, "-m", "keras_dist_callbacks.cli", "run", script, "--kill-first", kill]
    options: dict[str, Any] = {"workers": workers, "log_dir": "logs"}
    command = [*run, *arguments(tmp_path / "launched", workers)]
    code, _, err = Launched(tmp_path, {}, _WORKER_ENV, command=command, **options).end(270)
    assert code == 0, err
    for index in range(workers):
        assert_same_run(tmp_path / f"reference/run-worker{index}", tmp_path / f"launched/run-worker{index}")
    end, start = (line for line in err.splitlines() if line.startswith("kdc launch: "))
    assert end == f"kdc launch: worker {workers - 1} was terminated by SIGKILL, after step 13"
    assert start == "kdc launch: attempt 1 starts from the backup of step 12; 1 step is repeated"

"""Real trainings under `kdc launch` end as uninterrupted ones do."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.launch import worker
from keras_dist_callbacks.testing import assert_same_run
from keras_dist_callbacks.testing.local_cluster import WORKER_ENV
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


@pytest.mark.parametrize("standby", [True, False])
@pytest.mark.parametrize("workers", [2, 1])
@pytest.mark.in_gate(1)
def test_a_killed_worker_is_restarted_and_the_end_is_bit_identical(tmp_path: Path, workers: int, standby: bool) -> None:
    uninterrupted(tmp_path / "reference", workers)
    script = str(SUPPORT / "workload.py")
    kill = f"phase=train_batch_begin,epoch=1,batch=4,worker={workers - 1}"
    options: dict[str, Any] = {"workers": workers, "log_dir": "logs", "standby": standby}
    command = [*worker.COMMAND, script, "--kill-first", kill, *arguments(tmp_path / "launched", workers)]
    code, _, err = Launched(tmp_path, {}, WORKER_ENV, command=command, **options).end(270)
    assert code == 0, err
    for index in range(workers):
        assert_same_run(tmp_path / f"reference/run-worker{index}", tmp_path / f"launched/run-worker{index}")
    end, start, last = (line for line in err.splitlines() if line.startswith("kdc launch: "))
    assert end == f"kdc launch: worker {workers - 1} was terminated by SIGKILL, after step 13"
    assert start == "kdc launch: attempt 1 starts from the backup of step 12; 1 step is repeated"
    assert last == "kdc launch: ended with code 0 after 2 starts; before that by SIGKILL"
    logs = "".join(log.read_text() for log in (tmp_path / "logs").iterdir())
    assert ("Training cannot continue without it" in logs) == (workers > 1)
    assert "start all workers again" not in logs
    assert "start this job again" not in logs


@pytest.mark.parametrize(
    ("workers", "again"), [(1, True), *(pytest.param(2, again, marks=pytest.mark.chaos) for again in (False, True))]
)
def test_a_job_whose_time_is_over_is_not_restarted_and_continues_exactly_when_started_again(
    tmp_path: Path, workers: int, again: bool
) -> None:
    run = [sys.executable, "-m", "keras_dist_callbacks.cli", "run", str(SUPPORT / "workload.py")]
    command = [*run, "--time-limit", "86400", *arguments(tmp_path / "launched", workers)]

    def launched(end: float) -> tuple[int, str, str]:
        env = {**WORKER_ENV, "SLURM_JOB_END_TIME": f"{end:.0f}"}
        return Launched(tmp_path, {}, env, command=command, workers=workers, log_dir="logs").end(270)

    code, out, err = launched(time.time() + 1)
    assert code == 138, err
    asked = " on worker 0" if workers > 1 else ""
    assert f"Preempted by the end of the Slurm job{asked} at epoch 1, batch " in out
    assert "everything is saved" in out
    assert "Start the job again" not in out  # the launcher says so
    (end,) = (line for line in err.splitlines() if line.startswith("kdc launch: "))
    assert end.endswith("its time is over, so there is no restart: start the job again")
    if not again:
        return
    uninterrupted(tmp_path / "reference", workers)
    code, out, err = launched(time.time() + 80_000)
    assert code == 0, err
    for index in range(workers):
        assert_same_run(tmp_path / f"reference/run-worker{index}", tmp_path / f"launched/run-worker{index}")

"""Arrays without any seed, killed with SIGKILL in mid-epoch: the end is that of the run that continued."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import assert_same_run
from keras_dist_callbacks.testing.local_cluster import run_until_done
from tests.support import SUPPORT
from tests.support.processes import worker_processes

KILL = "phase=train_batch_begin,epoch=2,batch=4"


@pytest.mark.kill
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        ("default", 1),
        pytest.param("mirrored", 1, marks=pytest.mark.chaos),
        pytest.param("multi-worker", 2, marks=pytest.mark.chaos),
    ],
)
def test_a_killed_job_without_a_seed_ends_as_the_one_that_continued(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    script = [sys.executable, str(SUPPORT / "unseeded_job.py"), strategy]
    continued = [*script, str(tmp_path / "backup"), str(tmp_path / "continued"), "--copy", str(tmp_path / "copy")]
    with worker_processes(continued, workers, tmp_path / "logs") as cluster:
        cluster.start()
        assert cluster.wait(120) == [0] * workers, cluster.tails()
    shutil.rmtree(tmp_path / "backup")
    killed = [*script, str(tmp_path / "copy"), str(tmp_path / "killed")]
    with worker_processes(killed, workers, tmp_path / "logs2", grace=3.0) as cluster:
        attempts = run_until_done(cluster, 1, 240.0, extra_args=[["--kill", f"{KILL},worker={workers - 1}"]])
        assert attempts[0].returncodes[workers - 1] == -9
        assert attempts[-1].succeeded, cluster.tails()
        (answer,) = (line for line in cluster.log(0).splitlines() if line.startswith("ANSWER"))
        several = "" if strategy == "default" else " if"  # TensorFlow adds in the same order
        assert answer == f"ANSWER exact{several} epoch 3, batch 2 (step 18)"
    for worker in range(workers):
        assert_same_run(tmp_path / f"continued-worker{worker}", tmp_path / f"killed-worker{worker}")

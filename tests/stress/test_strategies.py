"""Each row of the table of strategies in docs/limits.md: killed with SIGKILL in its second epoch, and resumed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import assert_same_run
from keras_dist_callbacks.testing.local_cluster import run_until_done
from tests.support import SUPPORT
from tests.support.processes import worker_processes

KILL = "phase=train_batch_begin,epoch=1,batch=5"
LOCAL = ("plain", "distributed", "from a function")
ROWS = [
    *[("default", way, 1) for way in LOCAL],
    *[("one device", way, 1) for way in LOCAL],
    *[("mirrored", way, 1) for way in LOCAL],
    ("mirrored, hierarchical copy", "plain", 1),
    ("mirrored, reduction to one", "plain", 1),
    *[("central storage", way, 1) for way in LOCAL],
    ("central storage, one device", "plain", 1),
    *[("multi-worker", way, 2) for way in (*LOCAL[1:], "AUTO", "DATA", "OFF", "FILE")],
    ("multi-worker", "DATA", 3),
    ("multi-worker, ring", "DATA", 2),
    ("multi-worker, TensorFlow's own", "DATA", 1),
    ("multi-worker, TensorFlow's own", "DATA", 2),
]
IN_THE_GATE = {("one device", "plain", 1), ("mirrored", "from a function", 1), ("multi-worker", "OFF", 2)}


@pytest.mark.kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "way", "workers"),
    [pytest.param(*row, marks=() if row in IN_THE_GATE else pytest.mark.chaos) for row in ROWS],
)
def test_a_killed_job_ends_as_if_never_interrupted(tmp_path: Path, strategy: str, way: str, workers: int) -> None:
    script = [sys.executable, str(SUPPORT / "strategy_job.py"), strategy, way]
    for name in ("uninterrupted", "killed"):
        (tmp_path / name).mkdir()
    with worker_processes([*script, str(tmp_path / "uninterrupted")], workers, tmp_path / "logs") as cluster:
        cluster.start()
        assert cluster.wait(120) == [0] * workers, cluster.tails()
    with worker_processes(
        [*script, str(tmp_path / "killed"), "--backup"], workers, tmp_path / "logs2", grace=3.0
    ) as cluster:
        kill = ["--kill", f"{KILL},worker={workers - 1}"]
        attempts = run_until_done(cluster, 1, 240.0, extra_args=[kill])
        assert attempts[0].returncodes[workers - 1] == -9
        assert attempts[-1].succeeded, cluster.tails()
        answer = "exact" if strategy == "default" else "exact if"  # the seeds of its iterators are not seen
        assert [line for line in cluster.log(0).splitlines() if line.startswith("ANSWER")] == [f"ANSWER {answer}"]
    for worker in range(workers):
        name = f"run-worker{worker}"
        assert_same_run(tmp_path / "uninterrupted" / name, tmp_path / "killed" / name)

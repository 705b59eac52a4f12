"""Inputs of published guides without a seed, killed with SIGKILL in mid-epoch: the end is as if nothing happened."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import assert_same_run
from keras_dist_callbacks.testing.local_cluster import run_until_done
from tests.support import SUPPORT
from tests.support.processes import worker_processes
from tests.support.unseeded_pipelines_job import FORMS

DRAWN_AGAIN = {"split"}
KILL = "phase=train_batch_begin,epoch=1,batch=4"


def answers(form: str, strategy: str, directory: Path, workers: int = 1) -> str:
    """What a job says that is killed within the epoch that it resumes, and ends as the one that continued."""
    script = [sys.executable, str(SUPPORT / "unseeded_pipelines_job.py"), strategy, form]
    continued = [*script, str(directory / "backup"), str(directory / "continued"), "--copy", str(directory / "copy")]
    with worker_processes(continued, workers, directory / "logs") as cluster:
        cluster.start()
        assert cluster.wait(120) == [0] * workers, cluster.tails()
    shutil.rmtree(directory / "backup")
    with worker_processes(
        [*script, str(directory / "copy"), str(directory / "killed")], workers, directory / "logs2", grace=3.0
    ) as cluster:
        attempts = run_until_done(cluster, 1, 240.0, extra_args=[["--kill", f"{KILL},worker={workers - 1}"]])
        assert attempts[0].returncodes[workers - 1] == -9
        assert attempts[-1].succeeded, cluster.tails()
        (answer,) = (line for line in cluster.log(0).splitlines() if line.startswith("ANSWER"))
    if form not in DRAWN_AGAIN:
        for worker in range(workers):
            assert_same_run(directory / f"continued-worker{worker}", directory / f"killed-worker{worker}")
    return answer


def _in_gate(form: str) -> object:
    return form if form == "map" else pytest.param(form, marks=pytest.mark.chaos)


@pytest.mark.kill
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", [_in_gate(form) for form in FORMS])
def test_a_guides_input_without_a_seed_resumes_exactly(tmp_path: Path, form: str) -> None:
    answer = answers(form, "default", tmp_path)
    if form in DRAWN_AGAIN:
        assert answer.startswith("ANSWER not exact at epoch 2, batch 4")
        assert "Dataset.shuffle(48, reshuffle_each_iteration=False) of the input has no seed" in answer
        assert "its parts have other rows than before" in answer
    else:
        assert answer.startswith("ANSWER exact at epoch 2, batch 4"), answer


@pytest.mark.kill
@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", FORMS)
def test_a_guides_input_without_a_seed_resumes_under_two_replicas(tmp_path: Path, form: str) -> None:
    answer = answers(form, "mirrored", tmp_path)
    assert answer.startswith("ANSWER not exact" if form in DRAWN_AGAIN else "ANSWER exact if"), answer


@pytest.mark.cluster
@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", ["shuffle", "cache", "endless", "augmented", "validated"])
def test_a_guides_input_without_a_seed_resumes_on_two_workers(tmp_path: Path, form: str) -> None:
    answer = answers(form, "multi-worker", tmp_path, workers=2)
    assert answer.startswith("ANSWER exact if"), answer

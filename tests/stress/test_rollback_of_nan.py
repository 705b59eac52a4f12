"""A row that is infinite in each epoch, under `kdc launch`: processes go back, skip, and end alike after a kill."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import compare_runs
from tests.support import ROOT, SUPPORT

pytestmark = [pytest.mark.chaos, pytest.mark.kill, pytest.mark.timeout(600)]


def launched(place: Path, strategy: str, *words: str) -> str:
    """What a job prints, which `kdc launch` restarts until it has ended."""
    place.mkdir()
    workers = 2 if strategy == "multi_worker" else 1
    command = [sys.executable, "-m", "keras_dist_callbacks.cli", "launch", "--workers", str(workers)]
    job = [str(SUPPORT / "poisoned_job.py"), str(place), "--strategy", strategy, *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *job], env=env, capture_output=True, text=True, check=False, timeout=500)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    print(said)
    return said


@pytest.mark.parametrize(
    ("strategy", "place"),
    [("default", 0), ("mirrored", 0), ("mirrored", 5), ("multi_worker", 0), ("multi_worker", 5)],
)
def test_a_job_skips_what_is_poisoned_and_a_kill_after_that_changes_nothing(
    tmp_path: Path, strategy: str, place: int
) -> None:
    said = launched(tmp_path / "one", strategy, "--place", str(place))
    skipped = re.findall(
        r"the same losses as before, so that batches (\d+) to (\d+) of epoch (\d+) will be skipped", said
    )
    assert [tuple(map(int, found)) for found in dict.fromkeys(skipped)] == [(3, 4, 1), (3, 4, 2)]
    assert "END 8" in said
    launched(tmp_path / "other", strategy, "--place", str(place), "--kill")
    for worker in range(2 if strategy == "multi_worker" else 1):
        assert compare_runs(tmp_path / f"one/run-{worker}", tmp_path / f"other/run-{worker}") == []

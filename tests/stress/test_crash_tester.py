"""ckpt-chaos, a crash tester that is not ours, at every file boundary of a small job: next to Keras' own callback."""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, SUPPORT

EVERY = 1000  # more than there are
SAMPLE = 12


def verdicts(work: Path, points: int, modes: str, *options: str) -> collections.Counter[str]:
    """How many crash points came out how, as its own report says."""
    report = work.with_suffix(".md")
    command = [sys.executable, "-m", "ckpt_chaos", "run", "--modes", modes, "--max-points", str(points), "--jobs", "1"]
    command += ["--result-file", "{out}/final.bin", "--work", str(work), "--summary", str(report), "--grace", "20"]
    command += ["--", sys.executable, str(SUPPORT / "crash_tester_job.py"), "--out", "{out}", *options]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=3000
    )
    assert "3/3 judging" in done.stdout, done.stdout + done.stderr
    print(done.stdout)
    totals = re.findall(r"\b([A-Z_]+): (\d+)", done.stdout.strip().splitlines()[-1])
    found = collections.Counter({verdict: int(count) for verdict, count in totals})
    crashed = [json.loads(path.read_text(encoding="utf-8"))["crashed"] for path in work.glob("pt_*/result.json")]
    # The control apart, each point is one crash; but a job that is asked to end after its last step just ends.
    assert sum(crashed) == found.total() - 1 or (modes == "term" and 2 * sum(crashed) > found.total())
    return found


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mode", ["before", "torn", "term"])
def test_every_file_boundary_passes(tmp_path: Path, request: pytest.FixtureRequest, mode: str) -> None:
    is_whole = request.config.getoption("--chaos-share") == 1 and mode == "before"  # 46 points, 20 minutes
    found = verdicts(tmp_path / "ours", EVERY if is_whole else SAMPLE, mode)
    assert found.total() > min(SAMPLE, 10)
    assert set(found) == {"PASS"}, found


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(3000)
def test_the_tester_finds_what_keras_own_callback_loses(tmp_path: Path) -> None:
    found = verdicts(tmp_path / "keras", SAMPLE, "before,torn,term", "--keras-callback")
    assert found["HARD_FAIL"] + found["SILENT_DIVERGENCE"] > 0, found

"""The rules of ModelCheckpoint, where the process ends at any system call and another one continues."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.retention_table import TABLE, Given

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("given", "stride"),
    [
        ((2, 3, 5), 23),
        *(pytest.param(given, 1, marks=pytest.mark.chaos) for given in ((2, 3, 5), (None, 3, 5), (2, None, None))),
    ],
)
def test_a_kill_at_any_call_changes_nothing_of_what_stays(tmp_path: Path, given: Given, stride: int) -> None:
    written, kept = TABLE[given]
    command = [sys.executable, "-m", "tests.support.retention_crashes", tmp_path / "runs", json.dumps(given)]
    done = subprocess.run([*command, str(stride)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) > 80 / stride
    for number, (after_kill, complete, at_the_end) in enumerate(outcomes):
        where = 1 + number * stride
        assert at_the_end == kept, where
        needed = [epoch for epoch in kept if epoch <= complete]
        assert set(needed) <= set(after_kill), where
        earlier = [epoch for epoch in written if epoch <= complete]
        assert not earlier or max(after_kill) >= max(earlier), f"{where}: the newest file is there"
    assert outcomes[-1][0] == kept

"""The rules of ModelCheckpoint and BackupAndRestore, where the process ends and another one continues."""

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


# A backup after an epoch's last step is not yet one at its end: 77, and not 70.
FIRSTS = {1: {"epoch": range(10, 121, 10), 7: [14, 21, 35, 42, 56, 63, 77, 84, 91, 105, 112]}}
FIRSTS[3] = {"epoch": [30, 60, 90, 120], 7: [35, 63, 91]}


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.parametrize(
    ("max_to_keep", "keep_every", "save_freq"),  # each pair of values of two arguments
    [
        (1, None, "epoch"),
        (1, 1, 7),
        (1, 3, 7),
        (2, None, 7),
        (2, 1, "epoch"),
        (2, 3, "epoch"),
        (5, None, 7),
        (5, 1, "epoch"),
        (5, 3, 7),
    ],
)
def test_a_kill_in_any_epoch_changes_nothing_of_the_backups_that_stay(
    tmp_path: Path, max_to_keep: int, keep_every: int | None, save_freq: int | str
) -> None:
    given = json.dumps([max_to_keep, keep_every, save_freq])
    command = [sys.executable, "-m", "tests.support.kept_crashes", str(tmp_path), given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(outcomes) == 12
    saved = [*range(10, 121, 10)] if save_freq == "epoch" else [*range(7, 121, 7)]
    firsts = [] if keep_every is None else FIRSTS[keep_every][save_freq]
    for after_kill, at_the_end in outcomes:
        newest = after_kill[-1] if after_kill else 0
        complete = [step for step in saved if step <= newest]
        assert {*complete[-max_to_keep:], *(step for step in firsts if step <= newest)} <= set(after_kill)
        assert at_the_end == sorted({*[*saved, 120][-max_to_keep:], *firsts}), "the end of training is a backup too"

"""A cluster whose store is slow: its newest state is queued, however long the one before takes."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.testing import compare_runs
from tests.support import SUPPORT
from tests.support.processes import worker_processes
from tests.support.save_queue_job import CUT_AT, LOST_AT, TIMEOUT

pytestmark = [pytest.mark.kill, pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(300)]


def run(directory: Path, *words: str) -> tuple[list[int | None], list[str], float]:
    """Exit codes and logs of both workers, and the seconds that it took."""
    command = [sys.executable, str(SUPPORT / "save_queue_job.py"), str(directory), *words]
    with worker_processes(command, 2, directory / f"logs-{'-'.join(words)}", grace=60) as cluster:
        began = time.monotonic()
        cluster.start()
        codes = list(cluster.wait(150))
        return codes, [cluster.log(worker) for worker in range(2)], time.monotonic() - began


def steps(directory: Path) -> list[int]:
    """Of the backups that are there."""
    store = BackupStore(Storage.open(directory / "backup"))
    return [store.manifest(commit).position.step for commit in store.commits()]


def assert_goes_on_as_if_nothing_had_happened(directory: Path, reference: Path, position: str) -> None:
    codes, logs, _ = run(directory)
    assert codes == [0, 0], logs
    assert all(f"RESTORED {position}" in log for log in logs)
    assert run(reference)[0] == [0, 0]
    for worker in range(2):
        assert compare_runs(reference / f"end-worker{worker}", directory / f"end-worker{worker}") == []


def test_the_newest_state_is_written_after_one_that_takes_longer_than_workers_wait(tmp_path: Path) -> None:
    codes, logs, _ = run(tmp_path / "a", "cut")
    assert codes == [-signal.SIGKILL] * 2, logs
    waited = [float(re.findall("everything is written after ([0-9.]+) s", log)[0]) for log in logs]
    assert waited[1] > TIMEOUT + 1
    assert not [log for log in logs if re.search("was not saved|backup .* failed", log)], logs
    assert steps(tmp_path / "a") == [1, CUT_AT[1]]  # a backup comes when all callbacks have seen the step
    assert_goes_on_as_if_nothing_had_happened(tmp_path / "a", tmp_path / "b", f"epoch 1, batch {CUT_AT[1]} ")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_is_lost_while_one_is_queued_ends_all(tmp_path: Path, lost: int) -> None:
    codes, logs, seconds = run(tmp_path / "a", "lost", str(lost))
    assert codes[lost] == -signal.SIGKILL
    assert f"in line before {LOST_AT[0]},{LOST_AT[1]}: True" in logs[0]
    assert codes[1 - lost] == 1
    assert "PeerLostError" in logs[1 - lost]
    assert seconds < 40 + 30 + 10  # it may start, loses the worker, and may take as long as `peer_timeout` to say so
    assert_goes_on_as_if_nothing_had_happened(tmp_path / "a", tmp_path / "b", "")

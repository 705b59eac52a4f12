"""A cluster whose store is slow: all workers take the same steps into a backup, however long the one before takes."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.testing import compare_runs
from tests.support import SUPPORT
from tests.support.late_saves_job import LOST_AT
from tests.support.processes import worker_processes

pytestmark = [pytest.mark.kill, pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(300)]


def run(directory: Path, *words: str, workers: int = 2) -> tuple[list[int | None], list[str], float]:
    """Exit codes and logs of all workers, and the seconds that it took."""
    command = [sys.executable, str(SUPPORT / "late_saves_job.py"), str(directory), *words]
    with worker_processes(command, workers, directory / f"logs-{'-'.join(words)}", grace=60) as cluster:
        began = time.monotonic()
        cluster.start()
        codes = list(cluster.wait(150))
        return codes, [cluster.log(worker) for worker in range(workers)], time.monotonic() - began


def positions(directory: Path) -> list[Position]:
    """Of the backups that are there."""
    store = BackupStore(Storage.open(directory / "backup"))
    return [store.manifest(commit).position for commit in store.commits()]


def assert_goes_on_as_if_nothing_had_happened(
    directory: Path, reference: Path, position: str, workers: int = 2
) -> None:
    codes, logs, _ = run(directory, workers=workers)
    assert codes == [0] * workers, logs
    assert all(f"RESTORED {position}" in log for log in logs)
    assert run(reference, workers=workers)[0] == [0] * workers
    for worker in range(workers):
        assert compare_runs(reference / f"end-worker{worker}", directory / f"end-worker{worker}") == []


@pytest.mark.parametrize(("busy", "workers"), [("late", 1), ("late", 2), ("wait", 2)])
def test_backups_that_take_longer_than_workers_wait_are_complete_and_resume_exactly(
    tmp_path: Path, busy: str, workers: int
) -> None:
    codes, logs, _ = run(tmp_path / "a", busy, workers=workers)
    assert codes == [-signal.SIGKILL] * workers, logs
    assert not [log for log in logs if re.search("was not saved|backup .* failed", log)], logs
    before, newest = positions(tmp_path / "a")
    if busy == "wait":
        assert (before.step, newest.step) == (1, 2)
    else:
        assert newest.step - before.step > 1
    assert_goes_on_as_if_nothing_had_happened(tmp_path / "a", tmp_path / "b", str(newest), workers)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_is_lost_while_a_backup_is_late_ends_all(tmp_path: Path, lost: int) -> None:
    codes, logs, seconds = run(tmp_path / "a", "lost", str(lost))
    assert codes[lost] == -signal.SIGKILL
    assert f"late after {LOST_AT[0]},{LOST_AT[1]}: True" in logs[0]
    assert codes[1 - lost] == 1
    assert "PeerLostError" in logs[1 - lost]
    assert seconds < 40 + 30 + 10  # it may start, loses the worker, and may take as long as `peer_timeout` to say so
    assert_goes_on_as_if_nothing_had_happened(tmp_path / "a", tmp_path / "b", "")

"""Two runs on one directory at once: the newer one continues, the older one gets an error and ends."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.testing import LocalCluster
from tests.support.processes import worker_processes


def slow_training(backup: Path, logs: Path, pause: float, epochs: int) -> LocalCluster:
    return worker_processes(
        [sys.executable, "-m", "tests.support.slow_training", str(backup), str(pause), str(epochs)], 1, logs
    )


@pytest.mark.kill
@pytest.mark.timeout(180)
def test_of_two_runs_on_one_directory_exactly_one_continues(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    reader = BackupStore(Storage.open(backup))
    older, newer = (
        slow_training(backup, tmp_path / "older", 0.1, 1000),
        slow_training(backup, tmp_path / "newer", 0.0, 20),
    )
    with older, newer:
        older.start()
        deadline = time.monotonic() + 90
        while not reader.commits():
            assert older.poll() == [None], older.log(0)
            assert time.monotonic() < deadline, "the older run has made no backup"
            time.sleep(0.1)
        newer.start()
        assert newer.wait(90) == [0], newer.log(0)
        assert "ENDED WELL" in newer.log(0)
        assert older.wait(60) == [1], older.log(0)
        complaint = older.log(0)
    assert "FencedError" in complaint
    assert "was taken over by a newer run (generation 2, this run is 1)" in complaint
    assert "Give each run a directory of its own" in complaint
    newest = reader.commits()[-1]
    assert newest.generation == 2
    manifest = reader.manifest(newest)
    assert manifest.done
    assert manifest.position.epoch == 20
    reader.verify(manifest)

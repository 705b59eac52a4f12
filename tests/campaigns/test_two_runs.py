"""Two runs on one directory at once: the newer one goes on, the older one is told to end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.support import ROOT


def start(backup: Path, pause: float, epochs: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.rival", str(backup), str(pause), str(epochs)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.kill
@pytest.mark.timeout(180)
def test_of_two_runs_on_one_directory_exactly_one_goes_on(tmp_path: Path) -> None:
    older = start(tmp_path, 0.1, 1000)
    newer = None
    try:
        reader = BackupStore(Storage.open(tmp_path))
        deadline = time.monotonic() + 90
        while not reader.commits() and time.monotonic() < deadline:
            assert older.poll() is None, older.communicate()[0]
            time.sleep(0.1)
        newer = start(tmp_path, 0.0, 20)
        output = newer.communicate(timeout=90)[0]
        assert newer.returncode == 0, output
        assert "ENDED WELL" in output
        complaint = older.communicate(timeout=60)[0]
        assert older.returncode == 1, complaint
        assert "FencedError" in complaint
        assert "was taken over by a newer run (generation 2, this run is 1)" in complaint
        assert "Give each run a directory of its own" in complaint
    finally:
        for process in (older, newer):
            if process is not None:
                process.kill()
                process.wait()
    newest = reader.commits()[-1]
    assert newest.generation == 2
    manifest = reader.manifest(newest)
    assert manifest.done
    assert manifest.position.epoch == 20
    reader.verify(manifest)

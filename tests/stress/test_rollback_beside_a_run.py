"""A rollback beside a job of two workers, which is killed after any of its operations."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.backups import rollback
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.testing import LocalCluster, compare_runs
from tests.support.processes import worker_processes
from tests.support.rollbacks import killed_after

pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.timeout(300)]
WAITS, BACK_TO = 13, 6  # steps; backups are made after each third one


def job(place: Path, *words: str) -> LocalCluster:
    command = [sys.executable, "-m", "tests.support.strategy_job", "multi-worker", "plain", str(place), *words]
    return worker_processes(command, 2, place)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("uninterrupted")
    with job(place) as cluster:
        cluster.start()
        assert cluster.wait(120) == [0, 0], cluster.log(0)
    return place


@pytest.mark.parametrize("count", range(7))
def test_a_job_of_two_workers_is_fenced_and_its_restart_continues_where_it_was_rolled_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Path, count: int
) -> None:
    store = BackupStore(Storage.open(tmp_path / "backup"))
    with job(tmp_path, "--backup", "--wait", str(WAITS)) as cluster:
        cluster.start()
        deadline = time.monotonic() + 90
        while len(store.commits()) < WAITS // 3:
            assert time.monotonic() < deadline, cluster.log(0)
            time.sleep(0.1)
        target = next(one for one in map(store.manifest, store.commits()) if one.position.step == BACK_TO)

        def go_back() -> None:
            rollback.roll_back(store, rollback.plan(store, target))

        was_killed = killed_after(monkeypatch, count, go_back)
        (tmp_path / "go").touch()
        ends = cluster.wait(120)
        logs = [cluster.log(worker) for worker in (0, 1)]
    assert was_killed == (count < 5), "one file decides; two manifests are copied and deleted"
    if count:
        assert 0 not in ends, logs
        assert "was rolled back to 1-2: what this run has trained since does not count" in logs[0], logs
    else:
        assert ends == [0, 0], logs
    if count:
        with job(tmp_path, "--backup") as cluster:
            cluster.start()
            assert cluster.wait(120) == [0, 0], cluster.log(0)
            assert f"1-2 (rolled back from 1-4) at epoch 1, batch {BACK_TO} (step {BACK_TO}): exact" in cluster.log(0)
    for worker in (0, 1):
        name = f"run-worker{worker}"
        assert compare_runs(uninterrupted / name, tmp_path / name) == []

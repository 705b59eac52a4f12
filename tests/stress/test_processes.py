"""Trainings that start processes, struck at random moments: SIGKILL and SIGTERM, to the parent and to the group."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from keras_dist_callbacks.testing import LocalCluster
from tests.support.processes import worker_processes

BLOWS = 10
EPOCHS = 8
KINDS = ("pydataset", "pydataset", "pool", "executor")
CODES = {0, 138, -signal.SIGKILL, -signal.SIGTERM, 143}


def run(directory: Path, kind: str, *options: str) -> LocalCluster:
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.support.forks_job", kind, str(directory), "--epochs", str(EPOCHS), *options]
    return worker_processes(command, 1, directory / "logs")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("plain")
    with run(directory, "none", "--plain") as cluster:
        cluster.start()
        assert cluster.wait(120.0) == [0], cluster.tails()
    return (directory / "end").read_text()


def strike(cluster: LocalCluster, draw: random.Random) -> None:
    pid, sig, group = cluster.pid(0), draw.choice((signal.SIGKILL, signal.SIGTERM)), draw.random() < 0.5
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(pid, sig)


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(16))
def test_a_training_with_processes_survives_ten_blows_at_random_moments(
    tmp_path: Path, expected: str, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311 - nothing to do with security
    kind, blows, trainings = KINDS[seed % len(KINDS)], 0, 0
    while blows < BLOWS:
        trainings += 1
        directory = tmp_path / str(trainings)
        with run(directory, kind) as cluster:
            while not (directory / "end").exists():
                cluster.start()
                until = time.monotonic() + draw.uniform(0.2, 4.0)
                while blows < BLOWS and cluster.poll() == [None] and time.monotonic() < until:
                    time.sleep(0.005)
                if blows < BLOWS and cluster.poll() == [None]:
                    strike(cluster, draw)
                    blows += 1
                code = cluster.wait(120.0)[0]
                assert code in CODES, cluster.tails()
        assert (directory / "end").read_text() == expected, cluster.tails()
    print(f"{kind}: {blows} blows, {trainings} trainings")

"""Workers, and the launcher, are killed, stopped and terminated at random for minutes: the end is bit-identical."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.base.progress_file import _Cell
from keras_dist_callbacks.launch import worker
from keras_dist_callbacks.testing import assert_same_run
from keras_dist_callbacks.testing.local_cluster import WORKER_ENV
from tests.support import SUPPORT
from tests.support.launching import Launched, is_alive
from tests.support.processes import worker_processes

pytestmark = [pytest.mark.chaos, pytest.mark.kill, pytest.mark.cluster, pytest.mark.timeout(3000)]

WORKERS = 2
SECONDS = float(os.environ.get("KDC_CHAOS_SECONDS", "240"))
EPOCHS = int(SECONDS / 3)  # with the time of each step, more than the faults leave room for
STEPS_PER_EPOCH = 9


def workload(directory: Path, *more: str) -> list[str]:
    training = ["--strategy", "multi_worker", "--epochs", str(EPOCHS), "--no-validation", "--save-freq", "3"]
    return [*training, "--backup-dir", f"{directory}/backup", "--record", f"{directory}/run", *more]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reference")
    command = [sys.executable, str(SUPPORT / "workload.py"), *workload(directory)]
    with worker_processes(command, WORKERS, directory / "logs") as cluster:
        cluster.start()
        assert cluster.wait(900) == [0] * WORKERS, cluster.tails()
    return directory


class Job:
    """A launched training, and what was done to it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)  # noqa: S311 - not for secrets
        self.faults: list[str] = []
        self.logs: list[str] = []
        self.began = time.monotonic()
        (directory / "tmp").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        script = str(SUPPORT / "workload.py")
        command = [*worker.COMMAND, script, *workload(self.directory, "--step-seconds", "0.15")]
        options: dict[str, Any] = {"workers": WORKERS, "standby": True, "grace": 15.0, "max_restarts": 50}
        env = {**WORKER_ENV, "TMPDIR": str(self.directory / "tmp")}
        self.launched = Launched(self.directory, {}, env, command=command, log_dir="logs", **options)

    def training(self) -> list[int]:
        """The processes that train."""
        found = []
        for path in self.directory.glob("tmp/kdc-launch-*/progress-*"):
            cells = memoryview(path.read_bytes()).cast("q")
            if cells[_Cell.FORMAT] and is_alive(cells[_Cell.PROCESS]):
                found.append(cells[_Cell.PROCESS])
        return found

    def strike(self) -> None:
        """Sends a signal to one of the workers that train."""
        number = self.random.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
        pids = self.training()
        if pids:
            os.kill(self.random.choice(pids), number)
            self.faults.append(number.name)

    def kill_launcher(self) -> None:
        """Kills the launcher, waits until everything is gone, and starts it again."""
        pids = self.training()
        self.launched.send(signal.SIGKILL)
        began = time.monotonic()
        while any(map(is_alive, pids)):
            assert time.monotonic() < began + 5, "workers outlived the launcher"
            time.sleep(0.05)
        self.logs.append(self.launched.end()[2])
        self.faults.append("launcher")
        self.start()

    def finish(self, seconds: float) -> None:
        code, _, err = self.launched.end(seconds)
        self.logs.append(err)
        assert code == 0, err[-3000:]

    def report(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.began
        repeated = [int(count) for count in re.findall("([0-9]+) step.s. are repeated", "\n".join(self.logs))]
        trained = EPOCHS * STEPS_PER_EPOCH
        useful = trained * 0.15
        return {
            "faults": {name: self.faults.count(name) for name in sorted(set(self.faults))},
            "restarts": len(repeated),
            "repeated_steps": sum(repeated),
            "of_steps": trained,
            "seconds": round(seconds),
            "share_of_time_lost": round(1 - useful / seconds, 2),
        }


@pytest.mark.parametrize("victim", ["workers", "launcher"])
def test_random_faults_leave_no_trace(
    tmp_path: Path, reference: Path, victim: str, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    launched = Job(tmp_path, seed)
    while time.monotonic() < launched.began + SECONDS and launched.launched.process.poll() is None:
        time.sleep(launched.random.uniform(5, 20))
        if victim == "launcher" and launched.random.random() < 0.3:
            launched.kill_launcher()
        elif launched.launched.process.poll() is None:
            launched.strike()
    launched.finish(1200)
    report = launched.report()
    print(report)
    record_property("report", report)
    assert sum(report["faults"].values()) >= 5
    for index in range(WORKERS):
        assert_same_run(reference / f"run-worker{index}", tmp_path / f"run-worker{index}")

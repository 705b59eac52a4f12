"""`kdc launch` with plain Python workers, each of which does what a plan says for its place and attempt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_dist_callbacks.launch import worker
from tests.support import ROOT

# Plans are keyed by "<attempt>.<worker>", or by the attempt for all its workers; what has no plan ends with 0.
WORKER = """
import json, os, signal, sys, time
index = json.loads(os.environ.get("TF_CONFIG", '{{"task": {{"index": 0}}}}'))["task"]["index"]
attempt = os.environ["KDC_ATTEMPT"]

def on(number, code):
    signal.signal(number, lambda *_: os._exit(code))

def die(number):
    os.kill(os.getpid(), number)

def stay():
    open(f"up-{{attempt}}.{{index}}", "w").close()
    time.sleep(120)

def after(place):
    while not os.path.exists(f"up-{{place}}"):
        time.sleep(0.01)

def trained(step, backup=None, fit=1):
    from keras_dist_callbacks.base.progress_file import progress_file
    file = progress_file()
    for _ in range(fit):
        file.begin_fit("backup")
    file.backup("backup", backup)
    file.begin_epoch(0, 0)
    file.step_done(step)
    return file

with open("starts", "a") as file:
    file.write(f"{{attempt}}.{{index}} {{os.getpid()}}\\n")
plan = {plan!r}
exec(plan.get(f"{{attempt}}.{{index}}", plan.get(attempt, plan.get("*", ""))))
"""
LAUNCH = """
import json, sys
from keras_dist_callbacks.launch import launcher
from keras_dist_callbacks.launch.launch_options import LaunchOptions
options = json.loads(sys.argv[1])
sys.exit(launcher.launch(LaunchOptions(**options | {"command": tuple(options["command"])})))
"""


RUNNING: list[subprocess.Popen[bytes]] = []
"""Launchers that a test has started, to be killed when it fails."""


class Launched:
    """A running launcher."""

    def __init__(
        self, directory: Path, plan: Mapping[str, str], env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self.directory = directory
        (directory / "worker.py").write_text(WORKER.format(plan=dict(plan)))
        by = worker.COMMAND if options.get("standby") else (sys.executable,)
        command = options.pop("command", [*by, "worker.py"])
        given = json.dumps({"command": command, **options})
        with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, given],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
                stdout=out,
                stderr=err,
            )
        RUNNING.append(self.process)

    def started_runs(self) -> list[str]:
        """Which workers were started, as `<attempt>.<worker>`."""
        return [line.split()[0] for line in self._started()]

    def pids(self) -> list[int]:
        """The process ids of all of them."""
        return [int(line.split()[1]) for line in self._started()]

    def wait_for_starts(self, count: int) -> None:
        """Waits until so many workers have started."""
        wait_for(lambda: len(self._started()) >= count)

    def wait_until_up(self, count: int) -> None:
        """Waits until so many workers stay, as their plans say."""
        wait_for(lambda: len(list(self.directory.glob("up-*"))) >= count)

    def send(self, number: int) -> None:
        """Sends a signal to the launcher that the user knows."""
        self.process.send_signal(number)

    def end(self, seconds: float = 60.0) -> tuple[int, str, str]:
        """Waits for the end: exit code, standard output and error."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            raise
        out, err = ((self.directory / name).read_text() for name in ("out", "err"))
        return self.process.returncode, out, err

    def _started(self) -> Sequence[str]:
        path = self.directory / "starts"
        return path.read_text().splitlines() if path.exists() else []


def kill_running() -> None:
    """Kills the launchers that a test has left running; everything that they have started ends with them."""
    while RUNNING:
        process = RUNNING.pop()
        process.kill()
        process.wait(10)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)

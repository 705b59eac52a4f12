"""Processes that an input or a callback starts are as they would be without this package."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import ROOT, forks_job

pytestmark = [pytest.mark.process, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(300)]
LONGEST = 120.0


class Job:
    """A process in a group of its own, and what it starts."""

    def __init__(self, kind: str, directory: Path, *options: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.log = directory, directory / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forks_job", kind, str(directory), *options],
                cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_for_steps(self, count: int) -> None:
        deadline = time.monotonic() + LONGEST
        while len(steps(self.directory)) < count:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "too slow"
            time.sleep(0.01)

    def wait(self) -> int:
        return self.process.wait(LONGEST)

    @property
    def orphans(self) -> list[str]:
        """Members of the group that are left; multiprocessing's resource trackers take a moment to end."""
        deadline = time.monotonic() + 10.0
        while (left := members(self.process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


def members(group: int) -> list[str]:
    listed = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [row[2] for row in rows if int(row[0]) == group and not row[1].startswith("Z")]


def steps(directory: Path) -> list[str]:
    path = directory / "steps"
    return path.read_text().splitlines() if path.exists() else []


def end(directory: Path) -> str:
    return (directory / "end").read_text()


@pytest.fixture(scope="module")
def plain_end(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights without this package's callbacks; no kind has an influence on them."""
    directory = tmp_path_factory.mktemp("plain")
    with Job("none", directory, "--plain") as job:
        assert job.wait() == 0, job.log.read_text()
    return end(directory)


def rerun(kind: str, directory: Path, plain_end: str) -> None:
    with Job(kind, directory) as job:
        assert job.wait() == 0, job.log.read_text()
        assert job.orphans == []
    assert "exact" in job.log.read_text()
    assert end(directory) == plain_end


def check_run(kind: str, directory: Path, plain_end: str) -> None:
    with Job(kind, directory) as job:
        assert job.wait() == 0, job.log.read_text()
        assert job.orphans == []
    assert end(directory) == plain_end


def check_preempted(kind: str, directory: Path, plain_end: str, *, group: bool) -> None:
    with Job(kind, directory) as job:
        job.wait_for_steps(5)
        (os.killpg if group else os.kill)(job.process.pid, signal.SIGTERM)
        assert job.wait() == 138, job.log.read_text()
        assert job.orphans == []
        log = job.log.read_text()
    rerun(kind, directory, plain_end)
    if group and kind == "torch":
        return  # its SIGCHLD handler raises within a step, whose state is not saved: steps are trained again
    # A worker of a pool that the signal kills in its task never answers: the step around it cannot end.
    has_hung = group and kind == "pool" and "the grace period of" in log
    assert len(steps(directory)) == 3 * forks_job.BATCHES + has_hung, "a step was trained twice, or skipped"


KINDS = [kind for kind in forks_job.KINDS if kind != "none" and (kind != "torch" or find_spec("torch") is not None)]


@pytest.mark.chaos
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_any_processes_ends_as_without_this_package(kind: str, tmp_path: Path, plain_end: str) -> None:
    check_run(kind, tmp_path, plain_end)


@pytest.mark.chaos
@pytest.mark.parametrize("group", [False, True], ids=["parent", "group"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_preempted_run_with_any_processes_loses_no_step(
    kind: str, group: bool, tmp_path: Path, plain_end: str
) -> None:
    check_preempted(kind, tmp_path, plain_end, group=group)


def check_child(directory: Path, *options: str) -> str:
    """What a daemonic child does at SIGTERM: its exit code, and that of the job."""
    with Job("daemon", directory, *options) as job:
        job.wait_for_steps(2)
        (child,) = children(job.process.pid)
        os.kill(child, signal.SIGTERM)
        deadline = time.monotonic() + 10.0
        while child in children(job.process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        ended = child not in children(job.process.pid)
        return f"child ended: {ended}, job: {job.wait()}"


def children(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-e", "-o", "ppid=,pid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for ppid, pid, stat in rows if int(ppid) == parent and not stat.startswith("Z")]


@pytest.mark.chaos
def test_a_child_that_gets_sigterm_ends_and_training_does_not(tmp_path: Path) -> None:
    assert check_child(tmp_path / "plain", "--plain") == "child ended: True, job: 0"
    assert check_child(tmp_path / "ours") == "child ended: True, job: 0"

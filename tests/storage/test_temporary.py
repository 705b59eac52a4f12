"""Temporary directories of killed processes are deleted by the next process, those of living ones never."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_dist_callbacks.base import machine
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.storage import temporary
from tests.support import ROOT
from tests.support.leftovers import leftovers

HOLD = """
import os, sys, time
from keras_dist_callbacks.storage import temporary
directory = temporary.make_directory("artifact")
(directory / "model.keras").write_bytes(bytes(1000))
if sys.argv[1:] == ["fork"]:
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
else:
    print(directory, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this process and those that it starts make temporary files."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setattr(shared(temporary.Directories), "own", {})
    yield place
    temporary.delete_own()


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(started: list[subprocess.Popen[str]], *arguments: str) -> str:
    """Starts a process that holds a temporary directory; the line that it prints."""
    command = [sys.executable, "-c", HOLD, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=-1, text=True)
    started.append(process)
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.kill
def test_the_directory_of_a_killed_process_is_deleted_and_that_of_a_living_one_stays(
    tmpdir: Path, started: list[subprocess.Popen[str]]
) -> None:
    dead, alive = Path(start(started)), Path(start(started))
    started[0].kill()
    started[0].wait()
    with temporary.directory("restore") as own:
        assert own.is_dir()
        assert not dead.parent.exists()
        assert (alive / "model.keras").stat().st_size == 1000
    assert len(list(tmpdir.iterdir())) == 2


@pytest.mark.kill
def test_a_forked_child_that_outlives_its_killed_parent_does_not_keep_the_directory(
    tmpdir: Path, started: list[subprocess.Popen[str]]
) -> None:
    child = int(start(started, "fork"))
    started[0].kill()
    started[0].wait()
    try:
        os.kill(child, 0)
        temporary.make_directory("restore")
        assert not list(tmpdir.glob("kdc-*/artifact-*"))
        os.kill(child, 0)
    finally:
        os.kill(child, 9)


@pytest.mark.process
def test_a_forked_child_has_a_directory_of_its_own(tmpdir: Path) -> None:
    mine = temporary.make_directory("artifact").parent
    child = os.fork()
    if child == 0:
        same = temporary.make_directory("artifact").parent == mine
        os._exit(1 if same else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert mine.is_dir()


def of_this_kernel() -> str:
    return f"kdc-{str(machine.boot_id()).replace('-', '')[:16]}-x"


def abandoned(tmpdir: Path, name: str) -> Path:
    """A directory that no process has locked."""
    path = tmpdir / name
    (path / "artifact-1").mkdir(parents=True)
    (path / "artifact-1/model.keras").write_bytes(b"model")
    (path / "lock").touch()
    return path


def test_a_directory_of_another_running_kernel_is_not_judged(tmpdir: Path) -> None:
    """Its process may live on another host that shares the directory, where locks do not reach."""
    other, dead = abandoned(tmpdir, f"kdc-{'0' * 16}-x"), abandoned(tmpdir, of_this_kernel())
    temporary.make_directory("restore")
    assert other.exists()
    assert not dead.exists()


def test_where_the_running_kernel_is_not_known_nothing_is_deleted(
    tmpdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = abandoned(tmpdir, of_this_kernel())
    monkeypatch.setattr(machine, "PROC", tmpdir / "missing")
    assert temporary.make_directory("restore").is_dir()
    assert dead.exists()


def test_a_directory_of_another_account_is_not_judged(tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = abandoned(tmpdir, of_this_kernel())
    monkeypatch.setattr(temporary.os, "geteuid", lambda: dead.stat().st_uid + 1)
    temporary.make_directory("restore")
    assert dead.exists()


@pytest.mark.parametrize("where", ["directory", "lock"])
def test_links_are_not_followed(tmpdir: Path, tmp_path: Path, where: str) -> None:
    theirs = abandoned(tmp_path, "theirs")
    path = tmpdir / of_this_kernel()
    if where == "directory":
        path.symlink_to(theirs)
    else:
        path.mkdir()
        (path / "lock").symlink_to(theirs / "lock")
    temporary.make_directory("restore")
    assert (theirs / "artifact-1/model.keras").exists()
    assert path.exists()


def test_what_is_to_be_kept_is_moved_out_of_reach(tmpdir: Path) -> None:
    path = temporary.make_directory("tensorboard")
    (path / "events").write_bytes(b"1")
    kept = temporary.keep(path)
    temporary.delete_own()
    temporary.make_directory("restore")
    assert (kept / "events").read_bytes() == b"1"
    assert kept.parent == tmpdir


def test_a_directory_that_something_else_deleted_is_made_again(tmpdir: Path) -> None:
    first = temporary.make_directory("artifact")
    temporary.shutil.rmtree(first.parent)
    assert temporary.make_directory("artifact").is_dir()


def test_files_and_directories_of_a_block_are_gone_after_it(tmpdir: Path) -> None:
    with temporary.file("record") as file, temporary.directory("restore") as directory:
        assert Path(file.name).exists()
        assert directory.is_dir()
    assert leftovers(tmpdir) == []


@pytest.mark.kill
def test_a_process_that_ends_by_itself_leaves_nothing(tmpdir: Path) -> None:
    code = HOLD.replace("time.sleep(60)", "pass")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    assert list(tmpdir.iterdir()) == []


@pytest.mark.chaos
@pytest.mark.kill
def test_many_processes_that_start_at_once_do_not_delete_each_others_directories(
    tmpdir: Path, started: list[subprocess.Popen[str]]
) -> None:
    code = """
import sys, time
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.storage import temporary
for _ in range(200):
    shared(temporary.Directories).own.clear()  # as another process
    path = temporary.make_directory("artifact")
    time.sleep(0.0005)
    assert path.is_dir()
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env) for _ in range(4)]
    deadline = time.monotonic() + 60
    assert [process.wait(max(1, deadline - time.monotonic())) for process in running] == [0] * 4

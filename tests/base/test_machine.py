"""This machine's processes: when one began, and that nothing is taken for ended that may live."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_dist_callbacks.base import machine


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.process
def test_a_process_has_ended_when_it_was_killed_whether_or_not_its_parent_has_noticed(
    other: subprocess.Popen[bytes],
) -> None:
    began = machine.process_began(other.pid)
    assert began is not None
    assert not machine.has_ended(other.pid, began)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it is left as a zombie
    assert machine.has_ended(other.pid, began)
    assert machine.process_began(other.pid) is None
    other.wait()
    assert machine.has_ended(other.pid, began)
    assert machine.process_began(other.pid) is None


def test_another_process_with_a_used_id_is_not_the_one_that_had_it() -> None:
    began = machine.process_began(os.getpid())
    assert began is not None
    assert machine.has_ended(os.getpid(), began - 1)
    assert not machine.has_ended(os.getpid(), began)


def test_the_start_of_a_process_does_not_change_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    began, start = machine.process_began(os.getpid()), machine.process_start()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 1200.0)
    assert machine.process_began(os.getpid()) == began
    assert machine.process_start() == pytest.approx(start - 1200.0, abs=1.0)  # it is told by the clock in use


@pytest.mark.process
def test_a_process_started_when_it_did() -> None:
    code = "from keras_dist_callbacks.base import machine; print(machine.process_start())"
    before = time.time()
    started = float(subprocess.check_output([sys.executable, "-c", code]))
    assert before - 0.1 < started < time.time()  # in ticks of 10 ms, and the clock may be adjusted


def test_a_program_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(f"7 (a) Z 1 {'9 ' * 20}) S {'1 ' * 18}4711 0 0")
    assert machine.process_began(7) == 4711


@pytest.mark.parametrize(
    "content", [None, "", "7 (a)", f"7 (a) S {'x ' * 30}"], ids=["hidden", "empty", "short", "foreign"]
)
def test_where_proc_says_nothing_a_living_process_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    mine = tmp_path / str(os.getpid())
    mine.mkdir()
    if content is not None:
        (mine / "stat").write_text(content)
    monkeypatch.setattr(machine, "PROC", tmp_path)
    assert machine.process_began(os.getpid()) is None
    assert not machine.has_ended(os.getpid(), 1)
    assert not machine.has_ended(2**70, 1)
    assert machine.boot_id() is None
    assert machine.process_namespace() is None
    assert machine.process_start() <= time.time()


def test_a_namespace_is_known_with_the_boot_of_the_kernel_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = machine.process_namespace()
    assert known is not None
    assert machine.boot_id() in known.split()
    assert f"pid:[{Path('/proc/self/ns/pid').stat().st_ino}]" in known.split()
    monkeypatch.setattr(machine, "PROC", tmp_path)
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[1]")
    assert machine.process_namespace() is None

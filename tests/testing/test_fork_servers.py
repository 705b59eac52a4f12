"""Fork servers and their workers live as long as they should, are shared, and refuse what would not survive a fork."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import ClusterError, ConfigError
from keras_dist_callbacks.base.process import PARTS
from keras_dist_callbacks.testing import LocalCluster, local_cluster
from keras_dist_callbacks.testing import fork_servers as module
from keras_dist_callbacks.testing.fork_servers import (
    ForkServers,
    PreloadedProcess,
    Process,
    has_relative_path,
    is_cpu_only,
    read_at_import,
    start_process,
)
from tests.support.launching import is_alive, wait_for

QUICK = ("json",)
SLEEP = "import time; print('up', flush=True); time.sleep(300)"
CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
open("child.tmp", "w").write(str(child.pid))
os.rename("child.tmp", "child")
print("up", flush=True)
"""
Start = Callable[..., PreloadedProcess]


def code_of(process: Process) -> int | None:
    wait_for(lambda: process.poll() is not None)
    return process.poll()


@pytest.fixture(autouse=True)
def own_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServers]:
    own = ForkServers()
    monkeypatch.setitem(PARTS, module.ForkServers, own)
    yield own
    own.close()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.chdir(tmp_path)
    count = 0

    def start_program(text: str, preload: Sequence[str] = QUICK, **env: str) -> Process:
        nonlocal count
        count += 1
        Path("program.py").write_text(text)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(tmp_path), **env}
        process = start_process([sys.executable, "program.py"], environment, Path(f"log-{count}"), preload)
        if "up" in text:
            wait_for(lambda: "up" in process.log.read_text())
        return process

    return start_program


def server_of(process: PreloadedProcess) -> int:
    return process.server.pid


# --- lives


@pytest.mark.kill
def test_a_signal_reaches_the_worker_alone_and_nothing_happens_after_its_end(start: Start) -> None:
    process = start(
        CHILD + "import signal; signal.signal(15, lambda *_: sys.exit(5))\nprint('ready', flush=True)\n" + SLEEP
    )
    wait_for(lambda: "ready" in process.log.read_text())
    child = int(Path("child").read_text())
    with pytest.raises(OSError, match="Invalid argument"):
        process.send(999)
    process.send(0)
    process.send(signal.SIGTERM)
    assert code_of(process) == 5
    wait_for(lambda: not is_alive(child))  # its group dies with it
    process.send(signal.SIGKILL)
    process.end("a note that is not written")
    assert process.poll() == 5
    assert "note" not in process.log.read_text()


@pytest.mark.kill
def test_a_worker_that_is_terminated_is_gone_with_its_group_and_its_log_says_why(start: Start) -> None:
    process = start(CHILD + SLEEP)
    child = int(Path("child").read_text())
    process.end("the reason")
    assert not Path(f"/proc/{process.pid}").exists()  # not even a zombie
    wait_for(lambda: not is_alive(child))
    assert process.poll() == -signal.SIGKILL
    assert process.log.read_text().endswith("\n[local cluster] the reason\n")


@pytest.mark.chaos
@pytest.mark.kill
def test_a_forgotten_worker_is_terminated(start: Start) -> None:
    pid = start(SLEEP).pid
    gc.collect()
    wait_for(lambda: not is_alive(pid))


@pytest.mark.kill
def test_a_worker_that_ends_while_its_end_is_ordered_leaves_the_server_alive(start: Start) -> None:
    process = start(SLEEP)
    server, pid = server_of(process), process.pid
    os.kill(server, signal.SIGSTOP)  # it hears of both at once
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    later = threading.Timer(0.5, os.kill, (server, signal.SIGCONT))
    later.start()
    process.end()
    later.join()
    assert process.poll() == -signal.SIGKILL
    assert server_of(start(SLEEP)) == server


@pytest.mark.kill
def test_a_killed_server_takes_its_workers_along_and_the_next_one_is_another(start: Start) -> None:
    first, second = start(CHILD + SLEEP), start(SLEEP)
    assert server_of(first) == server_of(second)
    pids = [first.pid, second.pid, int(Path("child").read_text())]
    os.kill(server_of(first), signal.SIGKILL)
    assert [code_of(first), code_of(second)] == [-signal.SIGKILL] * 2
    wait_for(lambda: not any(map(is_alive, pids)))
    first.send(signal.SIGTERM)
    first.end("too late")
    third = start(SLEEP)
    assert server_of(third) != server_of(first)
    assert third.poll() is None


@pytest.mark.kill
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit()", "os._exit(1)", "raise ValueError"])
def test_everything_is_gone_with_the_owner(tmp_path: Path, end: str) -> None:
    (tmp_path / "program.py").write_text(CHILD + SLEEP)
    (tmp_path / "owner.py").write_text(f"""
import os, sys, time
from pathlib import Path
from keras_dist_callbacks.testing.fork_servers import start_process
env = {{**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}}
process = start_process([sys.executable, "program.py"], env, Path("log"), ["json"])
while "up" not in Path("log").read_text(): time.sleep(0.01)
print(process.pid, process.server.pid, Path("child").read_text(), flush=True)
{end}
""")
    done = subprocess.run([sys.executable, "owner.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    pids = [int(text) for text in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    wait_for(lambda: not any(map(is_alive, pids)))


@pytest.mark.kill
def test_a_fork_of_the_owner_neither_ends_the_workers_nor_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SLEEP)
    (tmp_path / "owner.py").write_text("""
import os, sys, time
from pathlib import Path
from keras_dist_callbacks.testing.fork_servers import start_process
env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
process = start_process([sys.executable, "program.py"], env, Path("log"), ["json"])
if os.fork() == 0:
    if os.fork() == 0:  # stays, without the socket
        os.closerange(0, 3)
        time.sleep(30)
        os._exit(0)
    sys.exit(0)  # runs its exit handlers
os.wait()
time.sleep(0.3)
print(process.poll(), process.pid, process.server.pid, flush=True)
os._exit(0)
""")
    done = subprocess.run([sys.executable, "owner.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    state, *pids = done.stdout.split()
    assert (state, len(pids)) == ("None", 2), done.stderr
    wait_for(lambda: not any(map(is_alive, map(int, pids))))


@pytest.mark.process
def test_few_idle_servers_are_kept(start: Start, own_servers: ForkServers) -> None:
    busy = start(SLEEP, OMP_NUM_THREADS="1")
    others = [start("", OMP_NUM_THREADS=str(number)) for number in (2, 3)]
    for process in others:
        code_of(process)
    last = start("", OMP_NUM_THREADS="4")
    assert not is_alive(server_of(others[0]))  # of the idle ones it was used longest ago
    assert all(is_alive(server_of(process)) for process in (busy, others[1], last))
    assert busy.poll() is None
    assert others[0].poll() == 0
    own_servers.close()
    assert busy.poll() == -signal.SIGKILL
    assert not is_alive(busy.pid)


@pytest.mark.process
def test_a_server_is_shared_unless_the_environment_is_read_at_import(start: Start) -> None:
    first = server_of(start(""))
    assert server_of(start("", TF_CONFIG="{}", MINE="1", PYTEST_CURRENT_TEST="x")) == first
    assert server_of(start("", OMP_NUM_THREADS="7")) != first
    assert server_of(start("", ("json", "csv"))) != first


@pytest.mark.process
@pytest.mark.parametrize("preload", [QUICK, ()])
def test_the_end_can_be_waited_for_also_after_it_was_noticed(start: Start, preload: Sequence[str]) -> None:
    process = start(SLEEP, preload)
    assert select.select([process.end_descriptor], [], [], 0)[0] == []
    process.send(signal.SIGTERM)
    assert select.select([process.end_descriptor], [], [], 20)[0] == [process.end_descriptor]
    assert code_of(process) == -signal.SIGTERM
    process.send(signal.SIGTERM)
    assert select.select([process.end_descriptor], [], [], 0)[0] == [process.end_descriptor]


# --- refusals


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "threads",
            "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
            "threads",
        ),
        (
            "tensorflow/python/eager/context",
            "class Context: _initialized = True\n_context = Context()",
            "TensorFlow's runtime",
        ),
    ],
)
def test_what_would_not_survive_a_fork_is_refused(
    start: Start, tmp_path: Path, name: str, text: str, message: str
) -> None:
    file = tmp_path / "lib" / f"{name}.py"
    file.parent.mkdir(parents=True)
    for parent in file.relative_to(tmp_path / "lib").parents[:-1]:
        (tmp_path / "lib" / parent / "__init__.py").write_text("")
    file.write_text(text)
    with pytest.raises(ClusterError, match=f"{message}.*without preload=True"):
        start("", [name.replace("/", ".")], PYTHONPATH=str(tmp_path / "lib"))


@pytest.mark.slow
@pytest.mark.process
def test_a_real_tensorflow_context_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "begins.py").write_text("import tensorflow as tf\ntf.constant(1.0)")
    with pytest.raises(ClusterError, match="TensorFlow's runtime"):
        start("", ["begins"])


@pytest.mark.slow
@pytest.mark.process
def test_a_real_loop_of_fsspec_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "begins.py").write_text("import fsspec.asyn\nfsspec.asyn.get_loop()")
    with pytest.raises(ClusterError, match="threads"):
        start("", ["begins"])


# --- LocalCluster


@pytest.mark.kill
@pytest.mark.cluster
@pytest.mark.parametrize("preload", [False, True])
def test_a_cluster_is_the_same_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preload: bool) -> None:
    monkeypatch.setattr(local_cluster, "PRELOADED", QUICK)
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, sys, time\n"
        "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "print('worker', index, sys.argv[1:], os.environ['STARTER'] == str(os.getppid()), flush=True)\n"
        "if index == 0 or '--stay' in sys.argv: time.sleep(300)\n"
        "os.kill(os.getpid(), 15)\n"
    )
    command, env = [sys.executable, str(program)], {"STARTER": str(os.getpid())}
    with LocalCluster(command, 2, tmp_path / "logs", env, grace=0.3, preload=preload) as cluster:
        cluster.start()
        assert cluster.wait(30) == [-9, -15]
        is_ours = not preload  # else it is a child of a fork server
        assert cluster.log(0).startswith(f"worker 0 [] {is_ours}\n\n[local cluster] killed: it did not exit")
        assert cluster.log(1) == f"worker 1 [] {is_ours}\n"
        cluster.restart(["--stay"])
        wait_for(lambda: all("--stay" in cluster.log(index) for index in range(2)))
        with pytest.raises(ClusterError, match="are still running"):
            cluster.start()
        cluster.kill(1, signal.SIGKILL)
        wait_for(lambda: cluster.poll() == [None, -9])
        pid = cluster.pid(0)
    assert cluster.poll() == [-9, -9]
    assert not is_alive(pid)
    assert cluster.log(0).endswith("\n[local cluster] killed by the local cluster at its end\n")


@pytest.mark.process
def test_a_log_that_cannot_be_written_raises_as_for_a_fresh_process(start: Start, tmp_path: Path) -> None:
    (tmp_path / "log-1").mkdir()
    with pytest.raises(IsADirectoryError):
        start("")


@pytest.mark.process
def test_another_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-program"):
        start_process(["no-such-program", "x.py"], {"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path / "log", QUICK)


# --- the environment


def test_which_variables_are_the_server_s_own() -> None:
    own = {
        "PYTHONPATH": "a",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "KERAS_BACKEND": "x",
        "LANG": "C",
        "HOME": "/",
        "CUDA_X": "1",
    }
    workers = {"TF_CONFIG": "{}", "MINE": "1", "AWS_PROFILE": "x", "PATH": "/bin", "PWD": "/", "TMPDIR": "/"}
    assert read_at_import({**workers, **own}) == own
    assert [is_cpu_only({"CUDA_VISIBLE_DEVICES": text}) for text in ("-1", "", "0")] == [True, True, False]
    assert not is_cpu_only({})
    assert [has_relative_path({"PYTHONPATH": text}) for text in ("", "/a:/b", "/a:", "a")] == [False, False, True, True]
    assert not has_relative_path({})

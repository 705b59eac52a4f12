"""`kdc launch` restarts, stops and exits by its rules; plain Python workers take the place of trainings."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import sys
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.cluster.roles import Role
from keras_dist_callbacks.launch.processes import is_free, reserve_ports
from tests.support import refuse_plain_text
from tests.support.launching import Launched, is_alive, wait_for

pytestmark = pytest.mark.kill

DIE = "die(9)"
SHELL = f"{sys.executable} worker.py; exit $?"


@dataclass(frozen=True)
class Case:
    """What is launched, and what comes of it.

    Attributes:
        plan: What each worker does.
        code: The launcher's exit code.
        starts: How many workers are started in all.
        says: Texts of the launcher's lines.
        options: Of the launcher.
        signals: Sent to it once `up` workers run.
        up: How many workers must have started by then.
    """

    plan: dict[str, str]
    code: int
    starts: int
    says: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    signals: tuple[int, ...] = ()
    up: int = 1

    __post_init__ = refuse_plain_text


TWO = {"workers": 2}
CASES = {
    "success": Case({}, 0, 1),
    "success of two": Case({}, 0, 2, options=TWO),
    "restart code": Case(
        {"0": "sys.exit(138)"}, 0, 2, ("worker 0 exited with code 138 (asks for a restart)", "attempt 1")
    ),
    "SIGTERM code": Case({"0": "sys.exit(143)"}, 0, 2, ("exited with code 143 (SIGTERM)",)),
    "SIGKILL in a shell": Case(
        {"0": DIE}, 0, 2, ("worker 0 exited with code 137 (SIGKILL)",), {"command": ["sh", "-c", SHELL]}
    ),
    "SIGSEGV in a shell": Case(
        {"0": "die(11)"}, 0, 2, ("exited with code 139 (SIGSEGV)",), {"command": ["sh", "-c", SHELL]}
    ),
    "no signal": Case({"*": "sys.exit(128 + 32)"}, 160, 1, ("code 160; this error would be raised again",)),
    "signal": Case({"0": DIE}, 0, 2, ("worker 0 was terminated by SIGKILL", "no worker reported progress")),
    "crash": Case({"0": "die(signal.SIGSEGV)"}, 0, 2, ("terminated by SIGSEGV",)),
    "error": Case({"*": "sys.exit(1)"}, 1, 1, ("exited with code 1; this error would be raised again",)),
    "another code": Case({"*": "sys.exit(77)"}, 77, 1),
    "error with a restart": Case({"0": "sys.exit(1)"}, 0, 2, options={"restart_on_error": True}),
    "no restarts": Case({"*": DIE}, 137, 1, ("--max-restarts is 0",), {"max_restarts": 0}),
    "no restarts of 138": Case({"*": "sys.exit(138)"}, 138, 1, options={"max_restarts": 0}),
    "used up": Case(
        {"*": DIE},
        1,
        3,
        ("restarting does not help: 2 restart(s) in a row left no newer backup", "in 1 s"),
        {"max_restarts": 2},
    ),
    "used up by errors": Case(
        {"*": "sys.exit(5)"}, 1, 2, ("restarting does not help",), {"max_restarts": 1, "restart_on_error": True}
    ),
    "progress": Case(
        {"*": "n = int(attempt); trained(10 * n + 5, 10 * n)\nif n < 4: die(9)"},
        0,
        5,
        ("attempt 2 starts from the backup of step 10; 5 steps are repeated",),
        {"max_restarts": 1},
    ),
    "the same backup again is no progress": Case(
        {"*": "trained(15, 10); die(9)"},
        1,
        2,
        (
            "restarting does not help: 1 restart(s) in a row left no newer backup than that of step 10 in backup; "
            "`kdc rollback backup --before-step 10` lets it continue from an older one, if there is one\n",
        ),
        {"max_restarts": 1},
    ),
    "a backup that cannot be restored": Case(
        {"0": "trained(15, 10); die(9)", "*": "trained(0).forget_backup('backup'); die(9)"},
        1,
        3,
        ("2 restart(s) in a row left no newer backup than that of step 10 in backup; `kdc rollback backup --before",),
        {"max_restarts": 2},
    ),
    "a backup of a later fit is progress": Case(
        {"0": "trained(90, 80); die(9)", "1": "trained(5, 2, fit=2); die(9)"}, 0, 3, options={"max_restarts": 1}
    ),
    "no backup": Case({"0": "trained(7); die(9)"}, 0, 2, ("starts from the beginning; 7 steps are repeated",)),
    "a backup that was deleted": Case(
        {"0": "trained(16, 16).backup('backup', None); die(9)"}, 0, 2, ("from the beginning; 16 steps are repeated",)
    ),
    "what follows a deleted backup is progress": Case(
        {
            "0": "trained(16, 16).backup('backup', None); die(9)",
            "1": "trained(7, 5); die(9)",
            "2": "trained(9, 8); die(9)",
        },
        0,
        4,
        ("attempt 3 starts from the backup of step 8; 1 step is repeated",),
        {"max_restarts": 1},
    ),
    "a deleted backup each time": Case(
        {"*": "trained(16, 16).backup('backup', None); die(9)"},
        1,
        2,
        ("1 restart(s) in a row left no backup in backup\n",),
        {"max_restarts": 1},
    ),
    "a worker that has not looked for its backup": Case(
        {"0": "trained(16, 14); die(9)", "1": "trained(0).forget_backup('backup'); die(9)"},
        0,
        3,
        ("attempt 1 starts from the backup of step 14; 2 steps are repeated", "attempt 2 starts in 1 s\n"),
        {"max_restarts": 2},
    ),
    "a deleted backup of an earlier fit": Case(
        {"0": "f = trained(16); f.begin_fit('2'); f.backup('2', 4); f.step_done(6); die(9)"},
        0,
        2,
        ("starts from the backup of step 4; 18 steps are repeated",),
    ),
    "the first failure decides for a restart": Case(
        {"0.0": "on(15, 1); stay()", "0.1": "after('0.0'); die(9)"}, 0, 4, ("worker 1 was terminated",), TWO
    ),
    "the first failure decides against a restart": Case(
        {"0.0": "on(15, 138); stay()", "0.1": "after('0.0'); sys.exit(3)"}, 3, 2, ("worker 1 exited with code 3",), TWO
    ),
    "others are killed after the grace period": Case(
        {"0.0": "signal.signal(15, signal.SIG_IGN); stay()", "0.1": "after('0.0'); die(9)"},
        0,
        4,
        options={**TWO, "grace": 0.5},
    ),
    "one that is done does not stop others": Case({"0.0": "time.sleep(0.5)"}, 0, 2, options=TWO),
    "SIGTERM after a backup": Case(
        {"0": "on(15, 138); stay()"}, 138, 1, ("asks for a restart",), signals=(signal.SIGTERM,)
    ),
    "SIGTERM without a handler": Case({"0": "stay()"}, 138, 1, signals=(signal.SIGTERM,)),
    "SIGTERM and the end": Case({"0": "on(15, 0); stay()"}, 138, 1, signals=(signal.SIGTERM,)),
    "SIGTERM to two": Case(
        {"0.0": "on(15, 138); stay()", "0.1": "on(15, 0); stay()"}, 138, 2, (), TWO, (signal.SIGTERM,), 2
    ),
    "SIGTERM and an error": Case(
        {"0.0": "on(15, 138); stay()", "0.1": "on(15, 4); stay()"}, 4, 2, (), TWO, (signal.SIGTERM,), 2
    ),
    "SIGTERM, and one hangs": Case(
        {"0": "signal.signal(15, signal.SIG_IGN); stay()"}, 137, 1, (), {"grace": 0.5}, (signal.SIGTERM,)
    ),
    "SIGHUP": Case({"0": "on(1, 138); stay()"}, 138, 1, signals=(signal.SIGHUP,)),
    "SIGHUP without a handler": Case({"0": "stay()"}, 129, 1, signals=(signal.SIGHUP,)),
    "SIGINT": Case({"0": "on(2, 0); stay()"}, 130, 1, signals=(signal.SIGINT,)),
    "a second SIGINT kills": Case(
        {"0": "signal.signal(2, lambda *_: open('heard', 'w')); stay()\nstay()"},
        130,
        1,
        signals=(signal.SIGINT, signal.SIGINT),
    ),
    "SIGUSR1 is passed on, and restarts": Case({"0": "on(10, 138); stay()"}, 0, 2, signals=(signal.SIGUSR1,)),
    "SIGUSR2 is passed on": Case({"0": "on(12, 0); stay()"}, 0, 1, signals=(signal.SIGUSR2,)),
    "SIGTERM between two runs": Case({"*": DIE}, 138, 3, signals=(signal.SIGTERM,), up=3, options={"max_restarts": 9}),
    "a hang": Case(
        {"0": "trained(17, 10); stay()"},
        0,
        2,
        ("worker 0 hung in a step, without progress for 1 s: SIGABRT", "after step 17\n", "Current thread", "in stay"),
        {"hang_timeout": 1.0},
    ),
    "a hang that ignores SIGABRT": Case(
        {"0": "signal.signal(6, signal.SIG_IGN); trained(17, 10); stay()"},
        0,
        2,
        ("hung in a step",),
        {"hang_timeout": 1},
    ),
    "its time is over": Case(
        {"*": "trained(15, 10).stop_at(time.time() - 1); die(9)"},
        138,
        1,
        ("terminated by SIGKILL, after step 15; its time is over, so there is no restart: start the job again",),
    ),
    "its time is over after 138": Case({"*": "trained(15, 10).stop_at(time.time()); sys.exit(138)"}, 138, 1),
    "its time is over before an attempt that does not report it": Case(
        {"0": "trained(15, 10).stop_at(time.time() + 2); die(9)", "1": "time.sleep(3); die(9)"}, 138, 2
    ),
    "an error when its time is over": Case({"*": "trained(15, 10).stop_at(time.time()); sys.exit(1)"}, 1, 1),
    "there is time left": Case({"0": "trained(15, 10).stop_at(time.time() + 1000); die(9)"}, 0, 2),
    "a start has no limit": Case({"0": "time.sleep(2)"}, 0, 1, (), {"hang_timeout": 0.5}),
    "a command that does not exist": Case({}, 2, 0, ("cannot start",), {"command": ["no-such-program"]}),
}


@pytest.mark.in_gate(24)
@pytest.mark.parametrize("name", CASES)
def test_each_rule_and_exit_code(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    job = Launched(tmp_path, case.plan, **case.options)
    if case.signals:
        if "between" in name:
            job.wait_for_starts(case.up)
            wait_for(lambda: not is_alive(job.pids()[-1]))
        else:
            job.wait_until_up(case.up)
    for number in case.signals:
        job.send(number)
        if number == signal.SIGINT and len(case.signals) > 1:
            wait_for((tmp_path / "heard").exists)
    code, _, err = job.end()
    assert (code, len(job.started_runs())) == (case.code, case.starts), err
    for text in case.says:
        assert text in err
    assert not any(is_alive(pid) for pid in job.pids())


@pytest.mark.parametrize("given", [{}, {"KDC_JOB_STARTED": "1700000000"}])
def test_all_attempts_have_the_start_of_the_job(tmp_path: Path, given: dict[str, str]) -> None:
    began = time.time()
    note = "open(f'start-{attempt}', 'w').write(os.environ['KDC_JOB_STARTED'])"
    job = Launched(tmp_path, {"0": f"{note}; time.sleep(0.5); die(9)", "1": note}, given)
    assert job.end()[0] == 0
    first, second = (float((tmp_path / f"start-{attempt}").read_text()) for attempt in (0, 1))
    assert abs(first - second) < 0.1
    assert given or began - 1 < first < began + 20
    assert not given or first == 1_700_000_000


ORPHANS = """
import subprocess
child = [sys.executable, "-c", "import time; time.sleep(120)"]
pids = [subprocess.Popen(child).pid, subprocess.Popen(child, start_new_session=True).pid]
if os.fork() == 0:  # a daemon of the second generation
    os.setsid()
    if os.fork() == 0:
        open("daemon", "w").write(str(os.getpid()))
        time.sleep(120)
    os._exit(0)
os.wait()
with open("starts", "a") as file:
    for pid in pids:
        file.write(f"child {pid}\\n")
while not os.path.exists("daemon") or not open("daemon").read():
    time.sleep(0.01)
"""


def everything(job: Launched) -> list[int]:
    return [*job.pids(), int((job.directory / "daemon").read_text())]


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def parts(job: Launched) -> list[int]:
    """The launcher's own processes: the one that the user knows, the guard, and the one that does the work."""
    guard = child_of(job.process.pid)
    return [job.process.pid, guard, child_of(guard)]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_nothing_stays_when_the_launcher_is_killed(tmp_path: Path, victim: int) -> None:
    job = Launched(tmp_path, {"0": ORPHANS + "stay()"}, {"TMPDIR": str(tmp_path)})
    job.wait_until_up(1)
    pids = everything(job)
    assert len(pids) == 4
    assert all(map(is_alive, pids))
    own = parts(job)
    assert list(tmp_path.glob("kdc-launch-*"))
    os.kill(own[victim], signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, [*pids, *own])), 5.0)
    code, _, err = job.end()
    assert (code, err) == (137 if victim else -9, "")
    assert not list(tmp_path.glob("kdc-launch-*"))


def test_workers_end_also_when_all_parts_of_the_launcher_are_killed_at_once(tmp_path: Path) -> None:
    job = Launched(tmp_path, {"*": "stay()"}, workers=2)
    job.wait_until_up(2)
    own = parts(job)
    for pid in reversed(own):
        os.kill(pid, signal.SIGSTOP)  # none can act before all are killed
    for pid in own:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, [*job.pids(), *own])), 5.0)


def processes_with(text: str) -> list[int]:
    """The processes that live and have a text in the environment that they were started with."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (place / "environ").read_bytes() and is_alive(int(place.name)):
                found.append(int(place.name))
    return found


LIVES = {
    "running": "trained(1); stay()",
    "being restarted": "trained(1, int(attempt) + 1); stay() if attempt == '9' else die(9)",
}


@pytest.mark.in_gate(4)
@pytest.mark.parametrize("number", range(100))
def test_nothing_stays_or_starts_at_whatever_instant_the_launcher_is_killed(tmp_path: Path, number: int) -> None:
    standby, workers, life = bool(number & 1), 1 + (number >> 1 & 1), list(LIVES)[number >> 2 & 1]
    env = {"TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"}
    (tmp_path / "tensorflow.py").write_text("raise ImportError('quickly')")
    job = Launched(tmp_path, {"*": LIVES[life]}, env, standby=standby, workers=workers, grace=0.5)
    if number % 10:
        job.wait_for_starts(1)
    time.sleep(random.Random(number).uniform(0.0, 1.0))  # noqa: S311 - not for secrets
    job.send(signal.SIGKILL)
    wait_for(lambda: not processes_with(str(tmp_path)), 5.0)
    time.sleep(0.2)
    assert processes_with(str(tmp_path)) == []
    _, _, err = job.end()
    assert life != "running" or err == ""


def bytes_in_pipe(reader: int) -> int:
    return int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_nothing_stays_when_the_output_is_not_read(tmp_path: Path) -> None:
    """The launcher waits in a write to a full pipe, and is killed there."""
    endless = "open('up-0.0', 'w').close()\nwhile True: print('x' * 1000)"
    os.mkfifo(tmp_path / "out")
    reader = os.open(tmp_path / "out", os.O_RDONLY | os.O_NONBLOCK)
    job = Launched(tmp_path, {"0": endless}, log_dir="logs")
    job.wait_until_up(1)
    wait_for(lambda: bytes_in_pipe(reader) > 2**16 - 2**12)  # full, but for a part of its last page
    job.send(signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, job.pids())), 5.0)
    os.close(reader)
    assert job.process.wait(10) == -signal.SIGKILL


def test_what_a_worker_leaves_is_gone_before_the_next_start(tmp_path: Path) -> None:
    check = "left = [int(line.split()[1]) for line in open('starts')][:3]\n"
    check += "print('alive', [pid for pid in left if os.path.exists(f'/proc/{pid}')])"
    job = Launched(tmp_path, {"0": ORPHANS + "die(9)", "1": check})
    code, out, err = job.end()
    assert (code, out) == (0, "alive []\n"), err
    assert not any(map(is_alive, everything(job)))


def test_the_output_of_workers_has_prefixes_and_is_kept(tmp_path: Path) -> None:
    plan = {
        "0.0": "print('one\\ntwo', flush=True); sys.stderr.write('no line end'); sys.stderr.flush(); stay()",
        "0.1": "after('0.0'); die(9)",
        "1.0": "print('x' * 50_000)",
    }
    code, out, err = Launched(tmp_path, plan, workers=2, log_dir="logs").end()
    assert (code, out) == (0, f"[0] one\n[0] two\n[0] no line end\n[0] {'x' * 50_000}\n"), err
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert logs == {
        "worker-0-run-0.log": "one\ntwo\nno line end",
        "worker-1-run-0.log": "",
        "worker-0-run-1.log": "x" * 50_000 + "\n",
        "worker-1-run-1.log": "",
    }


def test_one_worker_has_the_output_of_the_launcher(tmp_path: Path) -> None:
    code, out, err = Launched(tmp_path, {"*": "print('out'); sys.stderr.write('err')"}).end()
    assert (code, out, err) == (0, "out\n", "err")


SHOW = """
import json
names = ("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER")
place = f"{attempt}.{index}"
with open(f"new-{place}", "w") as file:
    json.dump({name: os.environ.get(name) for name in names}, file)
os.replace(f"new-{place}", f"env-{place}")
"""


def shown(directory: Path, place: str) -> dict[str, str | None]:
    found: dict[str, str | None] = json.loads((directory / f"env-{place}").read_text())
    return found


def test_the_environment_of_one_worker(tmp_path: Path) -> None:
    assert Launched(tmp_path, {"*": SHOW}, env={"PYTHONUNBUFFERED": "", "CUDA_VISIBLE_DEVICES": "-1"}).end()[0] == 0
    assert shown(tmp_path, "0.0") == {
        "TF_CONFIG": None,
        "TF_NUM_INTRAOP_THREADS": None,
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONUNBUFFERED": "",
        "PYTHONFAULTHANDLER": "1",
    }


def test_the_environment_of_two_workers(tmp_path: Path) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "4,GPU-a, 6,7,8"}
    waits = "while not os.path.exists(f'env-0.{1 - int(index)}'): time.sleep(0.01)\n"
    plan = {"*": f"{SHOW}{waits}if attempt == '0': die(9)"}
    job = Launched(tmp_path, plan, env=env, workers=2, gpus_per_worker=2)
    assert job.end()[0] == 0
    found = {place: shown(tmp_path, place) for place in job.started_runs()}
    assert [found[f"1.{index}"]["CUDA_VISIBLE_DEVICES"] for index in (0, 1)] == ["4,GPU-a", "6,7"]
    assert {env["TF_NUM_INTRAOP_THREADS"] for env in found.values()} == {str(max(1, os.cpu_count() or 1) // 2 or 1)}
    roles = {place: Role.detect({"TF_CONFIG": env["TF_CONFIG"] or ""}) for place, env in found.items()}
    assert [roles[f"1.{index}"].worker_index for index in (0, 1)] == [0, 1]
    assert roles["1.0"].addresses == roles["1.1"].addresses
    assert roles["1.0"].addresses != next(role for place, role in roles.items() if place[0] == "0").addresses


def test_reserved_ports_are_kept_from_others_and_free_for_tensorflows_server() -> None:
    (reserved,) = reserve_ports(1)
    port = reserved.getsockname()[1]
    with reserved, socket.socket() as greedy:
        with pytest.raises(OSError, match="in use"):
            greedy.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port), reuse_port=False) as server:
            assert server.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)

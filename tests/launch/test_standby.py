"""A spare interpreter is as a fresh worker, and never more than that; modules of the tests take TensorFlow's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.launch import spare, worker
from keras_dist_callbacks.launch.standby import Standby
from tests.support import ROOT
from tests.support.launching import Launched, is_alive, wait_for

pytestmark = pytest.mark.kill

SPEAKS = "import os, sys\nprint('imported', file=sys.stderr)\nopen('imported', 'a').write(f'{os.getpid()}\\n')\n"
WAITS = "trained(1)\nwhile len(open('imported').readlines()) < {count}: time.sleep(0.01)\n"
SHOWS = """
import tensorflow
facts = [__name__, sys.argv, sys.path[0], os.getcwd(), attempt, sys.stdin.read(), sys.stdout.isatty()]
facts += [os.getsid(0) == os.getpid(), os.getpriority(os.PRIO_PROCESS, 0), signal.pthread_sigmask(0, [])]
facts += [sorted(os.listdir("/proc/self/fd")), sorted(os.listdir(".")), sorted(os.environ)]
print(facts)
"""


def launched(directory: Path, plan: dict[str, str], tensorflow: str = SPEAKS, **options: Any) -> Launched:
    directory.mkdir(exist_ok=True)
    (directory / "tensorflow.py").write_text(tensorflow)
    (directory / "keras.py").write_text("raise ImportError('the end of what a spare imports')")
    (directory / "imported").touch()
    return Launched(directory, plan, **options)


def spares(job: Launched) -> list[int]:
    """Those that have imported, among them what has become a worker."""
    return [int(line) for line in (job.directory / "imported").read_text().split()]


@pytest.mark.parametrize("words", [["worker.py", "--lr", "0.1"], ["-m", "worker", "a b"]])
@pytest.mark.parametrize("options", [{}, {"workers": 2, "log_dir": "logs"}])
def test_it_is_as_a_fresh_worker(tmp_path: Path, words: list[str], options: dict[str, Any]) -> None:
    found, workers = [], options.get("workers", 1)
    for standby in (False, True):
        waits = WAITS.format(count=workers if standby else 0)
        last = f"0.{workers - 1}"
        plan = {"0": f"{waits}after({last!r}); die(9)", last: f"{waits}stay()", "1.0": SHOWS, "1.1": SHOWS}
        if workers == 1:
            plan[last] = f"{waits}die(9)"
        command = [*worker.COMMAND, *words]
        directory = tmp_path / "room"
        job = launched(directory, plan, command=command, standby=standby, **options)
        code, out, err = job.end()
        assert code == 0, err
        assert len(job.started_runs()) == 2 * workers
        assert not any(map(is_alive, spares(job)))
        logs = {path.name: path.read_text() for path in directory.glob("logs/*")}
        found.append((sorted(out.splitlines()), err, logs))
        directory.rename(tmp_path / f"was-{standby}")
    assert found[1] == found[0]
    assert "imported" in (found[1][2].get("worker-1-run-1.log") or found[1][1])


@pytest.mark.parametrize(
    ("tensorflow", "before", "had"),
    [
        (SPEAKS, WAITS.format(count=1), True),
        (f"{SPEAKS}import time\ntime.sleep(1.5)", WAITS.format(count=1), True),  # it still imports
        ("open('imported', 'a').write('x\\n')\nraise ImportError('broken')", WAITS.format(count=1), False),
        (SPEAKS, "", False),  # the worker ends before it has trained a step
        (SPEAKS, WAITS.format(count=1) + "os.kill(int(open('imported').read()), 9); time.sleep(0.1)\n", False),
    ],
    ids=["waiting", "importing", "broken", "not started", "killed"],
)
def test_a_restart_follows_whatever_has_become_of_the_spare(
    tmp_path: Path, tensorflow: str, before: str, had: bool
) -> None:
    plan = {"0": f"{before}die(9)", "1": "print('tensorflow' in sys.modules)"}
    job = launched(tmp_path, plan, tensorflow, standby=True)
    code, out, err = job.end()
    assert (code, out) == (0, f"{had}\n"), err
    assert "Traceback" not in err


def test_it_ends_with_the_launcher(tmp_path: Path) -> None:
    """Also if all processes of the launcher are killed at once."""
    job = launched(tmp_path, {"*": "trained(1); stay()"}, workers=2, standby=True, env={"MARK": str(tmp_path)})
    wait_for(lambda: len(spares(job)) == 2)
    assert all(map(is_alive, spares(job)))
    parts = [int(pid) for pid in _family(job.process.pid) if int(pid) not in {*job.pids(), *spares(job)}]
    assert len(parts) == 3
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in parts:
            os.kill(pid, number)
    wait_for(lambda: not any(map(is_alive, [*spares(job), *job.pids()])), 5.0)


def _family(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid, *(each for child in children for each in _family(child))]


def test_a_spare_that_cannot_be_started_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "COMMAND", ("no-such-program",))
    standby = Standby(["train.py"], has_pipe=False)
    standby.prepare(0, dict(os.environ))
    assert 0 in standby
    assert (standby.processes, standby.start(0, {}, None)) == ([], None)


def run_spare(directory: Path, *words: str) -> str:
    """What a spare prints whose worker is needed at once."""
    ended = subprocess.run(
        [*spare.COMMAND, *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=json.dumps({"env": {}, "output": None, "time": time.time()}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_its_imports_find_what_is_next_to_the_script(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "train.py").write_text("import sys; print(sys.modules['tensorflow'].__file__)")
    (tmp_path / "there" / "tensorflow.py").write_text("")
    (tmp_path / "there" / "keras.py").write_text("raise ImportError('the end of what a spare imports')")
    assert run_spare(tmp_path, "there/train.py") == f"{tmp_path}/there/tensorflow.py\n"


@pytest.mark.slow
def test_it_has_imported_everything_and_touched_no_device(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nimported = {'tensorflow', 'keras', 'keras_dist_callbacks.callbacks.backup_and_restore'}\n"
        "print(imported <= set(sys.modules), sys.argv)\n"
        "from keras_dist_callbacks._compat.hard_exit import tensorflow_has_context\n"
        "print(tensorflow_has_context())"
    )
    assert run_spare(tmp_path, "train.py", "a") == "True ['train.py', 'a']\nFalse\n"

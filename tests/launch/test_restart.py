"""Which errors a job is started again for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base import errors, progress_file
from keras_dist_callbacks.launch.restart import is_worth_a_restart


def store_error(*, unavailable: bool) -> errors.StorageError:
    error = errors.StorageError("cannot write")
    error.unavailable = unavailable
    return error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


AGAIN = [
    errors.PeerLostError("worker 1 is gone"),
    errors.ClusterTimeoutError("no answer"),
    store_error(unavailable=True),
    caused(errors.BackupError("10 backups failed in a row"), store_error(unavailable=True)),
    tf.errors.UnavailableError(None, None, "Collective ops is aborted"),
    tf.errors.DeadlineExceededError(None, None, "no heartbeat"),
]
NEVER = [
    errors.FencedError("a newer run owns it"),
    errors.ConfigError("wrong"),
    errors.DamagedBackupError("none is whole"),
    errors.BackupMismatchError("another model"),
    errors.ClusterError("restoring failed on worker 1: ValueError: x"),
    store_error(unavailable=False),
    caused(ValueError("a bug"), errors.PeerLostError("gone")),
    tf.errors.InvalidArgumentError(None, None, "shapes"),
    MemoryError(),
]


@pytest.mark.parametrize("error", AGAIN, ids=lambda error: type(error).__name__)
def test_what_may_pass_ends_with_138(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, kdc.restartable():
        raise error
    assert ended.value.code == 138
    shown = capsys.readouterr().err
    assert str(error) in shown
    assert "exit code 138: start this job again" in shown


def test_under_kdc_launch_nobody_is_asked_to_start_the_job_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(progress_file.VARIABLE, "progress")
    with pytest.raises(SystemExit) as ended, kdc.restartable():
        raise errors.PeerLostError("worker 1 is gone")
    assert ended.value.code == 138
    assert capsys.readouterr().err.splitlines()[-1].endswith("PeerLostError: worker 1 is gone")


@pytest.mark.parametrize("error", NEVER, ids=lambda error: type(error).__name__)
def test_what_would_come_again_is_raised_as_it_is(error: Exception) -> None:
    assert not is_worth_a_restart(error)
    with pytest.raises(type(error)) as raised, kdc.restartable():
        raise error
    assert raised.value is error


def test_other_exits_stay_what_they_are() -> None:
    for code in (0, 3, "a text"):
        with pytest.raises(SystemExit) as ended, kdc.restartable():
            raise SystemExit(code)
        assert ended.value.code == code


SCRIPT = """
import sys
from beside import WORD
from keras_dist_callbacks.base.errors import PeerLostError
assert __name__ == "__main__" and sys.argv[1:] == ["--help", WORD], sys.argv
if WORD == "lost":
    raise PeerLostError("worker 1 is gone")
if WORD == "bug":
    raise ValueError("a bug")
print("it ran")
"""


@pytest.mark.process
@pytest.mark.parametrize(("word", "code"), [("fine", 0), ("bug", 1), ("lost", 138)])
def test_kdc_run_runs_a_script_as_python_does(tmp_path: Path, word: str, code: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text(f"WORD = {word!r}\n")
    command = [sys.executable, "-m", "keras_dist_callbacks.cli", "run", str(tmp_path / "script.py"), "--help", word]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert ("it ran" in ended.stdout) == (code == 0)


RUN = ("keras_dist_callbacks.cli", "run")
WAYS = pytest.mark.parametrize("way", [RUN, ("keras_dist_callbacks.launch.worker",)], ids=["kdc run", "kdc launch"])


def run_kdc(*arguments: str, cwd: Path, way: tuple[str, ...] = RUN) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *way, *arguments]
    root = str(Path(kdc.__file__).parents[1])  # `python -m` has the working directory in place of it
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=cwd, env={**os.environ, "PYTHONPATH": root}
    )


@pytest.mark.process
@WAYS
@pytest.mark.parametrize(
    "arguments", [["nosuch.py"], ["-m", "nosuch"], ["-m", "empty"], ["-m", "empty.no"], ["-m", "script.py"], ["empty"]]
)
def test_a_program_that_does_not_exist_is_one_line_and_exit_code_2(
    tmp_path: Path, way: tuple[str, ...], arguments: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "__init__.py").write_text("")
    (tmp_path / "script.py").write_text("print('it ran')")
    ended = run_kdc(*arguments, cwd=tmp_path, way=way)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("kdc: ")
    assert arguments[-1] in line


@pytest.mark.in_gate(5)
@pytest.mark.process
@pytest.mark.parametrize("code", ["raise ValueError('a bug')", "1 +", "import nosuch_module_of_theirs"])
@pytest.mark.parametrize("way", ["script", "module", "package"])
def test_the_traceback_of_an_error_begins_at_the_users_program(tmp_path: Path, way: str, code: str) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text(code if way == "package" else "")
    file = tmp_path / "theirs" / "train.py"
    file.write_text(code)
    ended = run_kdc(*([str(file)] if way == "script" else ["-m", "theirs.train"]), cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    places = [line.split('"')[1] for line in ended.stderr.splitlines() if line.startswith("  File ")]
    assert places == [str(file.parent / "__init__.py" if way == "package" else file)]
    assert ended.stderr.splitlines()[-1].startswith(("ValueError: a bug", "SyntaxError", "ModuleNotFoundError"))


@pytest.mark.process
@WAYS
def test_kdc_run_m_runs_a_module_as_python_does(tmp_path: Path, way: tuple[str, ...]) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__main__.py").write_text(
        "import sys; from . import beside; print(__name__, __spec__.name, sys.argv, sys.path[0])"
    )
    (tmp_path / "theirs" / "beside.py").write_text("")
    ended = run_kdc("-m", "theirs", "-m", "--epochs", "3", cwd=tmp_path, way=way)
    assert ended.returncode == 0, ended.stderr
    argv = [str(tmp_path / "theirs" / "__main__.py"), "-m", "--epochs", "3"]
    assert ended.stdout.strip() == f"__main__ theirs.__main__ {argv} {tmp_path}"


@pytest.mark.process
@WAYS
def test_an_interrupt_ends_with_130_and_the_programs_traceback(tmp_path: Path, way: tuple[str, ...]) -> None:
    (tmp_path / "script.py").write_text("raise KeyboardInterrupt")
    ended = run_kdc("script.py", cwd=tmp_path, way=way)
    assert ended.returncode == 130
    assert "KeyboardInterrupt" in ended.stderr
    assert "typer" not in ended.stderr


@pytest.mark.process
def test_what_starts_a_worker_imports_the_standard_library_alone(tmp_path: Path) -> None:
    show = "print({name.partition('.')[0] for name in sys.modules if name not in at_start} - sys.stdlib_module_names)"
    (tmp_path / "script.py").write_text(f"import sys\nfrom sitecustomize import at_start\n{show}")
    (tmp_path / "sitecustomize.py").write_text("import sys\nat_start = set(sys.modules)")
    command = [sys.executable, "-m", "keras_dist_callbacks.launch.worker", "script.py"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(kdc.__file__).parents[1]}"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)
    assert (ended.stdout, ended.stderr) == ("{'keras_dist_callbacks'}\n", "")

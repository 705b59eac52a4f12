"""`kdc launch` on the command line: what it takes for the program, and how it refuses wrong usage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.cli_backups import kdc

KDC = [sys.executable, "-m", "keras_dist_callbacks.cli"]


def launch(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*KDC, "launch", *arguments], cwd=directory, env=env, capture_output=True, text=True, timeout=90
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("before", "arguments"),
    [
        (["script.py"], ["--workers", "a", "--", "b"]),
        (["--max-restarts", "0", "-m", "script"], ["-m", "--", "--"]),
        (["--", sys.executable, "script.py"], ["a", "--", "b"]),
    ],
)
def test_the_program_gets_its_arguments_as_they_are(tmp_path: Path, before: list[str], arguments: list[str]) -> None:
    (tmp_path / "script.py").write_text("import sys; print(__name__, sys.argv[1:])")
    ended = launch(tmp_path, *before, *arguments)
    assert (ended.returncode, ended.stdout) == (0, f"__main__ {arguments}\n"), ended.stderr


@pytest.mark.process
def test_a_script_is_run_with_the_exit_codes_of_kdc_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os\nfrom keras_dist_callbacks.base.errors import PeerLostError\n"
        "if os.environ['KDC_ATTEMPT'] == '0': raise PeerLostError('worker 1 is gone')\n"
    )
    ended = launch(tmp_path, "script.py")
    assert ended.returncode == 0
    assert "kdc launch: worker 0 exited with code 138 (asks for a restart)" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a script"),
        (["--"], "name a script"),
        (["-m", "--", "x"], "name a script"),
        (["nosuch.py"], "nosuch.py: script not found"),
        (["-m", "nosuch"], "no module is named 'nosuch'"),
        (["--workers", "0", "--", "true"], "workers must be"),
        (["--standby", "--", "true"], "--standby is for a Python script or module"),
        (["--max-restarts", "-1", "--", "true"], "max_restarts must be"),
        (["--grace", "-1", "--", "true"], "grace must be"),
        (["--hang-timeout", "soon", "--", "true"], "hang_timeout must be"),
        (["--gpus-per-worker", "0", "--", "true"], "gpus_per_worker must be"),
        (["--gpus-per-worker", "2", "--", "true"], "needs 2 GPUs; 1 are visible"),
        (["--log-dir", "/dev/null/x", "--", "true"], "Not a directory"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    ended = kdc("launch", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("kdc: ")
    assert message in line


@pytest.mark.parametrize("name", ["TF_CONFIG", "KDC_CLUSTER"])
def test_a_job_that_has_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "indexed")
    ended = kdc("launch", "--", "true")
    assert ended.exit_code == 2
    assert f"{name} is set: its cluster has a launcher already" in ended.stderr

"""Scripts of several fits, killed in each of them and run again: no model is untrained, none has foreign weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import SUPPORT, files
from tests.support.fits_job import FITS, SCRIPTS
from tests.support.processes import worker_processes

SECONDS = 120.0
KILLED = -9
REFUSED = {"folds", "a grid of rates", "a grid of rates, unseeded", "an ensemble", "an ensemble that is skipped"}
"""Which fit a backup belongs to cannot be told, or another one comes first: an error, and nothing is lost."""
FULL_STEPS = {False: 12, True: 8}  # with all rows, or those of a fold

pytestmark = [pytest.mark.process, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(300)]


def run(directory: Path, name: str, *attempts: tuple[str, ...], workers: int = 1) -> tuple[list[int | None], list[str]]:
    """Exit codes and logs of one process after the other."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, str(SUPPORT / "fits_job.py"), str(directory), name]
    codes, logs = [], []
    with worker_processes(command, workers, directory / "logs", grace=5.0) as cluster:
        for options in attempts:
            cluster.start(options)
            codes += cluster.wait(SECONDS)
            logs.append(cluster.log(0))
    return codes, logs


def results(directory: Path) -> dict[int, Any]:
    found = {number: directory / f"result-{number}.json" for number in range(FITS)}
    return {number: json.loads(path.read_text()) for number, path in found.items() if path.exists()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of scripts that are neither backed up nor killed."""
    known: dict[str, dict[int, Any]] = {}

    def find(name: str) -> dict[int, Any]:
        if name not in known:
            directory = tmp_path_factory.mktemp("plain")
            assert run(directory, name, ("--plain",))[0] == [0]
            known[name] = results(directory)
        return known[name]

    return find


def assert_own_and_trained(name: str, found: dict[int, Any]) -> None:
    script = SCRIPTS[name]
    for number, result in found.items():
        if script.model == "new":
            assert result["tag"] == number
            assert result["steps"] == FULL_STEPS[script.rows], number
            assert result["epochs"] == [0, 1]


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("killed", range(FITS))
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_is_killed_in_one_of_its_fits(tmp_path: Path, plain: Any, name: str, killed: int) -> None:
    script = SCRIPTS[name]
    (was_killed,), _ = run(tmp_path, name, ("--kill", str(killed)))
    assert was_killed == KILLED
    before = files(tmp_path)
    (code,), (log,) = run(tmp_path, name, ())
    assert_own_and_trained(name, results(tmp_path))
    if name in REFUSED and killed:
        assert code == 1
        assert "BackupMismatchError: the backup in" in log
        after = files(tmp_path)
        assert {path: content for path, content in after.items() if "commits/" in path or "result" in path} == {
            path: content for path, content in before.items() if "commits/" in path or "result" in path
        }
        return
    assert code == 0, log
    assert log.count("Resumed from") >= 1
    if script.seed is not None:
        last = range(FITS) if script.model == "new" else [FITS - 1]  # of one model, earlier fits have later weights
        assert {n: results(tmp_path)[n]["weights"] for n in last} == {n: plain(name)[n]["weights"] for n in last}


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.parametrize("name", ["epochs", "phases", "folds that are skipped, seeded each"])
def test_a_script_of_two_workers_that_is_killed_in_its_second_fit(tmp_path: Path, name: str) -> None:
    assert run(tmp_path / "plain", name, ("--plain",), workers=2)[0] == [0, 0]
    codes, _ = run(tmp_path / "killed", name, ("--kill", "1"), workers=2)
    assert KILLED in codes
    codes, (log,) = run(tmp_path / "killed", name, (), workers=2)
    assert codes == [0, 0], log
    assert log.count("Resumed from") >= 1
    assert results(tmp_path / "killed")[FITS - 1] == results(tmp_path / "plain")[FITS - 1]


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(("killed", "resumes"), [(1, True), (0, False)])
def test_only_the_second_cell_of_a_notebook_is_run_again(
    tmp_path: Path, plain: Any, killed: int, resumes: bool
) -> None:
    name = "folds"
    run(tmp_path, name, ("--kill", str(killed)))
    (code,), (log,) = run(tmp_path, name, ("--only", "1"))
    if resumes:
        assert code == 0, log
        assert results(tmp_path)[1] == plain(name)[1]
    else:
        assert code == 1
        assert "belongs to another fit()" in log
        assert results(tmp_path) == {}

"""`examples/demo.py`: its usage, and what it says about steps that are trained again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

sys.path.insert(0, str(ROOT / "examples"))
import demo


def test_the_directory_is_the_only_positional_argument(tmp_path: Path) -> None:
    assert demo.parse([str(tmp_path)]).directory == tmp_path
    assert demo.parse([]).directory == Path("runs/demo")
    assert not demo.parse([]).worker


def test_a_directory_with_files_of_others_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    (tmp_path / "killed").mkdir()
    assert demo.main(tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "thesis.txt"]


def test_what_an_earlier_demo_left_is_removed(tmp_path: Path) -> None:
    for part in demo.PARTS:
        (tmp_path / part).mkdir()
    demo.empty(tmp_path)
    demo.empty(tmp_path)
    assert not tmp_path.exists()


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_the_demo_ends_bit_identical_and_counts_the_steps_that_were_trained_again(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), str(tmp_path / "demo")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "History: bit-identical on 2 workers" in ended.stdout
    assert "steps trained: 100 uninterrupted, 102 killed (the steps between the last backup" in ended.stdout

"""`examples/demo.py`: its usage, and what it says about steps that are trained again."""

from __future__ import annotations

import re
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
    for name in (demo.PICTURE, demo.REPORT):
        (tmp_path / name).touch()
    demo.empty(tmp_path)
    demo.empty(tmp_path)
    assert not tmp_path.exists()


def logged(directory: Path, *starts: dict[int, float]) -> demo.Run:
    """What a run of epochs of three steps leaves: by step the loss, for each start of the job."""
    directory.mkdir()
    lines = [f"{pid} {s // 3} {s % 3} {loss.hex()}" for pid, losses in enumerate(starts) for s, loss in losses.items()]
    for worker in range(demo.WORKERS):
        (directory / f"losses-worker{worker}").write_text("\n".join(lines))
    return demo.Run(directory, [])


LOSSES = {step: 1 / (step + 1) for step in range(9)}


def cut(first: int, last: int) -> dict[int, float]:
    return {step: loss for step, loss in LOSSES.items() if first <= step <= last}


def test_the_losses_of_all_starts_are_compared_with_the_uninterrupted_ones(tmp_path: Path) -> None:
    plain = logged(tmp_path / "plain", LOSSES)
    assert demo.different_losses(plain, logged(tmp_path / "same", cut(0, 4), cut(3, 5), cut(5, 8)), 1) == []
    again = {**cut(3, 5), 3: 0.5}  # a step that is trained again, with another result
    found = demo.different_losses(plain, logged(tmp_path / "other", cut(0, 4), again, cut(6, 7)), 1)
    assert found == ["worker 1: loss 0.5 in epoch 2 step 1, not 0.25", "worker 1: 1 steps without a loss"]


def test_the_losses_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    killed = logged(tmp_path / "killed", cut(0, 4), cut(3, 5), cut(5, 8))
    demo.draw(logged(tmp_path / "plain", LOSSES), killed, tmp_path / demo.PICTURE)
    assert (tmp_path / demo.PICTURE).read_bytes().startswith(b"\x89PNG")


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_the_demo_ends_bit_identical_and_counts_the_steps_that_were_trained_again(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), str(tmp_path / "demo")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "History: bit-identical on 2 workers" in ended.stdout
    assert "loss of each step, also of those that were trained again: bit-identical" in ended.stdout
    assert (tmp_path / "demo" / demo.PICTURE).exists()
    assert f"{demo.REPORT} written: 3 starts in" in " ".join(ended.stdout.split())
    assert (tmp_path / "demo" / demo.REPORT).exists()
    trained = re.search(r"steps trained: 100 uninterrupted, (\d+) killed", ended.stdout)
    assert trained is not None, ended.stdout
    # two, and those between two backups where a kill came before the newest backup was written
    assert int(trained[1]) in {102, 107, 112}, ended.stdout

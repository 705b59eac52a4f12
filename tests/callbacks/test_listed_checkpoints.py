"""A listing of a directory of checkpoints, as scripts and guides make it, has checkpoints and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from pathlib import Path

import keras
import pytest

from keras_dist_callbacks import ModelCheckpoint, latest_checkpoint
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.testing import run_until_done
from tests.support import tiny
from tests.support.callback_helpers import SetLoss, fit, ignore_keras_warnings, tiny_model
from tests.support.checkpoints import listed
from tests.support.processes import worker_processes

pytestmark = [pytest.mark.slow, ignore_keras_warnings]


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("template", ["{epoch}-{batch}.keras", "latest.keras"])
def test_at_no_moment_of_a_training_is_anything_else_there(tmp_path: Path, template: str) -> None:
    keep = 2 if "{" in template else 1
    directory, seen, looks, done = tmp_path / "ckpt", set[str](), [], threading.Event()
    directory.mkdir()

    def look() -> None:
        while not done.is_set():
            seen.update(os.listdir(directory))  # noqa: PTH208 - as scripts do, as often as can be
            looks.append(1)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(2):
            callback = ModelCheckpoint(directory / template, monitor="loss", save_freq=1, max_to_keep=keep)
            tiny.fit(tiny.model(), None, [callback], epochs=2)
    finally:
        done.set()
        watcher.join()
    expected = re.compile(r"\d-\d\.keras" if "{" in template else re.escape(template))
    assert any(map(expected.fullmatch, seen))
    others = {name for name in seen if not expected.fullmatch(name)}
    if Storage.open(directory)._local.probe_unnamed(str(directory)) and "{" in template:
        assert others == set()
    assert all(name.startswith(".") for name in others)
    assert len(looks) > 100


@pytest.mark.kill
def test_the_guides_own_pick_by_time_loads_whenever_a_run_was_killed(tmp_path: Path) -> None:
    kills = [["3"], ["1"], ["0"], ["7"], ["2"], ["12"]]
    command = [sys.executable, "-m", "tests.support.guide_job", str(tmp_path / "ckpt")]
    with worker_processes(command, 1, tmp_path / "said") as cluster:
        attempts = run_until_done(cluster, len(kills), 250.0, extra_args=kills)
    said = "\n".join(path.read_text() for path in sorted((tmp_path / "said").iterdir()))
    assert [list(attempt.returncodes) for attempt in attempts] == [[-9]] * len(kills) + [[0]], said
    restored = re.findall(r"Restoring from (\S+)", said)
    assert len(restored) >= len(kills) - 1
    assert all(re.fullmatch(r".*/ckpt/ckpt-loss=\S+-\d+\.keras", path) for path in restored)
    left = sorted((tmp_path / "ckpt").iterdir())
    assert len(left) == 3
    for path in left:
        assert isinstance(keras.models.load_model(path), keras.Model)


def test_two_callbacks_that_begin_again_count_alike(tmp_path: Path) -> None:
    """The end notes outlive the directory: both callbacks count from the same one."""

    def run(epochs: int) -> None:
        best = ModelCheckpoint(tmp_path / "d" / "best.keras", monitor="loss", save_best_only=True)
        fit(
            tiny_model(), SetLoss(1.0, 2.0, 3.0), best, ModelCheckpoint(tmp_path / "d" / "{epoch}.keras"), epochs=epochs
        )

    run(1)
    run(1)
    shutil.rmtree(tmp_path / "d")
    run(3)
    assert latest_checkpoint(tmp_path / "d") == str(tmp_path / "d" / "3.keras")
    found = listed(tmp_path / "d")
    assert {checkpoint.record.generation for checkpoint in found.checkpoints} == {3}
    assert found.problems == ()

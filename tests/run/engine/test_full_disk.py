"""A disk with space for hardly more than the backups: leftovers of interrupted saves must not fill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.storage.direct_io import VARIABLE
from keras_dist_callbacks.storage.local_files import temporary_name
from tests.run.engine.test_committer import Saver
from tests.support import ROOT

Mount = Callable[[int], Path]
MIB = 2**20
STATE = 9 * MIB + 5


def state(seed: int) -> dict[str, np.ndarray]:
    return {"a": np.random.default_rng(seed).integers(0, 255, STATE, np.uint8)}


def unfinished(disk: Path) -> list[Path]:
    return [path for path in disk.rglob("*") if ".tmp-" in path.name]


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.parametrize("way", ["all", "0"])
def test_a_run_that_is_killed_in_mid_save_again_and_again_can_still_save(small_disk: Mount, way: str) -> None:
    """There is space for the three backups of a save in progress and for no leftover."""
    disk = small_disk(32)
    command = [sys.executable, "-m", "tests.support.killed_saver", str(disk), "fsync", "1", "3"]
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, VARIABLE: way}, check=False)
        assert done.returncode == -signal.SIGKILL
        assert len(unfinished(disk)) == 1
    saver = Saver(disk)
    for seed in range(3):
        saver.save(state(seed))
    assert unfinished(disk) == []
    np.testing.assert_array_equal(saver.restored()["a"], state(2)["a"])


@pytest.mark.process
def test_a_save_for_which_there_is_no_room_is_tried_again_after_leftovers_are_deleted(small_disk: Mount) -> None:
    disk = small_disk(32)
    Saver(disk).save(state(0))
    saver = Saver(disk)
    saver.save(state(1))
    leftover = disk / "blobs/000001" / temporary_name("0" * 32 + ".safetensors")
    leftover.write_bytes(bytes(8 * MIB))  # by a run that was still in mid-save when this one began
    saver.save(state(2))
    assert not leftover.exists()
    np.testing.assert_array_equal(saver.restored()["a"], state(2)["a"])


@pytest.mark.process
def test_a_save_that_does_not_fit_says_where_and_how_much_room_it_needs_and_harms_nothing(small_disk: Mount) -> None:
    disk = small_disk(15)
    saver = Saver(disk)
    saver.save(state(0))
    with pytest.raises(StorageError) as caught:
        saver.save(state(1))
    said = str(caught.value)
    assert f"cannot create {disk}/blobs/000001/" in said
    assert "No space left on device; it needs 9.0 MiB and " in said
    assert "MiB are free on that disk: free some space (a complete backup takes 9.0 MiB, and there are 2" in said
    assert caught.value.full
    np.testing.assert_array_equal(saver.restored()["a"], state(0)["a"])
    saver.save({"a": state(1)["a"][: 4 * MIB]})

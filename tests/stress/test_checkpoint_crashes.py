"""A save that ends at any system call: the new checkpoint or the one before it is there, and nothing else is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keras_dist_callbacks.checkpoints import end_note, files
from tests.support import ROOT
from tests.support.checkpoints import opened, save

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore:.*without a record:UserWarning")]


@pytest.mark.parametrize("has_unnamed_files", [True, pytest.param(False, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("name", ["3.keras", "best.keras"])
def test_a_save_that_ends_at_any_call_leaves_the_new_checkpoint_or_the_one_before_it(
    tmp_path: Path, name: str, has_unnamed_files: bool
) -> None:
    storage = opened(tmp_path / "base" / "ckpt")
    for epoch in (1, 2):
        save(storage, epoch)
    save(storage, 2, name="best.keras", template="best.keras", sequence=3)
    shutil.copy(tmp_path / "base/ckpt/1.keras", tmp_path / "base/ckpt/release.keras")
    before = "best.keras"
    command = [sys.executable, "-m", "tests.support.checkpoint_crashes", tmp_path, name]
    done = subprocess.run(
        [*command, *([] if has_unnamed_files else ["named"])], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    calls = int(done.stdout)
    assert calls > 10
    outcomes = []
    for number in range(1, calls + 1):
        storage = opened(tmp_path / str(number) / "ckpt")
        found = files.latest_verified(storage)
        assert found is not None, number
        assert files.find(storage).problems == (), number
        is_new = found.record.generation == 2
        assert found.name == (name if is_new else before), number
        outcomes.append(is_new)
        present = {info.name for info in storage.files()}
        assert "release.keras" in present, number
        hidden = {one for one in present if one.startswith(".")}
        assert present - hidden <= {"1.keras", "2.keras", "3.keras", "best.keras", "release.keras"}, number
        assert not hidden or not is_new or not has_unnamed_files or name == "best.keras", number
        template = found.record.template
        notes, problems = end_note.read_all(storage, [template])
        assert problems == [], number
        assert all(note.generation == 2 for note in notes), number
        files.remove_unfinished(storage, "{epoch}.keras")
        files.remove_unfinished(storage, "best.keras")
        assert not any(info.name.startswith(".") for info in storage.files()), number
    assert outcomes == sorted(outcomes), "once it is there, it stays"
    assert (outcomes[0], outcomes[-1]) == (False, True)
    assert (tmp_path / str(calls) / "ckpt/1.keras").exists() == (name == "best.keras")

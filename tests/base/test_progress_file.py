"""The progress file says where training is, and is written by one process alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base import progress_file
from keras_dist_callbacks.base.process import PARTS
from keras_dist_callbacks.base.progress_file import NO_BACKUP, Phase, ProgressFile, ProgressReport
from tests.support import ROOT, tiny


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A progress file that is named in the environment."""
    path = tmp_path / "progress"
    progress_file.create(path)
    monkeypatch.setenv(progress_file.VARIABLE, str(path))
    return path


@pytest.fixture
def ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that the trainings of this process write."""
    monkeypatch.setitem(PARTS, ProgressFile, ProgressFile())
    return path


class Look(keras.callbacks.Callback):
    """Notes what the file says in each hook."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.seen: list[tuple[str, Phase, int, int | None]] = []

    def look(self, hook: str) -> None:
        report = progress_file.read(self.path)
        self.seen.append((hook, report.phase, report.epoch, report.step))

    def on_train_begin(self, logs: Any = None) -> None:
        self.look("train begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.look("batch end")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.look("test batch end")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.look("epoch end")


kdc.advanced.register_callback_state(Look, None)


@pytest.mark.slow
def test_fit_reports_phases_steps_and_backups(tmp_path: Path, ours: Path) -> None:
    look, steps = Look(ours), tiny.STEPS
    tiny.interrupt(tmp_path / "backup", 1, 3, save_freq=2, callbacks=[look])
    one_epoch = [
        *(("batch end", Phase.STEP, 0, step) for step in range(1, steps + 1)),
        ("epoch end", Phase.EPOCH_END, 0, steps),
    ]
    found = [seen for seen in look.seen if seen[0] != "test batch end"]
    assert found[0] == ("train begin", Phase.OUTSIDE, 0, None)
    assert found[1 : len(one_epoch) + 1] == one_epoch
    assert found[len(one_epoch) + 1 :] == [("batch end", Phase.STEP, 1, steps + step) for step in (1, 2, 3)]
    assert {phase for hook, phase, _, _ in look.seen if hook == "test batch end"} <= {Phase.VALIDATION}
    report = progress_file.read(ours)
    assert (report.fit, report.step, report.backup) == (1, steps + 3, (1, steps + 3))  # the exception left a backup
    assert report.place == str(tmp_path / "backup")
    assert report.phase is Phase.OUTSIDE
    assert report.entries[Phase.SAVE] >= 3

    again = Look(ours)
    tiny.fit(tiny.model(), tmp_path / "backup", [again], save_freq=2)
    assert next(seen for seen in again.seen if seen[0] == "batch end") == ("batch end", Phase.STEP, 1, steps + 4)
    report = progress_file.read(ours)
    assert (report.fit, report.step, report.backup) == (2, 3 * steps, NO_BACKUP)  # deleted at the end
    assert report.phase is Phase.OUTSIDE


@pytest.mark.slow
def test_validation_is_a_phase(tmp_path: Path, ours: Path) -> None:
    look = Look(ours)
    tiny.fit(tiny.model(), tmp_path / "backup", [look], validation_data=tiny.data())
    assert ("test batch end", Phase.VALIDATION, 0, tiny.STEPS) in look.seen
    assert progress_file.read(ours).entries[Phase.VALIDATION] == 3


@pytest.mark.slow
def test_a_loop_of_ones_own_reports_steps(tmp_path: Path, ours: Path) -> None:
    model = tiny.model()
    model.optimizer.build(model.trainable_variables)
    seen, dataset = [], tiny.shuffled()
    with kdc.Checkpointer(tmp_path / "backup", model=model, optimizer=model.optimizer, save_freq=2) as checkpointer:
        checkpointer.restore()
        for _ in checkpointer.epochs(2):
            for _ in checkpointer.batches(dataset):
                checkpointer.step()
                seen.append(progress_file.read(ours))
            assert progress_file.read(ours).phase is Phase.OUTSIDE  # what follows may take its time
    assert [report.step for report in seen] == list(range(1, 2 * tiny.STEPS + 1))
    assert {report.phase for report in seen} == {Phase.STEP}
    assert seen[-1].epoch == 1
    report = progress_file.read(ours)
    assert (report.phase, report.backup) == (Phase.OUTSIDE, NO_BACKUP)  # deleted at the end


BACKUPS = {
    "nothing is known before a directory was looked at": ("begin a", None, 0),
    "no backup": ("begin a, none a", NO_BACKUP, 0),
    "a backup": ("begin a, none a, 3 steps, save a", (1, 3), 0),
    "one that is being deleted": ("begin a, 3 steps, save a, forget a", None, 0),
    "one that was deleted": ("begin a, 3 steps, save a, forget a, none a", NO_BACKUP, 0),
    "a later fit in the same directory": ("begin a, 3 steps, save a, begin a", (1, 3), 0),
    "a later fit in another one": ("begin a, 3 steps, save a, begin b, none b", (1, 3), 0),
    "steps after the last backup": ("begin a, 3 steps, save a, 5 steps, begin b, none b", (1, 3), 2),
    "a later fit, and a deleted backup": ("begin a, 3 steps, save a, none a, begin b, none b", NO_BACKUP, 3),
    "a backup of a later fit": ("begin a, 3 steps, none a, begin b, none b, 5 steps, save b", (2, 5), 3),
    "one that stands for the earlier fit, too": (
        "begin a, 3 steps, none a, begin a, none a, 5 steps, save a",
        (2, 5),
        0,
    ),
    "three directories": ("begin a, 3 steps, none a, begin b, none b, 4 steps, begin c, none c", NO_BACKUP, 7),
}


@pytest.mark.parametrize("case", BACKUPS)
def test_what_is_known_of_backups_and_which_steps_none_holds(ours: Path, case: str) -> None:
    file, events = progress_file.progress_file(), BACKUPS[case][0]
    step = 0
    for first, second in map(str.split, events.split(", ")):
        match first:
            case "begin":
                file.begin_fit(second)
            case "none":
                file.backup(second, None)
            case "save":
                file.backup(second, step)
            case "forget":
                file.forget_backup(second)
            case _:
                step = int(first)
                file.step_done(step)
    report = progress_file.read(ours)
    assert (report.backup, report.unsaved) == BACKUPS[case][1:]


def test_without_the_variable_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(progress_file.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    file = ProgressFile()
    file.begin_fit("backup")
    file.begin_epoch(0, 0)
    file.step_done(1)
    file.backup("backup", 1)
    with file.during(Phase.SAVE):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(progress_file.VARIABLE, str(tmp_path / "gone"))
    ProgressFile().step_done(1)
    assert "progress is not reported to the launcher: KDC_PROGRESS=" in capsys.readouterr().out
    assert not (tmp_path / "gone").exists()


def test_an_empty_file_is_no_progress(path: Path) -> None:
    assert progress_file.read(path) == ProgressReport(False, Phase.OUTSIDE, 0, 0, None, None, 0, (0,) * len(Phase))


@pytest.mark.process
def test_a_child_and_another_process_do_not_write_into_it(ours: Path) -> None:
    file = progress_file.progress_file()
    file.begin_fit("backup")
    file.step_done(5)
    code = (
        "from keras_dist_callbacks.base.progress_file import progress_file as f\n"
        "f().begin_fit('backup')\nf().step_done(9)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    if (child := os.fork()) == 0:
        progress_file.progress_file().step_done(7)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert progress_file.read(ours).step == 5


@pytest.mark.process
def test_the_file_of_a_process_that_is_gone_is_taken_over(path: Path) -> None:
    code = (
        "from keras_dist_callbacks.base.progress_file import progress_file as f\n"
        "f().begin_fit('backup')\nf().step_done({})"
    )
    for step in (9, 3):
        command = [sys.executable, "-c", code.format(step)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=60)
        assert progress_file.read(path).step == step

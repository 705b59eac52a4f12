"""A training whose weights turn NaN: what is kept, what is said, and how it goes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.support import forget_runs, tiny
from tests.support.cli_backups import kdc_json

pytestmark = [
    pytest.mark.slow,  # complete fits
    pytest.mark.filterwarnings("ignore:the backup at .* holds values that are not finite:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:training has ended with values that are not finite:RuntimeWarning"),
]
POISONED = 2 * tiny.STEPS + 2  # the step after which the weights are infinite: the third epoch's second


class Poison(keras.callbacks.Callback):
    """What a fault of the hardware does: a weight is infinite after one step, and all others soon are NaN."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == POISONED:
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel * np.inf)


class Clean(Poison):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        return None


for stateless in (Poison, Clean):
    kdc.advanced.register_callback_state(stateless, None)


def poisoned(directory: Path, *callbacks: Any, **options: Any) -> None:
    """A job that ends, in its process, with weights that are not finite."""
    tiny.fit(tiny.model(), directory, [Poison(), *callbacks], save_freq=2, epochs=4, options=options)


def labels(directory: Path) -> list[str]:
    return [commit.label for commit in BackupStore(Storage.open(directory)).commits()]


class StopsAtNan(keras.callbacks.Callback):
    """An exception of the user's, which is saved."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not np.isfinite(logs["loss"]):
            raise tiny.Stop


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("way", ["TerminateOnNaN", "at the end", "raise_error"])
def test_a_fit_that_ends_with_nan_keeps_a_finite_backup_and_training_goes_back_to_it(tmp_path: Path, way: str) -> None:
    raises = way == "raise_error"

    def watching() -> list[Any]:
        return [] if way == "at the end" else [keras.callbacks.TerminateOnNaN(raise_error=raises)]

    if raises:
        with pytest.raises(RuntimeError, match="NaN"):
            poisoned(tmp_path, *watching(), save_on_exception=True)
    else:
        poisoned(tmp_path, *watching())
    assert "1-5" in labels(tmp_path)  # of the step before the poisoned one
    forget_runs()
    if not raises:
        with pytest.raises(kdc.Diverged, match=r"has ended at .* with values that are not finite .*`kdc rollback"):
            poisoned(tmp_path, *watching())
        forget_runs()
    told = kdc.rollback(tmp_path, before_step=POISONED, force=True)
    assert told.newest == "1-5"
    resumed = kdc.BackupAndRestore(tmp_path, delete_checkpoint=False)
    model = tiny.model()
    tiny.fit(model, None, [Clean(), *watching(), resumed], epochs=4)
    assert resumed.restored is not None
    assert (resumed.restored.rolled_back_from, resumed.restored.step) == (told.before, 10)
    expected = tiny.model()
    tiny.fit(expected, None, watching(), epochs=4)
    tiny.assert_same(model, expected)


def test_a_resume_of_what_is_not_finite_says_so_and_how_to_go_back(tmp_path: Path) -> None:
    tiny.stopped(poisoned, tmp_path, tiny.StopAt(3, 1))
    forget_runs()
    backup = kdc.BackupAndRestore(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"training continues with values that are not finite .*kdc rollback"):
        tiny.fit(tiny.model(), None, [Clean(), backup], epochs=4)
    assert backup.restored is not None
    assert backup.restored.not_finite


def test_the_line_of_a_resume_names_what_was_rolled_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.interrupt(tmp_path, 1, 2)
    forget_runs()
    kdc.rollback(tmp_path, to=labels(tmp_path)[-2], force=True)
    tiny.fit(tiny.model(), None, [kdc.BackupAndRestore(tmp_path)])
    newest = tiny.STEPS + 2
    assert f"1-{newest - 1} (rolled back from 1-{newest}) at epoch 2, batch 1" in capsys.readouterr().out


def test_the_newest_finite_checkpoint_stays_and_the_newest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saving = kdc.ModelCheckpoint(tmp_path / "ckpt-{epoch}.keras", max_to_keep=1)
    tiny.fit(tiny.model(), None, [Poison(), saving], epochs=4)
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == ["ckpt-2.keras", "ckpt-4.keras"]
    rows = {row["name"]: row for row in kdc_json("ls", tmp_path)["checkpoints"]}
    assert [rows[f"ckpt-{epoch}.keras"]["is_finite"] for epoch in (2, 4)] == [True, False]
    assert rows["ckpt-2.keras"]["kept_by"] == ["finite"]
    with pytest.warns(RuntimeWarning, match=r"ckpt-4.keras holds weights that are NaN or infinite"):
        kdc.make_or_restore_model(tiny.model, tmp_path)


@pytest.mark.filterwarnings("ignore:the resume is not exact")  # its rate is another one
def test_checkpoints_of_what_was_rolled_back_are_neither_the_best_nor_the_newest(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"

    def run(*others: Any) -> kdc.ModelCheckpoint:
        saving = kdc.ModelCheckpoint(checkpoints / "ckpt-{epoch}.keras", "loss", save_best_only=True)
        backup = kdc.BackupAndRestore(tmp_path / "backup", max_to_keep=9, delete_checkpoint=False)
        tiny.fit(tiny.model(), None, [*others, saving, backup], epochs=4)
        return saving

    tiny.stopped(run, tiny.StopAt(3, 1))
    assert sorted(path.name for path in checkpoints.glob("*.keras")) == [f"ckpt-{epoch}.keras" for epoch in (1, 2, 3)]
    forget_runs()
    kdc.rollback(tmp_path / "backup", before_epoch=2, force=True)
    saving = run(keras.callbacks.LearningRateScheduler(lambda epoch: -3.0))  # from then on worse
    assert [path.name for path in checkpoints.glob("*.keras")] == ["ckpt-1.keras"]
    assert sorted(path.name for path in checkpoints.glob("rolled-back/*")) == ["ckpt-2.keras", "ckpt-3.keras"]
    assert saving.best_path is not None
    assert saving.best_path.endswith("ckpt-1.keras")


def test_training_stops_where_the_loss_is_not_finite_and_the_backup_is_marked(tmp_path: Path) -> None:
    with pytest.raises(kdc.Diverged, match=r"the loss \(nan\) is not finite at epoch 3, batch 3 .*everything is saved"):
        poisoned(tmp_path, on_nonfinite="stop")
    store = BackupStore(Storage.open(tmp_path))
    newest = store.manifest(store.commits()[-1])
    assert newest.position.step == POISONED + 1
    assert newest.info["not_finite"]
    assert "1-5" in labels(tmp_path)


def test_without_a_loss_that_is_not_finite_nothing_changes(tmp_path: Path) -> None:
    tiny.resumes(tmp_path, options={"on_nonfinite": "stop"})

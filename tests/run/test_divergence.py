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

"""What is looked up in a running fit()."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks._compat import graphs, running_fit
from tests.support import ROOT, tiny


class Looks(keras.callbacks.Callback):
    """Looks at fit's iterator at each epoch's end, and notes in the next epoch whether it still exists."""

    def __init__(self) -> None:
        super().__init__()
        self.iterator: Any = None
        self.is_kept: list[bool] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1 and self.iterator is not None:
            gc.collect()
            self.is_kept.append(self.iterator() is not None)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        fit = running_fit.find_fit(self.model)
        assert fit is not None
        self.iterator = weakref.ref(fit.argument("iterator"))


@pytest.mark.slow
def test_a_look_at_fit_does_not_keep_the_iterators_of_past_epochs() -> None:
    looks = Looks()
    tiny.fit(tiny.model(), None, [looks])
    assert looks.is_kept == [False, False]


@pytest.mark.slow
def test_train_functions_are_not_looked_into_after_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    compiled = graphs._compiled
    monkeypatch.setattr(graphs, "_compiled", lambda function: (asked.append(function), compiled(function))[1])
    counts = []
    for epochs in (1, 4):
        asked.clear()
        tiny.fit(tiny.model(), None, [kdc.BackupAndRestore(tmp_path / str(epochs), save_freq=False)], epochs=epochs)
        counts.append(len(asked))
    assert counts[1] - counts[0] <= 3  # an epoch each, of five steps


@pytest.mark.process
@pytest.mark.slow
def test_under_replicas_the_arrays_of_a_py_dataset_stay_as_the_script_made_them() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.views_job"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    changed, of_aligned, of_others = done.stdout.split()[-3:]
    assert changed == "0"
    assert of_aligned == of_others  # the end does not depend on where in memory the rows are

"""A verdict includes the resumes before: training is exact only if each of them was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Position
from tests.support import tiny

pytestmark = pytest.mark.slow  # complete fits


class Decay(keras.callbacks.Callback):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 * self.factor**epoch


def run(directory: Path, stop: tuple[int, int] | None, factor: float) -> kdc.BackupAndRestore:
    backup = kdc.BackupAndRestore(
        directory, save_freq=2, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
    )
    stops = [tiny.StopAt(*stop)] if stop else []
    try:
        tiny.fit(tiny.model(), None, [Decay(factor), *stops, backup], epochs=4)
    except tiny.Stop:
        assert stop is not None
    return backup


def test_a_resume_after_one_that_was_not_exact_is_conditional(tmp_path: Path) -> None:
    run(tmp_path, (1, 3), 0.5)
    with pytest.warns(RuntimeWarning, match="factor of the callback Decay changed from 0.5 to 0.25"):
        second = run(tmp_path, (2, 3), 0.25)
    assert second.restored is not None
    assert second.restored.verdict == "not exact"
    for stop in ((3, 3), None):
        later = run(tmp_path, stop, 0.25).restored
        assert later is not None
        assert later.verdict == "exact if"
        assert later.conditions == (
            "the resume at epoch 2, batch 3 (step 8), which was not exact, made no difference: factor of the callback "
            "Decay changed from 0.5 to 0.25",
        )


def test_resumes_that_were_exact_add_no_condition(tmp_path: Path) -> None:
    run(tmp_path, (1, 3), 0.5)
    for stop in ((2, 3), (3, 3), None):
        restored = run(tmp_path, stop, 0.5).restored
        assert restored is not None
        assert restored.verdict == "exact"


def test_a_reason_is_carried_once() -> None:
    lost, condition = Finding("environment", detail=("the CPU model", "A", "B")), Finding("step-opaque")
    carried: list[Finding] = []
    for step in (3, 5):
        carried = verdict.carried(Position("within", 0, step, step), [lost, *carried, condition])
        carried = list(dict.fromkeys(carried))
    assert carried == [replace(lost, carried_from="epoch 1, batch 3 (step 3)"), condition]

"""A verdict includes the resumes before: training is exact only if each of them was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

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


def test_a_resume_after_one_that_was_not_exact_is_conditional(tmp_path: Path) -> None:
    factors = iter([0.5, 0.25, 0.25, 0.25])
    given: dict[str, Any] = {"at": ((1, 3), (2, 3), (3, 3)), "save_freq": 2, "epochs": 4, "expects": "exact if"}
    with pytest.warns(RuntimeWarning, match="not exact: factor of the callback Decay changed from 0.5 to 0.25"):
        ended = tiny.resumes(tmp_path, callbacks=lambda: [Decay(next(factors))], **given)
    assert ended.restored.conditions == (
        "the resume at epoch 2, batch 3 (step 8), which was not exact, made no difference: factor of the callback "
        "Decay changed from 0.5 to 0.25",
    )


def test_resumes_that_were_exact_add_no_condition(tmp_path: Path) -> None:
    places = ((1, 3), (2, 3), (3, 3))
    tiny.resumes(tmp_path, at=places, save_freq=2, epochs=4, callbacks=lambda: [Decay(0.5)])


def test_a_reason_is_carried_once() -> None:
    lost, condition = Finding("environment", detail=("the CPU model", "A", "B")), Finding("step-opaque")
    carried: list[Finding] = []
    for step in (3, 5):
        carried = verdict.carried(Position("within", 0, step, step), [lost, *carried, condition])
        carried = list(dict.fromkeys(carried))
    assert carried == [replace(lost, carried_from="epoch 1, batch 3 (step 3)"), condition]

"""A backup of another model is refused with what changed; one that a callback compiles later is restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import BackupError, BackupMismatchError
from tests.support import files, tiny
from tests.support.refused_models import CHANGES, FIXES, Unfreeze, compiled

pytestmark = [
    pytest.mark.slow,  # complete fits
    pytest.mark.filterwarnings("ignore:.*shuffle=True:UserWarning"),
]


@pytest.mark.finds("other-training")
@pytest.mark.parametrize(("before", "now", "what"), CHANGES)
@pytest.mark.in_gate(2)
def test_what_made_it_another_model_is_named_with_both_cures(
    tmp_path: Path, before: dict[str, bool], now: dict[str, bool], what: str
) -> None:
    tiny.interrupt(tmp_path, 1, 2, built=compiled(**before))
    saved, steps = files(tmp_path), tiny.CountSteps()
    with pytest.raises(BackupMismatchError, match=f"{what}; {FIXES}"):
        tiny.fit(compiled(**now), tmp_path, [steps])
    assert steps.trained == []
    assert saved.items() <= files(tmp_path).items()


@pytest.mark.finds("setting")
def test_an_input_that_ends_early_with_another_batch_size_names_it(tmp_path: Path) -> None:
    x, y = tiny.data()
    tiny.interrupt(tmp_path, 1, 4, built=compiled(), x=x, y=y, batch_size=8)
    with pytest.raises(BackupError, match=r"the input ended before the 4 batches.*batch_size changed from 8 to 20"):
        tiny.fit(compiled(), tmp_path, x=x, y=y, batch_size=20)


@pytest.mark.parametrize(("stop", "save_freq"), [((1, 2), "epoch"), ((0, 3), 1)])
@pytest.mark.in_gate(1)
def test_a_backup_from_before_a_callback_unfreezes_and_compiles_is_resumed_exactly(
    tmp_path: Path, stop: tuple[int, int], save_freq: str | int
) -> None:
    tiny.resumes(
        tmp_path, lambda: compiled(trainable=False), at=stop, save_freq=save_freq, callbacks=lambda: [Unfreeze(1)]
    )

"""Every kind of input continues exactly where it was, or is labelled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.py_dataset_adapter import OrderedEnqueuer

import keras_dist_callbacks as kdc
from tests.support import tiny
from tests.support.inputs import INPUTS, Batches

pytestmark = pytest.mark.slow  # complete fits


@pytest.mark.filterwarnings("ignore:.*input ran out of data.*:UserWarning")
@pytest.mark.parametrize(
    "where",
    [pytest.param((1, 1), marks=pytest.mark.chaos), pytest.param((3, 0), marks=pytest.mark.chaos), (3, 1)],
    ids=["epoch1", "between", "epoch3"],
)
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.in_gate(2)
def test_an_input_continues_exactly_where_it_was(tmp_path: Path, name: str, where: tuple[int, int]) -> None:
    reference = tiny.model()
    expected = tiny.fit(reference, None, epochs=5, **INPUTS[name]())
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [tiny.StopAt(*where)], epochs=5, **INPUTS[name]())
    model = tiny.model()
    history = tiny.fit(model, tmp_path, epochs=5, **INPUTS[name]())
    assert history.history == expected.history
    tiny.assert_same(model, reference)


@pytest.mark.finds("input-code-ahead")
def test_what_several_workers_read_of_past_passes_is_not_taken_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = OrderedEnqueuer.stop

    def stop_later(self: OrderedEnqueuer, *given: Any, **more: Any) -> None:
        time.sleep(0.1)  # they get on with a pass that is only counted
        stop(self, *given, **more)

    monkeypatch.setattr(OrderedEnqueuer, "stop", stop_later)

    def fit(backup: Path | None, *callbacks: Any) -> tuple[keras.Model, Any]:
        model = tiny.model()
        return model, tiny.fit(model, backup, callbacks, epochs=3, x=Batches(workers=2), shuffle=True).history

    reference, expected = fit(None)
    with pytest.raises(tiny.Stop):
        fit(tmp_path, tiny.StopAt(1, 1))
    model, history = fit(tmp_path)
    assert history == expected
    tiny.assert_same(model, reference)


@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.chaos), pytest.param(2, marks=pytest.mark.finds("read-ahead-before"))]
)
def test_batches_that_workers_read_before_training_under_a_strategy_are_named(tmp_path: Path, workers: int) -> None:
    """Keras trains them in the first epochs: how many there are is a matter of time."""

    def model() -> keras.Model:
        keras.utils.clear_session(free_memory=False)
        with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
            return tiny.model(clear=False)

    with pytest.raises(tiny.Stop):
        tiny.fit(model(), tmp_path, [tiny.StopAt(1, 1)], epochs=3, x=Batches(workers=workers))
    callback = kdc.BackupAndRestore(tmp_path, save_freq=1, verbose=0)
    model().fit(Batches(workers=workers), epochs=3, verbose=0, callbacks=[callback])
    assert callback.restored is not None
    assert any("workers=1" in note for note in callback.restored.notes) == (workers > 1)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_epochs_of_changing_lengths_resume_exactly(tmp_path: Path, seed: int) -> None:
    """Keras makes one iterator more after an epoch with more batches than the first, and never reads it."""

    def varying() -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices(tiny.data()).shuffle(tiny.ROWS, seed=seed).enumerate()
        some = rows.filter(lambda place, row: row[0][0] > tf.sin(tf.cast(place, tf.float32)))
        return some.map(lambda place, row: row).batch(2)

    def run(backup: Path | None, *callbacks: Any) -> tuple[keras.Model, tiny.CountSteps]:
        built, steps = tiny.model(), tiny.CountSteps()
        tf.random.set_seed(seed)
        tiny.fit(built, backup, [steps, *callbacks], x=varying(), epochs=6)
        return built, steps

    expected, steps = run(None)
    lengths = [sum(epoch == e for e, _ in steps.trained) for epoch in range(6)]
    assert len(set(lengths)) > 1
    with pytest.raises(tiny.Stop):
        run(tmp_path, tiny.StopAt(4, 2))
    tiny.assert_same(run(tmp_path)[0], expected)

"""Inputs that need no replay: addressed by epoch, or knowing their own position; and how little is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError, ConfigError
from tests.support import tiny
from tests.support.inputs import Batches

pytestmark = pytest.mark.slow  # complete fits


def by_epoch(epoch: int) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices(tiny.data())
    nested = rows.shuffle(tiny.ROWS, seed=epoch).shuffle(20, seed=epoch + 100)
    return nested.map(lambda x, y: (x + tf.random.stateless_normal((6,), (epoch, 1)), y)).batch(tiny.BATCH)


@pytest.mark.parametrize("where", [(1, 2), (3, 0)], ids=str)
@pytest.mark.parametrize("arguments", [{}, {"class_weight": {0: 1.0, 1: 3.0}}, {"steps_per_epoch": 3}], ids=str)
@pytest.mark.in_gate(1)
def test_data_addressed_by_epoch_resume_exactly(tmp_path: Path, where: Any, arguments: dict[str, Any]) -> None:
    asked: list[list[int]] = []

    def noting() -> list[Any]:
        asked.append(noted := [])
        return [kdc.EpochDataset(lambda epoch: noted.append(epoch) or by_epoch(epoch))]

    given: dict[str, Any] = {"x": lambda: by_epoch(0), "epochs": 4, **arguments}
    tiny.resumes(tmp_path, at=where, callbacks=noting, expects=None, **given)
    assert asked[1] == list(range(where[0] - (where[1] == 0), 4)), "a save behind the last step is within its epoch"


def test_each_epoch_reads_its_own_dataset() -> None:
    seen: list[int] = []

    def numbered(epoch: int) -> tf.data.Dataset:
        x, y = tiny.data()
        return tf.data.Dataset.from_tensors((np.full_like(x, epoch), y))

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            from keras_dist_callbacks._compat.running_fit import find_fit

            fit = find_fit(self.model)
            assert fit is not None
            seen.append(int(next(iter(fit.data))[0][0, 0]))

    tiny.fit(tiny.model(), None, [kdc.EpochDataset(numbered), Look()], x=numbered(0))
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    ("fn", "match"),
    [
        (lambda epoch: [1, 2], "returned a list, not a tf.data.Dataset"),
        (lambda epoch: tf.data.Dataset.range(3), "but fit\\(\\) was given"),
    ],
)
def test_a_function_that_returns_something_else_is_refused(fn: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        tiny.fit(tiny.model(), None, [kdc.EpochDataset(fn)])


class Positioned(Batches):
    """Draws its order from its own generator, which no replay could know."""

    def __init__(self, methods: str) -> None:
        super().__init__()
        self.generator = np.random.default_rng(5)
        self.order = self.generator.permutation(tiny.STEPS)
        if methods == "state_dict":
            self.state_dict, self.load_state_dict = self.position, self.go_to
        else:
            self.get_state, self.set_state = self.position, self.go_to

    def on_epoch_end(self) -> None:
        self.order = self.generator.permutation(tiny.STEPS)

    def position(self) -> dict[str, Any]:
        return {"order": self.order, "generator": self.generator.bit_generator.state}

    def go_to(self, state: dict[str, Any]) -> None:
        self.order = state["order"]
        self.generator.bit_generator.state = state["generator"]


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("where", [(1, 2), (2, 0)], ids=str)
@pytest.mark.parametrize("methods", ["get_state", "state_dict"])
def test_an_input_that_knows_its_position_is_asked(tmp_path: Path, methods: str, where: Any) -> None:
    tiny.resumes(tmp_path, at=where, x=lambda: Positioned(methods), epochs=4, expects=None)


@pytest.mark.finds("input-code")
def test_resuming_a_late_epoch_does_not_read_the_past_ones(tmp_path: Path) -> None:
    read = 0

    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal read
        for row in zip(*tiny.data(), strict=True):
            read += 1
            yield row

    def counted() -> tf.data.Dataset:
        signature = (tf.TensorSpec((6,), "float32"), tf.TensorSpec((1,), "float32"))
        dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(tiny.ROWS))
        return dataset.shuffle(tiny.ROWS, seed=3, reshuffle_each_iteration=True).batch(tiny.BATCH)

    tiny.interrupt(tmp_path, 50, 2, tiny.STEPS * 50 + 2, epochs=60, x=counted())
    read = 0
    tiny.interrupt(tmp_path, 51, 0, epochs=60, x=counted())
    skipped = 2 * tiny.BATCH
    assert 0 < read <= tiny.ROWS + skipped


@pytest.mark.finds("passes-counted")
def test_a_reshuffling_dataset_that_was_iterated_before_is_labelled(tmp_path: Path) -> None:
    dataset, model = tiny.shuffled(), tiny.model()
    tiny.interrupt(tmp_path, 1, 2, built=model, x=dataset)
    match = "this dataset object .* had been read 0 times before the interrupted run, but 2 times before"
    with pytest.warns(RuntimeWarning, match=match):
        tiny.fit(model, tmp_path, x=dataset)


def test_strict_turns_an_inexact_resume_into_an_error_before_training(tmp_path: Path) -> None:
    for where, save_freq in (((1, 2), 1), ((2, 0), "epoch")):
        directory = tmp_path / str(save_freq)
        tiny.interrupt(directory, *where, save_freq)
        before = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}
        model, steps = tiny.model(), tiny.CountSteps()
        keras.utils.set_random_seed(8)
        with pytest.raises(BackupError, match=r"belongs to another fit.*: the global seed"):
            tiny.fit(model, directory, [steps], save_freq=save_freq, options={"strict": True})
        assert steps.trained == []
        assert all(p.read_bytes() == content for p, content in before.items())
        exact = tiny.model()
        tiny.fit(exact, directory, save_freq=save_freq, options={"strict": True})

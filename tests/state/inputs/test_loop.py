"""Loops that take a dataset's own iterator, within a tf.function too; and what is said of those that go around it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError
from keras_dist_callbacks.run.engine.writer import shared_writer
from tests.support import tiny

pytestmark = pytest.mark.slow  # complete trainings
Take = Callable[[kdc.Checkpointer, tf.data.Dataset], Iterable[Any]]


def loop(directory: Path, take: Take, stop: tuple[int, int] | None = None, *, at_once: bool = False) -> keras.Model:
    """Trains three epochs; with `at_once`, each of them is one call of a tf.function over what `take` returns."""
    model, dataset = tiny.model(), tiny.shuffled()
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    @tf.function
    def train_epoch(batches: Any) -> Any:
        trained = tf.constant(0)
        for x, y in batches:
            train_step(x, y)
            trained += 1
        return trained

    with kdc.Checkpointer(
        directory, model=model, optimizer=optimizer, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait")
    ) as checkpointer:
        checkpointer.restore()
        for epoch in checkpointer.epochs(3):
            if (epoch, 0) == stop:
                raise tiny.Stop
            if at_once:
                checkpointer.step(int(train_epoch(take(checkpointer, dataset))))
                continue
            for x, y in take(checkpointer, dataset):
                if (epoch, checkpointer.batch) == stop:
                    raise tiny.Stop
                train_step(x, y)
                checkpointer.step()
    return model


def by_next(checkpointer: kdc.Checkpointer, dataset: tf.data.Dataset) -> Iterable[Any]:
    iterator = checkpointer.iterator(dataset)
    for _ in range(tiny.STEPS - checkpointer.batch):
        yield next(iterator)


@pytest.mark.in_gate(2)
@pytest.mark.parametrize(
    ("take", "stop", "at_once"),
    [
        (kdc.Checkpointer.iterator, (2, 0), True),
        (kdc.Checkpointer.iterator, (1, 2), False),
        (by_next, (2, 3), False),
    ],
    ids=["epochs within a tf.function", "for", "next"],
)
def test_a_loop_over_an_iterator_ends_as_if_never_interrupted(
    tmp_path: Path, take: Take, stop: tuple[int, int], at_once: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = loop(tmp_path / "reference", take, at_once=at_once)
    with pytest.raises(tiny.Stop):
        loop(tmp_path / "backup", take, stop, at_once=at_once)
    capsys.readouterr()
    model = loop(tmp_path / "backup", take, at_once=at_once)
    said = capsys.readouterr().out
    assert f"epoch {stop[0] + (stop[1] > 0)}" in said
    assert "did not take its batches" not in said
    tiny.assert_same(model, reference)


def test_batches_and_the_iterator_are_the_same(tmp_path: Path) -> None:
    ours, theirs = (loop(tmp_path, take) for take in (kdc.Checkpointer.batches, kdc.Checkpointer.iterator))
    tiny.assert_same(ours, theirs)


@pytest.mark.finds("loop-batches")
def test_the_resume_of_a_loop_that_takes_batches_by_itself_names_its_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def around(checkpointer: kdc.Checkpointer, dataset: tf.data.Dataset) -> Iterable[Any]:
        return dataset.skip(checkpointer.batch)

    reference = loop(tmp_path / "reference", around)
    with pytest.raises(tiny.Stop):
        loop(tmp_path / "backup", around, (1, 2))
    capsys.readouterr()
    model = loop(tmp_path / "backup", around)
    assert (
        "exact if your loop gives each step the same batch as before; Checkpointer.batches()" in capsys.readouterr().out
    )
    with pytest.raises(AssertionError):  # past shuffles are not drawn again
        tiny.assert_same(model, reference)


def test_an_iterator_of_fewer_batches_than_were_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tiny.Stop):
        loop(tmp_path, kdc.Checkpointer.iterator, (0, 4))
    with pytest.raises(BackupError, match="batch"):
        loop(tmp_path, lambda checkpointer, dataset: checkpointer.iterator(dataset.take(2)))
    assert np.array(list((tmp_path / "commits").iterdir())).size == 2


def trained_without_a_seed(directory: Path, copy: Path | None, made_for_epoch: bool) -> tuple[list[Any], Any]:
    """Trains three epochs; in the second one, the backups are copied as a kill would leave them."""
    dense = keras.layers.Dense(1, kernel_initializer="zeros")
    model, optimizer = keras.Sequential([keras.Input((6,)), dense]), keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    dataset = tf.data.Dataset.from_tensor_slices(tiny.data()).shuffle(tiny.ROWS).batch(tiny.BATCH)
    options = kdc.WriteOptions(when_busy="wait")
    with kdc.Checkpointer(
        directory, model=model, optimizer=optimizer, save_freq=1, delete_checkpoint=False, write_options=options
    ) as checkpointer:
        checkpointer.restore()
        for epoch in checkpointer.epochs(3):
            for x, y in checkpointer.batches(dataset, made_for_epoch=made_for_epoch):
                if (epoch, checkpointer.batch) == (1, 3) and copy is not None:
                    shared_writer().finish_earlier()
                    shutil.copytree(directory, copy)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
                checkpointer.step()
    return model.get_weights(), checkpointer.restored


@pytest.mark.finds("loop-unseeded")
@pytest.mark.parametrize("made_for_epoch", [False, True])
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_a_dataset_without_a_seed_is_given_one_unless_each_epoch_has_its_own(
    tmp_path: Path, made_for_epoch: bool
) -> None:
    tf.random.set_seed(None)
    try:
        expected, _ = trained_without_a_seed(tmp_path / "run", tmp_path / "copy", made_for_epoch)
        resumed, restored = trained_without_a_seed(tmp_path / "copy", None, made_for_epoch)
    finally:
        tf.random.set_seed(7)
    assert restored.position.kind == "within"
    unseeded = [note for note in restored.notes if note.startswith("Dataset.shuffle(40) of the input has no seed")]
    assert bool(unseeded) == made_for_epoch
    if not made_for_epoch:
        np.testing.assert_array_equal(resumed[0], expected[0])

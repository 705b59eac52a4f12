"""Arrays that fit() shuffles without a seed are read in an order that a resume repeats."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks._compat import rng
from keras_dist_callbacks.run.engine.writer import shared_writer
from tests.support import tiny

pytestmark = pytest.mark.slow  # complete fits

ROWS, BATCH = 20, 4
X = np.arange(ROWS, dtype="float32")[:, None]


@pytest.fixture(autouse=True)
def no_seed() -> Iterator[None]:
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(7)


class NotesRows(keras.Model):
    """Notes the rows of each batch, by their numbers, in the order in which they are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen: list[list[int]] = []

    def call(self, x: Any) -> Any:
        return self.dense(x / ROWS)

    def train_step(self, data: Any) -> Any:
        tf.numpy_function(lambda rows: self.seen.append(rows[:, 0].astype(int).tolist()), [data[0]], [])
        return super().train_step(data)


def notes_rows() -> NotesRows:
    model = NotesRows()
    model(X[:BATCH])
    model.compile("sgd", "mse")
    return model


def orders(backup: Path | None, *fits: dict[str, Any], **arguments: Any) -> list[list[int]]:
    """The rows of each epoch of some fits of one model, as they were trained."""
    model = notes_rows()
    callback = [] if backup is None else [kdc.BackupAndRestore(backup, delete_checkpoint=len(fits) > 1)]
    for given in fits:
        model.fit(X, X, batch_size=BATCH, verbose=0, callbacks=callback, **arguments, **given)
    by_epoch = zip(*[iter(model.seen)] * (ROWS // BATCH), strict=True)
    return [list(itertools.chain(*batches)) for batches in by_epoch]


class CopyAt(keras.callbacks.Callback):
    """Copies the backup directory before a batch is trained, as a kill there would leave it."""

    def __init__(self, source: Path, epoch: int, batch: int) -> None:
        super().__init__()
        self.source, self.target, self.where = source, source.with_name("copy"), (epoch, batch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.where and not self.target.exists():
            shared_writer().finish_earlier()
            shutil.copytree(self.source, self.target)


kdc.advanced.register_callback_state(CopyAt, None)


def drops_out() -> keras.Model:
    """Its weights depend on each row's place; nothing in it has a seed."""
    keras.utils.clear_session(free_memory=False)
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    built = keras.Sequential([keras.Input((1,)), *layers])
    built.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    return built


def trained(backup: Path, *callbacks: Any, strategy: Any = None, **arguments: Any) -> tuple[keras.Model, Any]:
    with (strategy or tf.distribute.get_strategy()).scope():
        model = drops_out()
    callback = kdc.BackupAndRestore(
        backup, save_freq=1, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
    )
    given = {"epochs": 5, "batch_size": BATCH, "verbose": 0, **arguments}
    model.fit(X, X, callbacks=[*callbacks, callback], **given)
    return model, callback.restored


@pytest.mark.in_gate(2)
@pytest.mark.parametrize(
    ("where", "arguments"),
    [
        ((2, 3), {}),
        pytest.param((2, 3), {"shuffle": "batch"}, marks=pytest.mark.chaos),
        pytest.param((0, 2), {}, marks=pytest.mark.chaos),
        # An iterator of 5 batches is read in epochs of 3: epoch 3 ends the second pass.
        ((3, 1), {"steps_per_epoch": 3}),
        pytest.param((4, 0), {"steps_per_epoch": 3, "shuffle": "batch"}, marks=pytest.mark.chaos),
        pytest.param((2, 1), {"steps_per_epoch": 3}, marks=pytest.mark.chaos),
        pytest.param((3, 2), {"initial_epoch": 2}, marks=pytest.mark.chaos),
        ((3, 1), {"validation_data": (X, X), "class_weight": None, "sample_weight": X[:, 0]}),
    ],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_a_resume_without_a_seed_reads_the_rest_of_the_order(
    tmp_path: Path, where: tuple[int, int], arguments: dict[str, Any]
) -> None:
    copy = CopyAt(tmp_path / "backup", *where)
    expected, _ = trained(tmp_path / "backup", copy, **arguments)
    model, restored = trained(tmp_path / "copy", **arguments)
    assert restored is not None
    assert restored.verdict == "exact"
    assert where[1] == 0 or (restored.position.epoch, restored.position.batch) == where
    tiny.assert_same(model, expected)


@pytest.mark.finds("traced")
@pytest.mark.filterwarnings("ignore:an earlier fit:RuntimeWarning")
@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_each_pass_of_each_fit_has_an_order_of_its_own(tmp_path: Path, shuffle: Any) -> None:
    found = orders(tmp_path / "one", {"epochs": 3}, shuffle=shuffle)
    found += orders(tmp_path / "another", {"epochs": 1}, shuffle=shuffle)
    found += orders(tmp_path / "loop", *[{"epochs": 1}] * 3, shuffle=shuffle)
    found += orders(tmp_path / "continued", *[{"initial_epoch": e, "epochs": e + 1} for e in range(3)], shuffle=shuffle)
    assert all(sorted(order) == list(range(ROWS)) for order in found)
    assert len({tuple(order) for order in found}) == len(found) == 10
    if shuffle == "batch":
        starts = range(0, ROWS, BATCH)
        batches = [[row - start for row in order[start : start + BATCH]] for order in found for start in starts]
        assert all(sorted(batch) == list(range(BATCH)) for batch in batches)
        assert len({tuple(batch) for batch in batches}) > 12  # of 24; those of a pass are not alike


@pytest.mark.finds("step-python")
@pytest.mark.filterwarnings("ignore:an earlier fit:RuntimeWarning")
def test_global_random_states_are_as_without_a_backup(tmp_path: Path) -> None:
    def states_after(backup: Path | None) -> Any:
        keras.utils.set_random_seed(3)
        tf.random.set_seed(None)
        orders(backup, {"epochs": 1})
        return rng.capture()

    assert states_after(tmp_path) == states_after(None)


@pytest.mark.parametrize("arguments", [{"shuffle": False}, {"seed": 3}], ids=["not shuffled", "seeded"])
def test_an_order_that_is_the_same_in_each_run_stays_and_no_seed_is_saved(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    def order(backup: Path | None) -> Any:
        tf.random.set_seed(arguments.get("seed"))
        return orders(backup, {"epochs": 2}, shuffle=arguments.get("shuffle", True))

    assert order(tmp_path) == order(None)
    manifests = [path.read_text() for path in tmp_path.glob("commits/*.json")]
    assert manifests
    assert not any('"order":' in manifest for manifest in manifests)


@pytest.mark.finds("order-seeded-now")
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_a_seed_that_only_the_resumed_run_sets_is_named(tmp_path: Path) -> None:
    trained(tmp_path / "backup", CopyAt(tmp_path / "backup", 1, 2))
    tf.random.set_seed(3)
    _, restored = trained(tmp_path / "copy")
    assert [note for note in restored.notes if "had no global seed, and this one has" in note]


@pytest.mark.chaos
@pytest.mark.filterwarnings("ignore:an earlier fit:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.parametrize("continues", [True, False], ids=["initial_epoch", "epochs=1"])
def test_a_loop_of_fits_that_is_resumed_in_one_of_them_has_the_orders_of_those_that_follow(
    tmp_path: Path, continues: bool
) -> None:
    def train(backup: Path, *callbacks: Any) -> keras.Model:
        model = drops_out()
        callback = kdc.BackupAndRestore(
            backup, save_freq=1, delete_checkpoint=not continues, write_options=kdc.WriteOptions(when_busy="wait")
        )
        for fit in range(4):
            epochs = {"initial_epoch": fit, "epochs": fit + 1} if continues else {"epochs": 1}
            model.fit(X, X, batch_size=BATCH, verbose=0, callbacks=[*callbacks[fit : fit + 1], callback], **epochs)
        return model

    nothing = keras.callbacks.Callback()
    copy = CopyAt(tmp_path / "backup", 2 if continues else 0, 3)
    expected = train(tmp_path / "backup", nothing, nothing, copy)
    tiny.assert_same(train(tmp_path / "copy"), expected)

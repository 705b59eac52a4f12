"""Fits over `tf.data` pipelines without a seed: a resume in mid-epoch ends as the run that was not interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.run.engine.writer import shared_writer

pytestmark = [
    pytest.mark.slow,  # complete fits
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]
ROWS, BATCH = 24, 4
X = np.random.default_rng(0).normal(size=(ROWS, 2)).astype("float32")
Y = X.sum(1)
Dataset = tf.data.Dataset
Fit = dict[str, Any]


@pytest.fixture(autouse=True)
def no_seed() -> Iterator[None]:
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(7)


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


def rows() -> Dataset:
    return Dataset.from_tensor_slices((X, Y))


def shuffled() -> Dataset:
    return rows().shuffle(ROWS)


def augmented() -> Dataset:
    noise = keras.layers.GaussianNoise(0.1)
    return shuffled().batch(BATCH).map(lambda x, y: (noise(x, training=True), y))


def generated() -> Dataset:
    signature = (tf.TensorSpec((2,)), tf.TensorSpec(()))
    return Dataset.from_generator(lambda: iter(zip(X, Y, strict=True)), output_signature=signature)


def sampled() -> Dataset:
    return Dataset.sample_from_datasets([shuffled().repeat(), shuffled().repeat()])


FORMS: dict[str, Callable[[], Fit]] = {
    "shuffled": lambda: {"x": shuffled().batch(BATCH)},
    "cached": lambda: {"x": rows().cache().shuffle(ROWS).batch(BATCH).prefetch(2)},
    "cached after": lambda: {"x": shuffled().cache().batch(BATCH)},
    "mapped": lambda: {"x": shuffled().map(lambda x, y: (x * 2, y), num_parallel_calls=2).batch(BATCH).prefetch(2)},
    "augmented": lambda: {"x": augmented()},
    "two shuffles": lambda: {"x": shuffled().batch(BATCH).shuffle(6)},
    "zip": lambda: {"x": Dataset.zip((rows().map(lambda x, _: x), rows().map(lambda _, y: y))).shuffle(9).batch(BATCH)},
    "endless": lambda: {"x": shuffled().repeat().batch(BATCH), "steps_per_epoch": 4},
    "longer than an epoch": lambda: {"x": shuffled().batch(BATCH), "steps_per_epoch": 4},
    "interleave": lambda: {"x": Dataset.range(4).shuffle(4).interleave(lambda n: rows().shard(4, n)).batch(BATCH)},
    "sample_from_datasets": lambda: {"x": sampled().batch(BATCH), "steps_per_epoch": 5},
    "generated": lambda: {"x": kdc.advanced.stateless_input(generated().shuffle(ROWS).batch(BATCH))},
    "validated": lambda: {"x": shuffled().batch(BATCH), "validation_data": shuffled().batch(BATCH)},
    "validated alone": lambda: {"x": rows().batch(BATCH), "validation_data": shuffled().batch(BATCH)},
    "weighted": lambda: {
        "x": rows().map(lambda x, y: (x, tf.round(abs(y) % 1))).shuffle(ROWS).batch(BATCH),
        "class_weight": {0: 2.0, 1: 1.0},
    },
    "endless, reread": lambda: {"x": shuffled().repeat().batch(BATCH), "steps_per_epoch": 4, "reread_input": True},
}


def model() -> keras.Model:
    layers = [keras.layers.Dense(4, kernel_initializer=keras.initializers.GlorotUniform(1)), keras.layers.Dense(1)]
    layers[1].kernel_initializer = keras.initializers.GlorotUniform(2)
    built = keras.Sequential([keras.Input((2,)), *layers], name="model")
    built.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return built


def trained(backup: Path, fit: Fit, *callbacks: Any, epochs: int = 4, **options: Any) -> tuple[keras.Model, Any, Any]:
    built, fit = model(), dict(fit)
    again = {name: fit.pop(name) for name in ("reread_input",) if name in fit}
    callback = kdc.BackupAndRestore(
        backup,
        save_freq=1,
        delete_checkpoint=False,
        write_options=kdc.WriteOptions(when_busy="wait"),
        **again,
        **options,
    )
    history = built.fit(epochs=epochs, verbose=0, shuffle=False, callbacks=[*callbacks, callback], **fit)
    return built, callback.restored, history.history


def assert_same(one: keras.Model, other: keras.Model) -> None:
    for ours, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("where", [(2, 3), (0, 2)], ids=["third epoch", "first epoch"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.in_gate(3)
def test_a_resume_without_a_seed_is_exact(tmp_path: Path, form: str, where: tuple[int, int]) -> None:
    make = FORMS[form]
    expected, _, history = trained(tmp_path / "run", make(), CopyAt(tmp_path / "run", *where))
    resumed, restored, resumed_history = trained(tmp_path / "copy", make())
    assert restored.verdict == "exact", (restored.notes, restored.conditions)
    assert restored.position.kind == "within"
    assert_same(resumed, expected)
    assert resumed_history == history


def test_what_the_script_reads_before_fit_makes_no_difference(tmp_path: Path) -> None:
    expected, _, _ = trained(tmp_path / "run", FORMS["shuffled"](), CopyAt(tmp_path / "run", 2, 3))
    fit = FORMS["shuffled"]()
    list(fit["x"])
    resumed, restored, _ = trained(tmp_path / "copy", fit)
    assert restored.verdict == "exact"
    assert_same(resumed, expected)


@pytest.mark.filterwarnings("ignore:an earlier fit:RuntimeWarning")
def test_two_runs_and_two_fits_have_orders_of_their_own(tmp_path: Path) -> None:
    dataset, finals = shuffled().batch(BATCH), []
    for directory in (tmp_path / "one", tmp_path / "one", tmp_path / "two"):
        built = model()
        built.fit(dataset, verbose=0, shuffle=False, callbacks=[kdc.BackupAndRestore(directory)])
        finals.append(built.get_weights()[0].tobytes())
    assert len(set(finals)) == 3


def test_in_a_loop_of_fits_the_interrupted_one_is_resumed(tmp_path: Path) -> None:
    def loop(directory: Path, *callbacks: Any) -> tuple[keras.Model, list[Any]]:
        built, dataset, restored = model(), shuffled().batch(BATCH), []
        for epoch in range(4):
            callback = kdc.BackupAndRestore(
                directory, save_freq=1, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
            )
            hooks = [*callbacks, callback]
            built.fit(dataset, initial_epoch=epoch, epochs=epoch + 1, verbose=0, shuffle=False, callbacks=hooks)
            restored.append(callback.restored)
        return built, restored

    expected, _ = loop(tmp_path / "run", CopyAt(tmp_path / "run", 2, 3))
    resumed, restored = loop(tmp_path / "copy")
    assert restored[2].position == kdc_position(2, 3, 15)
    assert not restored[2].notes
    assert_same(resumed, expected)


def kdc_position(epoch: int, batch: int, step: int) -> Any:
    from keras_dist_callbacks.backups.snapshot import Position

    return Position("within", epoch, batch, step)


@pytest.mark.finds("unseeded-fixed")
@pytest.mark.parametrize(("epoch", "batch"), [(2, 3), (2, 0)], ids=["within", "between"])
def test_an_order_that_is_drawn_again_is_named(tmp_path: Path, epoch: int, batch: int) -> None:
    def fit() -> Fit:
        return {"x": rows().shuffle(ROWS, reshuffle_each_iteration=False).take(20).batch(BATCH)}

    options = {"save_freq": "epoch"} if batch == 0 else {}
    built = model()
    callback = kdc.BackupAndRestore(
        tmp_path / "run",
        delete_checkpoint=False,
        write_options=kdc.WriteOptions(when_busy="wait"),
        **{"save_freq": 1, **options},
    )
    copy = CopyAt(tmp_path / "run", epoch, batch)
    built.fit(epochs=4, verbose=0, shuffle=False, callbacks=[copy, callback], **fit())
    with pytest.warns(RuntimeWarning, match="the resume is not exact"):
        _, restored, _ = trained(tmp_path / "copy", fit())
    (note,) = restored.notes
    assert note.startswith("Dataset.shuffle(24, reshuffle_each_iteration=False) of the input has no seed")
    assert note.endswith("write Dataset.shuffle(24, reshuffle_each_iteration=False, seed=1)")
    assert "its order is drawn again after a restart, and where the script splits the dataset" in note


@pytest.mark.finds("order-fixed-now")
def test_the_order_of_a_run_is_not_that_of_one_with_a_seed_now(tmp_path: Path) -> None:
    trained(tmp_path / "run", FORMS["shuffled"](), CopyAt(tmp_path / "run", 2, 3))
    with pytest.warns(RuntimeWarning, match="the resume is not exact"):
        _, restored, _ = trained(tmp_path / "copy", {"x": rows().shuffle(ROWS, seed=1).batch(BATCH)})
    assert any("has one or needs none" in note for note in restored.notes)


@pytest.mark.finds("values", "input-seed", "first-pass")
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_a_seed_that_a_utility_of_keras_draws_is_named(tmp_path: Path) -> None:
    def series() -> Fit:
        return {"x": keras.utils.timeseries_dataset_from_array(X, Y[:-1], 1, batch_size=BATCH, shuffle=True)}

    built = keras.Sequential([keras.Input((1, 2)), keras.layers.Flatten(), keras.layers.Dense(1)])
    built.compile("sgd", "mse")
    options = {"save_freq": 1, "delete_checkpoint": False}
    copy = CopyAt(tmp_path / "run", 1, 2)
    built.fit(
        epochs=2,
        verbose=0,
        shuffle=False,
        callbacks=[copy, kdc.BackupAndRestore(tmp_path / "run", **options)],
        **series(),
    )
    callback = kdc.BackupAndRestore(tmp_path / "copy", **options)
    built.fit(epochs=2, verbose=0, shuffle=False, callbacks=[callback], **series())
    assert any(note.endswith("image_dataset_from_directory draws one itself)") for note in callback.restored.notes)

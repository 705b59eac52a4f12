"""Findings that no other test comes across: what an input hides, what a resume meets, each from a real fit()."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op

import keras_dist_callbacks as kdc
from keras_dist_callbacks._compat import environment, input_inspection, pass_seeds, pipeline
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import WorkerState
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.state.facts import content
from keras_dist_callbacks.state.inputs.unseeded import Orders
from keras_dist_callbacks.storage.storage import Storage
from tests.support import forget_runs, tiny

pytestmark = [
    pytest.mark.slow,  # complete fits
    pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning"),
]

Make = Callable[[], Any]


def rows() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tiny.data())


def noise() -> Callable[..., Any]:
    generator = tf.random.Generator.from_seed(5)
    return lambda x, y: (x + generator.normal([6]), y)


def in_two_threads() -> tf.data.Dataset:
    noisy = noise()
    one, other = (rows().map(noisy).prefetch(4) for _ in range(2))
    return tf.data.Dataset.zip(one, other).map(lambda a, b: a).batch(tiny.BATCH)


def left_early() -> tf.data.Dataset:
    return rows().shuffle(tiny.ROWS, seed=3).repeat(2).prefetch(2).take(60).batch(tiny.BATCH)


def with_a_table() -> tf.data.Dataset:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def count(x: Any, y: Any) -> Any:
        with tf.control_dependencies([table.insert(tf.constant([1], tf.int64), tf.constant([2], tf.int64))]):
            return tf.identity(x), y

    return rows().map(count).batch(tiny.BATCH)


def saved_codes(directory: Path) -> set[str]:
    """What the newest backup says was found when it was taken."""
    store = BackupStore(Storage.open(str(directory)))
    manifest = store.manifest(store.commits()[-1])
    state = WorkerState(manifest.position, {}, manifest.complete_record(0).state, manifest.info)
    return {one.code for one in verdict.found_in(state)}


def interrupted(directory: Path, x: Any = None, epoch: int = 0, **options: Any) -> set[str]:
    tiny.interrupt(directory, epoch, 2, x=x, **options)
    forget_runs()
    return saved_codes(directory)


def resumed(directory: Path, x: Any = None, model: Any = None, **options: Any) -> set[str]:
    callback = kdc.BackupAndRestore(directory, save_freq=1, verbose=0)
    tiny.fit(model or tiny.model(), None, [callback], x=x, **options)
    assert callback.restored is not None
    return {one.code for one in callback.restored.findings}


def mixed() -> tf.data.Dataset:
    tf.random.set_seed(None)
    return rows().shuffle(8, seed=3).map(lambda x, y: (x, y)).shuffle(8).batch(tiny.BATCH)


def read_by_both() -> dict[str, Any]:
    noisy = noise()
    return {"x": rows().map(noisy).batch(8).repeat(), "validation_data": rows().map(noisy).batch(8)}


class Late(keras.utils.PyDataset):
    """Has no state to give yet."""

    def __len__(self) -> int:
        return tiny.STEPS

    def __getitem__(self, index: int) -> Any:
        return tuple(part[:8] for part in tiny.data())

    def get_state(self) -> None:
        return None

    def set_state(self, state: Any) -> None: ...


class OwnFunction(keras.Sequential):
    def make_train_function(self, force: bool = False) -> Any:
        super().make_train_function(force)
        theirs = self.train_function
        self.train_function = lambda iterator: theirs(iterator)
        return self.train_function


def with_own_function() -> keras.Model:
    layers = [keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")]
    return tiny.compiled(lambda: OwnFunction(layers), "sgd", "binary_crossentropy")


class Replaces(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.optimizer = keras.optimizers.SGD(0.01)
            self.model.make_train_function(force=True)


def one_by_one() -> tf.data.Dataset:
    single = lambda x, y: tf.data.Dataset.from_tensors((x, y))  # noqa: E731
    return rows().interleave(single, num_parallel_calls=2).batch(8)


def unordered(replicas: int, found: Any) -> list[str]:
    return ["operations on a GPU"]


REPLICAS = (tf.distribute.Strategy, "num_replicas_in_sync", 2)
# What is read, in which epoch it is interrupted, and what is another in the package.
HIDDEN: dict[str, tuple[Callable[[], dict[str, Any]], int, Any]] = {
    "parallel-draws": (lambda: {"x": rows().map(noise(), num_parallel_calls=4).batch(tiny.BATCH)}, 0, None),
    "racing-parts": (lambda: {"x": in_two_threads()}, 0, None),
    "early-end": (lambda: {"x": left_early()}, 0, None),
    "input-table": (lambda: {"x": with_a_table()}, 0, None),
    "first-pass-mixed": (lambda: {"x": mixed()}, 0, None),
    "loose-order-unread": (lambda: {"x": one_by_one()}, 0, (pipeline, "_LARGEST_GRAPH", 300)),
    "first-pass-large": (dict, 0, (pass_seeds, "LARGEST_BUFFERS", 10)),
    "unknown-length": (lambda: {"x": rows().filter(lambda x, y: True).batch(8)}, 0, REPLICAS),
    "generator-on-replicas": (
        lambda: {"x": (batch for batch in rows().batch(8).repeat()), "steps_per_epoch": 5},
        0,
        REPLICAS,
    ),
    "shared-with-validation": (lambda: {**read_by_both(), "steps_per_epoch": 5}, 1, None),
    "position-late": (lambda: {"x": Late()}, 0, None),
    "unordered-sums": (dict, 0, (environment, "unordered_sums", unordered)),
    "step-opaque": (lambda: {"built": with_own_function()}, 0, None),
    "optimizer-replaced": (lambda: {"callbacks": [Replaces()]}, 1, None),
}


@pytest.mark.parametrize("code", [pytest.param(code, marks=pytest.mark.finds(code)) for code in HIDDEN])
def test_what_a_training_hides_is_saved_with_it(tmp_path: Path, monkeypatch: Any, code: str) -> None:
    make, epoch, patch = HIDDEN[code]
    if patch is not None:
        monkeypatch.setattr(*patch)
    assert code in interrupted(tmp_path, epoch=epoch, **make())


@pytest.mark.finds("unseeded-operation")
def test_an_operation_that_has_no_public_call_is_named_by_its_own_name() -> None:
    tf.random.set_seed(None)
    (found,) = Orders(global_shuffle_op._global_shuffle(tf.data.Dataset.range(9)), "input").named
    assert found == Finding("unseeded-operation", "input", ("GlobalShuffleDataset",))


@pytest.mark.parametrize(
    ("code", "workers"),
    [
        pytest.param("service-workers", 2, marks=pytest.mark.finds("service-workers")),
        pytest.param("service-not-asked", None, marks=pytest.mark.finds("service-not-asked")),
    ],
)
def test_a_data_service_of_several_workers_or_of_no_known_number_is_named(
    tmp_path: Path, monkeypatch: Any, code: str, workers: int | None
) -> None:
    monkeypatch.setattr(input_inspection, "worker_count", lambda address: workers)
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.partition("://")[2]))
    data = rows().batch(8).apply(service.distribute(service.ShardingPolicy.OFF, service=dispatcher.target))
    assert code in interrupted(tmp_path, data)
    for server in (worker, dispatcher):
        server._stop()


@pytest.mark.finds("cached-variable")
def test_a_variable_that_a_cache_has_read_and_that_changes_later_is_named(tmp_path: Path) -> None:
    def run(*callbacks: Any) -> None:
        strength = tf.Variable(1.0, trainable=False)

        class Raises(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                strength.assign_add(1.0)

        data = rows().map(lambda x, y: (x * strength, y)).cache().batch(8)
        tiny.fit(tiny.model(), None, [*callbacks, Raises()], x=data)

    restored = tiny.resumes(tmp_path, run=run, expects=None, alike=False).restored
    assert "cached-variable" in {one.code for one in restored.findings}


def half_in_a_file(file: Path) -> tf.data.Dataset:
    """A shuffle that is passed both before a file of cache() and beside it."""
    shuffled = rows().shuffle(tiny.ROWS, seed=3)
    both = tf.data.Dataset.zip(shuffled.take(20).cache(str(file)), shuffled.skip(20))
    return both.map(lambda kept, row: (kept[0] + row[0], row[1])).batch(4)


@pytest.mark.finds("kept-in-files")
def test_files_that_keep_what_is_drawn_from_beside_them_are_named(tmp_path: Path) -> None:
    interrupted(tmp_path / "backup", half_in_a_file(tmp_path / "kept"))
    assert "kept-in-files" in resumed(tmp_path / "backup", half_in_a_file(tmp_path / "again"))


def numbered_texts() -> tf.data.Dataset:
    texts = tf.data.Dataset.from_tensor_slices([f"row {number}" for number in range(tiny.ROWS)])
    return tf.data.Dataset.zip(rows(), texts).map(lambda row, text: row).batch(8)


def elsewhere(fact: str) -> Any:
    here = environment.describe()
    return environment, "describe", lambda: {**here, fact: "another"}


@pytest.mark.parametrize(
    ("code", "then", "patch"),
    [
        pytest.param(code, then, patch, marks=pytest.mark.finds(code), id=code)
        for code, then, patch in (
            ("values", {"validation_data": (tiny.data()[0], 1 - tiny.data()[1])}, None),
            ("data-not-compared", {}, (content, "_LARGEST_TEXTS", 3)),
            ("environment", {}, lambda: elsewhere("threads")),
            ("python-version", {}, lambda: elsewhere("numpy")),
        )
    ],
)
def test_what_differs_in_the_run_that_resumes_is_named(
    tmp_path: Path, monkeypatch: Any, code: str, then: dict[str, Any], patch: Any
) -> None:
    given = {"x": numbered_texts(), "validation_data": tiny.data()}
    if isinstance(patch, tuple):  # in both runs
        monkeypatch.setattr(*patch)
    interrupted(tmp_path, epoch=1, **given)
    if callable(patch):
        monkeypatch.setattr(*patch())
    assert code in resumed(tmp_path, **{**given, **then})


@pytest.mark.finds("ran-no-step-stopped")
def test_a_fit_after_one_that_stopped_early_is_warned_that_it_runs_no_step(tmp_path: Path) -> None:
    class Enough(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    model, keep = tiny.model(), {"delete_checkpoint": False}
    tiny.fit(model, tmp_path, [Enough()], options=keep)
    with pytest.warns(RuntimeWarning, match="runs no step: .*; give each run a directory of its own"):
        tiny.fit(model, tmp_path, options=keep)


@pytest.mark.finds("optimizer-not-in-file")
def test_a_file_without_the_optimizers_state_is_named(tmp_path: Path) -> None:
    uncompiled = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    uncompiled.save_weights(tmp_path / "theirs.weights.h5")

    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
        model.compile("adam", "mse")
        return model

    with pytest.warns(RuntimeWarning, match="the file holds no state for Adam"):
        model = kdc.make_or_restore_model(build, tmp_path, adopt=True)
    np.testing.assert_array_equal(model.get_weights()[0], uncompiled.get_weights()[0])
    assert "optimizer-not-in-file" in {one.code for one in kdc.restored_from(model).findings}


@pytest.mark.finds("model-not-compared")
def test_a_model_whose_configuration_cannot_be_had_is_named(tmp_path: Path) -> None:
    class Dense(keras.layers.Dense):
        def get_config(self) -> Any:
            raise NotImplementedError("no configuration")

    def build(layer: Any = Dense) -> keras.Model:
        model = keras.Sequential([keras.Input((6,)), layer(2, name="dense")])
        model.compile("sgd", "mse")
        return model

    build(keras.layers.Dense).save(tmp_path / "theirs.keras")
    with pytest.warns(RuntimeWarning, match="its configuration cannot be compared .*no configuration"):
        model = kdc.make_or_restore_model(build, tmp_path, adopt=True)
    assert "model-not-compared" in {one.code for one in kdc.restored_from(model).findings}

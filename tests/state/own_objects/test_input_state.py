"""The state of a PyDataset: saved as of when its epoch began, and exact if reading does not change it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from random import choice
from typing import Any

import keras
import numpy as np
import pytest
import sklearn.utils
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.state.own_objects import input_objects
from keras_dist_callbacks.state.own_objects.kinds import look_at
from keras_dist_callbacks.state.own_objects.look import Policy, Root
from tests.support import tiny


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Eight rows at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = tiny.data()
        self.indices = np.arange(len(self.x))
        self.scale = 1.0
        self.held: Any = None
        self.own = np.random.default_rng(3)

    def __len__(self) -> int:
        return len(self.x) // 8

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = self.indices[8 * index : 8 * index + 8]
        return self.scale * self.x[rows], self.y[rows]


class Shuffled(Batches):
    def on_epoch_end(self) -> None:
        np.random.shuffle(self.indices)


class Replaced(Batches):
    def on_epoch_end(self) -> None:
        self.indices = self.own.permutation(len(self.x))


class BeginsEpochs(Batches):
    def on_epoch_begin(self) -> None:
        self.scale *= 0.9
        np.random.shuffle(self.indices)


class DrawsFromItsOwn(Batches):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = super().__getitem__(index)
        return x + self.own.normal(size=x.shape), y


class DrawsFromAll(Batches):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = super().__getitem__(index)
        return x + np.random.normal(size=x.shape), y


class DrawsByHelper(Batches):
    def noise(self, shape: tuple[int, ...]) -> Any:
        return np.reshape([random.gauss() for _ in range(int(np.prod(shape)))], shape)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = super().__getitem__(index)
        return x + self.noise(x.shape), y


class Counts(Batches):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.scale += 0.01
        return super().__getitem__(index)


class HoldsTheModel(Batches):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        x, y = super().__getitem__(index)
        return x * len(self.held.weights), y


class Changes(keras.callbacks.Callback):  # type: ignore[misc]
    """A curriculum: a callback that changes the data."""

    def __init__(self, dataset: Batches) -> None:
        super().__init__()
        self.dataset = dataset

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.dataset.scale = 0.5 * self.dataset.scale


class ChangesWithinEpochs(Changes):
    """Later than where it is interrupted: no snapshot has seen it."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 4 and self.params["epochs"] == 0:
            self.dataset.scale *= 2.0


class Logs(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])


def train(
    cls: Callable[[], Batches],
    directory: Path | None,
    stop: tuple[int, int] | None,
    change: Callable[[Batches], Changes] = Changes,
) -> tuple[keras.Model, kdc.Restored | None]:
    keras.utils.set_random_seed(5)
    dataset, validation = cls(), Batches()
    model = tiny.model()
    dataset.held = model if cls is HoldsTheModel else None
    callbacks = [change(dataset), Logs(), *([tiny.StopAt(*stop)] if stop else [])]
    backup = (
        kdc.BackupAndRestore(directory, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait"))
        if directory
        else None
    )
    callbacks += [backup] if backup else []
    model.fit(dataset, epochs=4, shuffle=False, validation_data=validation, verbose=0, callbacks=callbacks)
    return model, None if backup is None else backup.restored


@pytest.mark.slow  # complete fits
@pytest.mark.parametrize("stop", [(1, 2), (2, 3), (3, 0)])
@pytest.mark.parametrize(
    ("cls", "verdict"),
    [
        (Batches, "exact"),
        (Shuffled, "exact"),
        (Replaced, "exact"),
        (BeginsEpochs, "exact"),
        (DrawsFromItsOwn, "exact if"),
        (DrawsFromAll, "exact if"),
        (DrawsByHelper, "exact if"),
        (Counts, "exact if"),
        (HoldsTheModel, "exact if"),
    ],
)
@pytest.mark.in_gate(2)
def test_what_a_callback_changes_in_a_dataset_comes_back(
    tmp_path: Path, cls: Callable[[], Batches], verdict: str, stop: tuple[int, int]
) -> None:
    with pytest.raises(tiny.Stop):
        train(cls, tmp_path, stop)
    resumed, restored = train(cls, tmp_path, None)
    assert restored is not None
    assert restored.verdict == verdict, (restored.notes, restored.conditions)
    tiny.assert_same(resumed, train(cls, None, None)[0])


class Hardens(Batches):
    """Validation data that say themselves what they keep, and leave out the order of their rows."""

    def on_epoch_end(self) -> None:
        self.scale *= 1.5
        self.indices = self.own.permutation(len(self.x))

    def get_state(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def set_state(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


class HardensByReading(Hardens):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.indices = np.roll(self.indices, 1)
        return super().__getitem__(index)


@pytest.mark.in_gate(1)
@pytest.mark.slow  # complete fits
@pytest.mark.parametrize("cls", [Hardens, HardensByReading])
def test_validation_data_with_get_state_are_inspected_as_any_other(tmp_path: Path, cls: Callable[[], Batches]) -> None:
    def run(*callbacks: Any) -> keras.Model:
        keras.utils.set_random_seed(5)
        model, validation = tiny.model(), cls()
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1)
        model.fit(
            Batches(), epochs=4, shuffle=False, validation_data=validation, verbose=0, callbacks=[plateau, *callbacks]
        )
        return model

    with pytest.raises(tiny.Stop):
        run(
            kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait")),
            tiny.StopAt(3, 1),
        )
    backup = kdc.BackupAndRestore(tmp_path)
    resumed = run(backup)
    assert backup.restored is not None
    assert backup.restored.verdict == "exact", backup.restored
    tiny.assert_same(resumed, run())


@pytest.mark.slow  # a complete fit
def test_an_image_generator_of_keras_own_is_a_condition(tmp_path: Path) -> None:
    keras.utils.set_random_seed(5)
    images = np.random.default_rng(1).random((32, 4, 4, 1), np.float32)
    generator = tf.keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True)
    model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def run(*callbacks: Any) -> None:
        model.fit(generator.flow(images, np.zeros(32), 8, seed=1), epochs=2, verbose=0, callbacks=[*callbacks])

    with pytest.raises(tiny.Stop):
        run(
            kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait")),
            tiny.StopAt(1, 1),
        )
    backup = kdc.BackupAndRestore(tmp_path)
    run(backup)
    assert backup.restored is not None
    assert backup.restored.verdict == "exact if", backup.restored


def seeded(index: int) -> Any:
    return np.random.default_rng(100 + index).normal()


def seeded_otherwise(index: int) -> Any:
    from numpy.random import RandomState

    return RandomState(seed=index).rand()


def drawn_from_a_local_one(index: int) -> Any:
    rng = np.random.default_rng((1, index))
    return rng.random() + rng.permutation(3)


def of_a_module_in_a_variable(index: int) -> Any:
    drawing = np.random
    return drawing.random()


def of_a_module_imported_here(index: int) -> Any:
    import numpy

    return numpy.random.normal()


def dropped_out(index: int) -> Any:
    return tf.nn.dropout(np.ones(2, np.float32), 0.5)


def plain(index: int) -> Any:
    return np.sin(index) + tf.image.stateless_random_brightness(np.ones((1, 1, 3)), 0.1, (index, 2))[0, 0, 0]


def unseeded(index: int) -> Any:
    return np.random.default_rng().normal()


def chosen(index: int) -> Any:
    return choice([0, index])  # noqa: S311 - what a user writes


def of_tensorflow(index: int) -> Any:
    return tf.random.normal(())


def from_a_file(index: int) -> Any:
    return np.load(f"{index}.npy")


def by_name(index: int) -> Any:
    return getattr(np, ["sin", "cos"][index % 2])(index)


def in_a_library(index: int) -> Any:
    return sklearn.utils.resample([index])


FUNCTIONS = [
    (seeded, True),
    (seeded_otherwise, False),
    (plain, True),
    (drawn_from_a_local_one, True),
    (of_a_module_in_a_variable, False),
    (of_a_module_imported_here, False),
    (dropped_out, False),
    (lambda index: index + 1, True),
    (functools.partial(max, 2), True),
    (unseeded, False),
    (chosen, False),
    (of_tensorflow, False),
    (from_a_file, False),
    (by_name, False),
    (in_a_library, False),
    (np.random.permutation, False),
    (functools.partial(random.uniform, 2), False),
    (lambda index: random.gauss(), False),
]


@pytest.mark.finds("writer-of-input")
@pytest.mark.slow  # complete fits
def test_a_callback_that_could_change_the_dataset_while_it_is_read_is_a_condition(tmp_path: Path) -> None:
    with pytest.raises(tiny.Stop):
        train(Batches, tmp_path, (1, 2), ChangesWithinEpochs)
    resumed, restored = train(Batches, tmp_path, None, ChangesWithinEpochs)
    assert restored is not None
    assert restored.conditions == (
        "within an epoch, the callback ChangesWithinEpochs does not change what the PyDataset reads",
    )
    tiny.assert_same(resumed, train(Batches, None, None)[0])


@pytest.mark.parametrize(
    "hold",
    [
        lambda f: {"step": f},
        lambda f: {"steps": [("name", f)]},
        lambda f: {"step": functools.partial(f)},
        lambda f: {"step": lambda index: f(index)},
    ],
)
@pytest.mark.parametrize(("function", "is_known"), FUNCTIONS)
def test_whether_reading_may_draw_from_shared_random_states_is_seen(
    function: Callable[[int], Any], is_known: bool, hold: Callable[[Any], dict[str, Any]]
) -> None:
    class Steps(Batches):
        def __init__(self) -> None:
            super().__init__()
            vars(self).update(hold(function))
            np.random.shuffle(self.indices)

        def on_epoch_end(self) -> None:
            np.random.shuffle(self.indices)

    policy = Policy(is_asserted=lambda value: False, own_state=lambda value: None, saved_keys=frozenset)
    found = look_at({"input": Root(Steps())}, policy)
    assert (
        input_objects._uncompared_path(found) is None and input_objects._doubt_about_code(found) is None
    ) is is_known


class LoadsImages(Batches):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image = keras.utils.load_img("image.png")
        return np.asarray(image), self.y[:8]


class Augments(Batches):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.load("rows.npy") * np.random.rand(), self.y[:8]


@pytest.mark.parametrize(("kind", "why"), [(LoadsImages, "may read files"), (Augments, "may draw random numbers")])
def test_the_condition_of_a_pydataset_tells_files_from_random_numbers(kind: type[Batches], why: str) -> None:
    found = look_at({"input": Root(kind())}, Policy(lambda value: False, lambda value: None, lambda value: False))
    assert why in str(input_objects._doubt_about_code(found))


FACTOR = 2.0
CALLS = [0]


def doubled(rows: Any) -> Any:
    return np.asarray(rows) * 2


def counted(rows: Any) -> Any:
    CALLS[0] += 1
    return np.asarray(rows) * CALLS[0]


def scaled(rows: Any) -> Any:
    return np.asarray(rows) * FACTOR


def noised(rows: Any) -> Any:
    return np.asarray(rows) + np.random.normal()


class ChangesFactor(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        global FACTOR
        FACTOR = 2.0 + epoch


@pytest.mark.in_gate(2)
@pytest.mark.slow  # complete fits
@pytest.mark.parametrize("changes", [False, True], ids=["", "a callback changes a number"])
@pytest.mark.parametrize(
    ("function", "verdict"), [(doubled, "exact"), (counted, "exact if"), (noised, "exact if"), (scaled, "exact")]
)
def test_a_function_that_holds_and_draws_nothing_is_no_condition_of_a_parallel_map(
    function: Any, verdict: str, changes: bool, tmp_path: Path
) -> None:
    def fit(*callbacks: Any) -> keras.Model:
        global FACTOR
        keras.utils.set_random_seed(5)
        FACTOR, CALLS[0] = 2.0, 0
        x, y = tiny.data()
        rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=3)

        def mapped(a: Any, b: Any) -> Any:
            return tf.ensure_shape(tf.py_function(function, [a], tf.float32), (6,)), b

        model = tiny.model()
        data = rows.map(mapped, num_parallel_calls=tf.data.AUTOTUNE).batch(8)
        model.fit(
            data, epochs=3, shuffle=False, verbose=0, callbacks=[*([ChangesFactor()] if changes else []), *callbacks]
        )
        return model

    with pytest.raises(tiny.Stop):
        fit(kdc.BackupAndRestore(tmp_path, save_freq=1), tiny.StopAt(1, 2))
    backup = kdc.BackupAndRestore(tmp_path)
    resumed = fit(backup)
    assert backup.restored is not None
    expected = "exact if" if changes and function is scaled else verdict
    assert backup.restored.verdict == expected, backup.restored
    if expected == "exact":
        tiny.assert_same(resumed, fit())

"""State that an input hides: put back where it can be, reported where it cannot."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupError, ConfigError
from tests.support import inputs, tiny

pytestmark = pytest.mark.slow  # complete fits

CERTAIN = {"strict": "certain"}


def with_generator() -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(1)
    noisy = inputs.rows().map(lambda x, y: (x + generator.normal((6,)), y))
    return noisy.batch(tiny.BATCH).prefetch(3)


def with_layer() -> tf.data.Dataset:
    layer = keras.layers.GaussianNoise(0.5, seed=3)
    return inputs.rows().batch(tiny.BATCH).map(lambda x, y: (layer(x, training=True), y))


def with_cached_layer() -> tf.data.Dataset:
    layer = keras.layers.GaussianNoise(0.5, seed=3)
    noisy = inputs.rows().map(lambda x, y: (layer(x, training=True), y))
    return noisy.cache().shuffle(8, seed=1).batch(tiny.BATCH)


class WithOwnGenerator(inputs.Batches):
    """Its noise comes from a generator of its own: a state that moves by being read."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(5)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = super().__getitem__(index)
        return x + self.generator.normal(size=x.shape).astype("float32"), y


class WithState(WithOwnGenerator):
    """The same, and it says where it is; as of its epoch's begin."""

    def on_epoch_begin(self) -> None:
        self.began = self.generator.bit_generator.state

    def get_state(self) -> dict[str, Any]:
        state = self.generator.bit_generator.state["state"]
        return {"state": str(state["state"]), "inc": str(state["inc"])}

    def set_state(self, state: dict[str, Any]) -> None:
        whole = self.generator.bit_generator.state
        whole["state"] = {"state": int(state["state"]), "inc": int(state["inc"])}
        self.generator.bit_generator.state = whole


def reference(make: Callable[[], Any], **arguments: Any) -> keras.Model:
    model = tiny.model()
    tiny.fit(model, None, x=make(), **arguments)
    return model


def interrupted(directory: Path, make: Callable[[], Any], epoch: int = 1, batch: int = 2, **arguments: Any) -> None:
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), directory, [tiny.StopAt(epoch, batch)], x=make(), **arguments)


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(("epoch", "batch"), [(2, 0), (2, 2)])
def test_a_resume_of_a_resumed_run_knows_the_first_pass_of_a_cached_state(
    tmp_path: Path, epoch: int, batch: int
) -> None:
    interrupted(tmp_path, with_cached_layer, 1, 2, save_freq="epoch")
    interrupted(tmp_path, with_cached_layer, epoch, batch, save_freq="epoch")
    resumed = tiny.model()
    tiny.fit(resumed, tmp_path, x=with_cached_layer(), save_freq="epoch")
    tiny.assert_same(resumed, reference(with_cached_layer))


def cached_with_a_rest(*, tunes: bool) -> tf.data.Dataset:
    """TensorFlow reads the end of the cache where it tunes; else each pass fills it again."""
    options = tf.data.Options()
    options.autotune.enabled = tunes
    return inputs.shuffle(inputs.rows(), seed=None).cache().batch(9, drop_remainder=True).with_options(options)


@pytest.mark.parametrize("tunes", [False, True])
@pytest.mark.parametrize(("epoch", "batch"), [(1, 2), (2, 0), (2, 2)])
@pytest.mark.parametrize("rereads", [False, True])
@pytest.mark.in_gate(1)
def test_a_cached_order_is_the_same_whether_or_not_the_cache_came_to_be_whole(
    tmp_path: Path, tunes: bool, epoch: int, batch: int, rereads: bool
) -> None:
    make = functools.partial(cached_with_a_rest, tunes=tunes)
    interrupted(tmp_path, make, epoch, batch)
    resumed = tiny.model()
    tiny.fit(resumed, tmp_path, x=make(), options={**CERTAIN, "reread_input": rereads})
    tiny.assert_same(resumed, reference(make))


@pytest.mark.parametrize("make", [with_generator, with_layer])
@pytest.mark.parametrize(("epoch", "batch"), [(1, 2), (2, 0)])
@pytest.mark.in_gate(1)
def test_random_states_of_a_map_are_put_back(tmp_path: Path, make: Callable[[], Any], epoch: int, batch: int) -> None:
    interrupted(tmp_path, make, epoch, batch)
    resumed = tiny.model()
    tiny.fit(resumed, tmp_path, x=make(), options=CERTAIN)
    tiny.assert_same(resumed, reference(make))


def twice_shuffled() -> tf.data.Dataset:
    return inputs.shuffle(inputs.rows().take(16)).repeat(2).batch(tiny.BATCH)


def shuffled_behind() -> tf.data.Dataset:
    return inputs.rows().take(16).concatenate(inputs.shuffle(inputs.rows())).batch(tiny.BATCH)


def captured() -> tf.data.Dataset:
    part = inputs.shuffle(inputs.rows().take(20))
    return tf.data.Dataset.range(2).flat_map(lambda _: part).batch(tiny.BATCH)


def rerandomized() -> tf.data.Dataset:
    drawn = tf.data.Dataset.random(4, rerandomize_each_iteration=True)
    noisy = tf.data.Dataset.zip(inputs.rows(), drawn).map(lambda row, n: (row[0] + tf.cast(n % 7, tf.float32), row[1]))
    return inputs.shuffle(noisy).batch(tiny.BATCH)


@pytest.mark.parametrize("make", [twice_shuffled, shuffled_behind, captured, rerandomized])
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.in_gate(1)
def test_orders_that_are_drawn_in_the_course_of_a_pass_are_drawn_again(tmp_path: Path, make: Callable[[], Any]) -> None:
    interrupted(tmp_path, make, 2, 1)
    resumed = tiny.model()
    tiny.fit(resumed, tmp_path, x=make(), options=CERTAIN)
    tiny.assert_same(resumed, reference(make))


@pytest.mark.finds("input-variables")
def test_another_pipeline_than_before_gets_none_of_the_states(tmp_path: Path) -> None:
    interrupted(tmp_path, with_layer)
    with pytest.warns(
        RuntimeWarning, match=r"number 1 was seed_generator/seed_generator_state:0 \(int64\) in the .* none"
    ):
        tiny.fit(tiny.model(), tmp_path, x=inputs.rows().batch(tiny.BATCH))


@pytest.mark.in_gate(1)
@pytest.mark.parametrize(("epoch", "batch"), [(0, 3), (2, 1)])
def test_reading_past_epochs_again_moves_an_inputs_own_state(tmp_path: Path, epoch: int, batch: int) -> None:
    interrupted(tmp_path, WithOwnGenerator, epoch, batch)
    resumed, callback = tiny.model(), kdc.BackupAndRestore(tmp_path, reread_input=True)
    tiny.fit(resumed, None, [callback], x=WithOwnGenerator())
    tiny.assert_same(resumed, reference(WithOwnGenerator))
    assert callback.restored.verdict == "exact if"


def test_reading_again_is_as_exact_as_creating(tmp_path: Path) -> None:
    interrupted(tmp_path, tiny.shuffled, 2, 3)
    resumed = tiny.model()
    tiny.fit(resumed, tmp_path, options={"reread_input": True, **CERTAIN})
    tiny.assert_same(resumed, reference(tiny.shuffled))


@pytest.mark.finds("batches-again")
def test_python_code_in_the_input_is_a_condition_that_strict_can_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(tmp_path, WithOwnGenerator)
    with pytest.raises(BackupError, match=r"strict='certain': the resume from .* only if: the PyDataset W"):
        tiny.fit(tiny.model(), tmp_path, x=WithOwnGenerator(), options=CERTAIN)
    callback = kdc.BackupAndRestore(tmp_path, strict=True)
    tiny.fit(tiny.model(), None, [callback], x=WithOwnGenerator())
    assert callback.restored.verdict == "exact if"
    assert callback.restored.notes == ()
    assert ": exact if the PyDataset WithOwnGenerator gives the same batches when" in capsys.readouterr().out


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("make", [lambda: kdc.advanced.stateless_input(inputs.Batches()), WithState])
def test_a_condition_is_settled_by_the_users_word_or_by_the_inputs_own_account(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    interrupted(tmp_path, make, 2, 0)
    resumed = tiny.model()
    tiny.fit(resumed, tmp_path, x=make(), options=CERTAIN)
    tiny.assert_same(resumed, reference(make))


def test_numpys_random_state_continues_where_the_trained_batches_had_left_it(tmp_path: Path) -> None:
    class Drawn(inputs.Batches):
        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            x, y = super().__getitem__(index)
            return x + np.random.normal(size=x.shape).astype("float32"), y

    interrupted(tmp_path, Drawn)
    resumed = tiny.model()
    tiny.fit(resumed, tmp_path, x=Drawn())
    tiny.assert_same(resumed, reference(Drawn))


@pytest.mark.chaos
def test_a_callback_may_draw_next_to_an_input_of_python_code(tmp_path: Path) -> None:
    """Keras shuffles the batches with Python's random state; it is not the input that moves it afterwards."""

    class Draws(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.layers[0].bias.assign_add([random.random() for _ in range(7)])  # noqa: S311

    expected = tiny.model()
    tiny.fit(expected, None, [Draws()], x=inputs.Batches(), shuffle=True)
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [Draws(), tiny.StopAt(1, 2)], x=inputs.Batches(), shuffle=True)
    resumed = tiny.model()
    tiny.fit(resumed, tmp_path, [Draws()], x=inputs.Batches(), shuffle=True)
    tiny.assert_same(resumed, expected)


@pytest.mark.chaos
def test_an_input_that_shuffles_itself_does_so_again_next_to_a_callback_that_draws(tmp_path: Path) -> None:
    class Draws(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            np.random.random(3)

    expected = tiny.model()
    tiny.fit(expected, None, [Draws()], x=inputs.SelfShuffling())
    for epoch, batch in ((1, 2), (2, 1)):
        with pytest.raises(tiny.Stop):
            tiny.fit(tiny.model(), tmp_path, [Draws(), tiny.StopAt(epoch, batch)], x=inputs.SelfShuffling())
    resumed, data = tiny.model(), inputs.SelfShuffling()
    tiny.fit(resumed, tmp_path, [Draws()], x=data)
    tiny.assert_same(resumed, expected)
    assert "on_epoch_end" not in vars(data)


def test_an_input_that_cannot_be_remembered_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stateless_input takes the input itself .* got a list"):
        kdc.advanced.stateless_input([1, 2])


def test_validation_data_continue_next_to_training_data_that_never_end(tmp_path: Path) -> None:
    """A backup from between two epochs, where the iterator over the training data lives on."""

    def run(backup: Path | None, *callbacks: Any) -> keras.Model:
        built = tiny.model()
        endless = inputs.rows().repeat().batch(tiny.BATCH)
        options = {"x": endless, "steps_per_epoch": 4, "validation_data": with_generator()}
        tiny.fit(built, backup, callbacks, save_freq="epoch", **options)
        return built

    expected = run(None)
    with pytest.raises(tiny.Stop):
        run(tmp_path, tiny.StopAt(2, 1))
    tiny.assert_same(run(tmp_path), expected)


class Lowers(keras.callbacks.Callback):
    def __init__(self, strength: tf.Variable) -> None:
        super().__init__()
        self.strength = strength

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.strength.assign(0.5 * self.strength)


@pytest.mark.in_gate(1)
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.parametrize("of", ["training", "validation"])
@pytest.mark.parametrize("is_cached", [False, True])
def test_a_cache_of_what_a_variable_was_cannot_be_filled_again(tmp_path: Path, of: str, is_cached: bool) -> None:
    def run(epoch: int | None) -> kdc.BackupAndRestore:
        model, strength = tiny.model(), tf.Variable(1.0)
        scaled = tiny.shuffled().map(lambda x, y: (x * strength, y))
        scaled = scaled.cache() if is_cached else scaled
        data = {"x": scaled} if of == "training" else {"validation_data": scaled}
        backup = kdc.BackupAndRestore(
            tmp_path, save_freq=1, delete_checkpoint=False, write_options=kdc.WriteOptions(when_busy="wait")
        )
        stops = [] if epoch is None else [tiny.StopAt(epoch, 2)]
        with contextlib.suppress(tiny.Stop):
            tiny.fit(model, None, [Lowers(strength), *stops, backup], epochs=4, **data)
        return backup

    run(1)
    for epoch in (2, None):
        restored = run(epoch).restored
        assert restored is not None
        assert (restored.verdict == "not exact") == is_cached, restored
        assert any("use the variable after the cache()" in note for note in restored.notes) == is_cached


class Raises(keras.callbacks.Callback):
    def __init__(self, strength: tf.Variable, *, each_batch: bool) -> None:
        super().__init__()
        self.strength, self.each_batch = strength, each_batch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.strength.assign_add(0.5)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.strength.assign_add(0.5 * self.each_batch)


CHANGES_AHEAD = [
    (True, False, True, "draws", "not exact"),
    (True, False, False, "", "exact"),
    (False, True, True, "", "not exact"),
    (False, True, False, "shuffles", "not exact"),
    (False, True, False, "", "exact"),
    (False, False, True, "", "exact"),
    (False, False, True, "shuffles", "exact"),
]


@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
@pytest.mark.parametrize(
    ("is_endless", "each_batch", "tunes", "kind", "verdict"),
    [
        pytest.param(True, False, True, "", "not exact", marks=pytest.mark.finds("changed-while-waiting")),
        *(pytest.param(*case, marks=pytest.mark.chaos) for case in CHANGES_AHEAD),
    ],
)
def test_a_variable_that_changes_while_the_input_reads_it_ahead_is_not_exact(
    tmp_path: Path, is_endless: bool, each_batch: bool, tunes: bool, kind: str, verdict: str
) -> None:
    def run(*callbacks: Any) -> None:
        strength, generator = tf.Variable(0.0, trainable=False), tf.random.Generator.from_seed(5)
        data = tf.data.Dataset.from_tensor_slices(tiny.data())
        data = data if kind == "shuffles" else data.batch(8)
        data = data.map(lambda x, y: (x * strength + (generator.normal((6,)) if kind == "draws" else 0.0), y))
        data = data.shuffle(8, seed=3).batch(8) if kind == "shuffles" else data
        options = tf.data.Options()
        options.autotune.enabled = tunes
        data = (data.repeat() if is_endless else data).with_options(options)
        fixed = {"steps_per_epoch": 5} if is_endless else {}
        tiny.fit(tiny.model(), None, [*callbacks, Raises(strength, each_batch=each_batch)], x=data, **fixed)

    with pytest.raises(tiny.Stop):
        run(
            tiny.StopAt(1, 3),
            kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait")),
        )
    callback = kdc.BackupAndRestore(tmp_path)
    run(callback)
    assert callback.restored is not None
    assert callback.restored.verdict == verdict, callback.restored
    assert all("were waiting" in note for note in callback.restored.notes)


class Shows(keras.callbacks.Callback):
    """Draws from the random layer of the input."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__()
        self.layer = layer

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.layer(tf.ones((2, 6)), training=True)


@pytest.mark.finds("shared-variable")
def test_a_callback_that_draws_from_the_random_layer_of_the_input_is_not_exact(tmp_path: Path) -> None:
    def run(*callbacks: Any) -> None:
        noise = keras.layers.GaussianNoise(0.5)
        data = tf.data.Dataset.from_tensor_slices(tiny.data()).batch(8).map(lambda x, y: (noise(x, training=True), y))
        tiny.fit(tiny.model(), None, [*callbacks, Shows(noise)], x=data)

    with pytest.raises(tiny.Stop):
        run(
            tiny.StopAt(1, 3),
            kdc.BackupAndRestore(tmp_path, save_freq=1, write_options=kdc.WriteOptions(when_busy="wait")),
        )
    with pytest.warns(RuntimeWarning, match="the input and training both draw"):
        run(kdc.BackupAndRestore(tmp_path))


class Cursor:
    """Rows of a log that is read on from epoch to epoch."""

    def __init__(self, rows: int | None) -> None:
        self.position, self._rows = 0, rows
        (self._x, self._y) = (np.asarray(part) for part in zip(*inputs.rows().as_numpy_iterator(), strict=True))

    def __call__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for _ in itertools.count() if self._rows is None else range(self._rows):
            row = self.position * 7 % len(self._x)
            self.position += 1
            yield self._x[row], self._y[row]


def of_cursor(rows: int | None, finish: Callable[[tf.data.Dataset], tf.data.Dataset]) -> tf.data.Dataset:
    cursor = Cursor(rows)
    dataset = tf.data.Dataset.from_generator(cursor, output_signature=inputs.rows().element_spec)
    dataset = finish(dataset.apply(tf.data.experimental.assert_cardinality(rows or tf.data.INFINITE_CARDINALITY)))
    dataset.get_state = lambda: {"position": cursor.position}
    dataset.set_state = lambda state: vars(cursor).update(state)
    return dataset


class WithCursor(inputs.Batches):
    """A PyDataset whose batches continue those of the epoch before."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0

    def __len__(self) -> int:
        return 2 * tiny.STEPS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        self.position += 1
        x, y = super().__getitem__(index % tiny.STEPS)
        return x * self.position, y

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        vars(self).update(state)


KNOWS_POSITION: dict[str, tuple[Callable[[], Any], dict[str, int], str]] = {
    "dataset": (lambda: of_cursor(20, lambda d: d.batch(tiny.BATCH)), {}, "exact"),
    "dataset that shuffles": (lambda: of_cursor(20, lambda d: d.shuffle(9).batch(tiny.BATCH).prefetch(2)), {}, "exact"),
    "dataset with a cache": (lambda: of_cursor(20, lambda d: d.cache().batch(tiny.BATCH)), {}, "exact if"),
    "dataset that is read ahead": (
        *(lambda: of_cursor(None, lambda d: d.batch(tiny.BATCH).prefetch(4)), {"steps_per_epoch": 4}, "exact if"),
    ),
    "PyDataset": (WithCursor, {}, "exact"),
    "PyDataset that is read ahead": (WithCursor, {"steps_per_epoch": 3}, "exact if"),
}


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("case", KNOWS_POSITION)
def test_an_input_that_knows_its_position_is_asked_only_where_it_is_that_of_training(tmp_path: Path, case: str) -> None:
    make, arguments, verdict = KNOWS_POSITION[case]
    interrupted(tmp_path, make, **arguments)
    resumed = tiny.model()
    backup = kdc.BackupAndRestore(tmp_path, save_freq=1)
    tiny.fit(resumed, None, [backup], x=make(), **arguments)
    assert backup.restored is not None
    assert backup.restored.verdict == verdict
    tiny.assert_same(resumed, reference(make, **arguments))


class Scaled(WithCursor):
    """Its batches depend on a factor that callbacks may change."""

    factor = 1.0

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = super().__getitem__(index)
        return x * self.factor, y

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position, "factor": self.factor}


def scaled_rows() -> tf.data.Dataset:
    scaled = Scaled()

    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from (scaled[index] for index in range(tiny.STEPS))

    x, y = (tf.TensorSpec((tiny.BATCH, *spec.shape), spec.dtype) for spec in inputs.rows().element_spec)
    dataset = tf.data.Dataset.from_generator(rows, output_signature=(x, y))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(tiny.STEPS))
    dataset.get_state, dataset.set_state, dataset.scaled = scaled.get_state, scaled.set_state, scaled
    return dataset


class Changes(keras.callbacks.Callback):
    """Holds the object that the input reads, and changes it."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.source = getattr(source, "scaled", source)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.source.factor *= 1.5


def changing_by_lambda(source: Any) -> keras.callbacks.Callback:
    changes = Changes(source)
    return keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: changes.on_epoch_begin(epoch))


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("make", [Scaled, scaled_rows])
@pytest.mark.parametrize("changing", [Changes, changing_by_lambda])
@pytest.mark.finds("writer-of-position")
def test_a_callback_that_reaches_an_input_which_knows_its_position_is_a_condition(
    tmp_path: Path, make: Callable[[], Any], changing: Callable[[Any], keras.callbacks.Callback]
) -> None:
    source = make()
    with pytest.raises(tiny.Stop):
        tiny.fit(tiny.model(), tmp_path, [changing(source), tiny.StopAt(1, 2)], x=source)
    source = make()
    backup = kdc.BackupAndRestore(tmp_path, save_freq=1)
    tiny.fit(tiny.model(), None, [changing(source), backup, tiny.StopAt(9, 9)], x=source)
    assert backup.restored is not None
    assert any("does not change what the input's get_state returns" in text for text in backup.restored.conditions)

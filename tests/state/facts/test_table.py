"""What changed between two runs is named with both values; what is the same again is not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.state.facts import content, of_model
from tests.support import inputs, tiny

pytestmark = pytest.mark.slow  # complete fits

Make = Callable[[], keras.Model]


def compiled(
    loss: Any = "mse", optimizer: Any = None, *, units: int = 7, rate: float = 0.2, **options: Any
) -> keras.Model:
    def make() -> keras.Model:
        return tiny.sequential(keras.layers.Dense(units), keras.layers.Dropout(rate), keras.layers.Dense(1))

    return tiny.compiled(make, optimizer or (lambda: keras.optimizers.SGD(0.1, momentum=0.9)), loss, **options)


def named(*names: str, subclass: bool = False) -> keras.Model:
    """Layers of one shape with names of the user's, in a model with a configuration or without one."""

    class Named(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.all = [keras.layers.Dense(6, name=name) for name in names]

        def call(self, x: Any) -> Any:
            for layer in self.all:
                x = layer(x)
            return x

    def make() -> keras.Model:
        model = Named() if subclass else tiny.sequential(*(keras.layers.Dense(6, name=name) for name in names))
        model(np.zeros((1, 6), "float32"))
        return model

    return tiny.compiled(make)


@keras.saving.register_keras_serializable("tests")
class Moded(keras.layers.Dense):
    """A layer with an option whose values end in numbers."""

    def __init__(self, mode: str = "mode_1", **options: Any) -> None:
        super().__init__(6, **options)
        self.mode = mode

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mode": self.mode}


def moded(mode: str) -> keras.Model:
    return tiny.compiled(lambda: tiny.sequential(Moded(mode)))


def of_words(*words: str) -> tf.data.Dataset:
    texts = tf.data.Dataset.from_tensor_slices([words[n % 2] for n in range(tiny.ROWS)])
    return tf.data.Dataset.zip(inputs.rows(), texts).map(lambda row, text: row).batch(8)


def with_label(label: str) -> tf.data.Dataset:
    held = tf.constant([label])
    return inputs.rows().map(lambda x, y: (x + tf.cast(tf.strings.length(held[0]), x.dtype) / 8, y)).batch(8)


def read_from(directory: Path, *contents: str) -> tf.data.Dataset:
    """A dataset of one text file for each row."""
    directory.mkdir(exist_ok=True)
    for number, text in enumerate(contents):
        (directory / f"row{number:03}.txt").write_text(text)
    files = sorted(str(path) for path in directory.glob("row*.txt"))
    lengths = tf.data.Dataset.from_tensor_slices(files).map(lambda path: tf.strings.length(tf.io.read_file(path)))
    return (
        tf.data.Dataset.zip(inputs.rows().take(len(contents)), lengths)
        .map(lambda row, length: (row[0] + tf.cast(length, row[0].dtype) / 8, row[1]))
        .batch(4)
    )


MODELS: dict[str, tuple[Make, Make, str]] = {
    "layers numbered by hand": (
        lambda: named("branch_1", "branch_2"),
        lambda: named("branch_2", "branch_1"),
        "the name of a layer changed from branch to branch_1",
    ),
    "layers numbered by hand in a model without a configuration": (
        lambda: named("branch_1", "branch_2", subclass=True),
        lambda: named("branch_2", "branch_1", subclass=True),
        "name changed from branch to branch_1",
    ),
    "an option that ends in a number": (
        lambda: moded("mode_1"),
        lambda: moded("mode_2"),
        "mode of the layer 'moded' changed from mode_1 to mode_2",
    ),
    "loss": (compiled, lambda: compiled("mae"), "loss changed from mse to mae"),
    "loss weights": (compiled, lambda: compiled(loss_weights=[0.5]), r"loss_weights changed from None to \[0.5\]"),
    "optimizer": (
        compiled,
        lambda: compiled(optimizer=keras.optimizers.SGD(0.1, momentum=0.8)),
        "momentum .* 0.9 to 0.8",
    ),
    "rate of dropout": (compiled, lambda: compiled(rate=0.3), "rate of the layer 'dropout' changed from 0.2 to 0.3"),
    "learning rate": (
        compiled,
        lambda: compiled(optimizer=keras.optimizers.SGD(0.05, momentum=0.9)),
        r"training changed from 0.1 to 0.05, and that of the backup, 0.1, stays.*Scheduler\(lambda epoch: 0.05\)",
    ),
    "jit_compile": (compiled, lambda: compiled(jit_compile=True), "jit_compile changed from False to True"),
}
FITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "class weights": (
        {},
        {"class_weight": {0: 1.0, 1: 3.0}},
        r"class_weight changed from None to \[\(0, 1.0\), \(1, 3.0\)\]",
    ),
    "buffer": (
        {"x": inputs.rows().shuffle(40, seed=3).batch(8)},
        {"x": inputs.rows().shuffle(20, seed=3).batch(8)},
        "buffer_size of the input's Dataset.shuffle changed from 40 to 20",
    ),
    "the order of stages": (
        {"x": inputs.rows().shuffle(40, seed=3).batch(8)},
        {"x": inputs.rows().batch(8).shuffle(40, seed=3)},
        "input's Dataset.shuffle changed from after Dataset.from_tensor_slices to after Dataset.batch",
    ),
    "the second of its kind": (
        {"x": inputs.rows().shuffle(40, seed=3).batch(8).shuffle(4, seed=3)},
        {"x": inputs.rows().shuffle(40, seed=3).batch(8).shuffle(2, seed=3)},
        "buffer_size of the input's Dataset.shuffle number 2 changed from 4 to 2",
    ),
    "a stage": (
        {"x": inputs.rows().shuffle(40, seed=3).batch(8)},
        {"x": inputs.rows().shuffle(40, seed=3).batch(8).prefetch(1)},
        "input's Dataset.prefetch changed from absent to after Dataset.batch",
    ),
    "values of arrays": (
        {"x": np.zeros((40, 6), "float32"), "y": np.zeros((40, 1), "float32"), "batch_size": 8},
        {"x": np.repeat(np.float32([[0] * 6, [1] * 6]), 20, axis=0), "y": np.zeros((40, 1), "float32")},
        r"the input has as many rows as before, but other values in them; give fit\(\) the same data",
    ),
    "values of a dataset's tensors": (
        {"x": tf.data.Dataset.from_tensor_slices((np.zeros((40, 6)), np.zeros(40))).batch(8)},
        {"x": tf.data.Dataset.from_tensor_slices((np.zeros((40, 6)), np.repeat([0.0, 1.0], 20))).batch(8)},
        "the input's Dataset.from_tensor_slices has as many rows as before, but other values in them",
    ),
    "texts of a dataset": (
        {"x": of_words("good", "bad")},
        {"x": of_words("good", "mad")},
        "the input's Dataset.from_tensor_slices has as many rows as before, but other values in them",
    ),
    "a text that a map holds": (
        {"x": with_label("good")},
        {"x": with_label("mood")},
        "tensors that function 0 holds of the input's Dataset.map changed from",
    ),
    "validation data": (
        {"validation_data": tiny.data()},
        {"validation_data": (tiny.data()[0] + 1, tiny.data()[1])},
        r"the validation data has as many rows as before, but other values in them; give fit\(\) the same data",
    ),
    "labels of the validation data": (
        {"validation_data": tiny.data()},
        {"validation_data": (tiny.data()[0], 1 - tiny.data()[1])},
        r"the validation data has as many rows as before, but other values in them; give fit\(\) the same data",
    ),
    "validation steps": (
        {"validation_data": inputs.rows().batch(8)},
        {"validation_data": inputs.rows().batch(8), "validation_steps": 2},
        r"validation_steps changed from None to 2",
    ),
    "validation batch size": (
        {"validation_data": tiny.data(), "validation_batch_size": 8},
        {"validation_data": tiny.data(), "validation_batch_size": 4},
        r"validation_batch_size changed from 8 to 4",
    ),
    "a dataset of validation data": (
        {"validation_data": inputs.rows().batch(8)},
        {"validation_data": inputs.rows().batch(4)},
        "batch_size of the validation data's Dataset.batch changed from 8 to 4",
    ),
    "rows": (
        {"x": inputs.rows().batch(8)},
        {"x": inputs.rows().take(38).batch(8)},
        "Dataset.batch changed from after Dataset.from_tensor_slices to after Dataset.take; "
        "input's Dataset.take changed from absent to after Dataset.from_tensor_slices",
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.in_gate(3)
def test_a_changed_model_or_compile_is_named(tmp_path: Path, name: str) -> None:
    first, second, expected = MODELS[name]
    tiny.resumes(tmp_path, first, again=second, expects="not exact", saying=expected)


@pytest.mark.parametrize("name", FITS)
@pytest.mark.in_gate(3)
def test_a_changed_input_or_fit_is_named(tmp_path: Path, name: str) -> None:
    before, after, expected = FITS[name]
    tiny.resumes(tmp_path, compiled, **before, then=after, expects="not exact", saying=expected)


X, Y = np.linspace(0, 1, 240, dtype="float32").reshape(40, 6), np.zeros((40, 1), "float32")
NOT_SAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "more rows": ({"x": X[:32], "y": Y[:32], "batch_size": 8}, {"x": X, "y": Y}),
    "fewer rows of a dataset": (
        {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)},
        {"x": tf.data.Dataset.from_tensor_slices((X[:32], Y[:32])).batch(8)},
    ),
    "fewer rows of the validation data": ({"validation_data": (X, Y)}, {"validation_data": (X[:32], Y[:32])}),
    "other class weights": (
        {"x": X, "y": Y, "batch_size": 8, "class_weight": {0: 1.0, 1: 2.0}},
        {"class_weight": {0: 1.0, 1: 3.0}},
    ),
}


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("name", NOT_SAID)
def test_nothing_is_said_of_rows_or_values_that_is_not_true(tmp_path: Path, name: str) -> None:
    before, after = NOT_SAID[name]
    ended = tiny.resumes(tmp_path, compiled, **before, then=after, expects="not exact")
    assert "as many rows" not in ended.said
    assert "other values" not in ended.said


@pytest.mark.finds("files-changed", "files-names")
def test_changed_files_are_named_and_moved_ones_are_not(tmp_path: Path) -> None:
    def resume(name: str, *contents: str, **expected: Any) -> kdc.Restored:
        first, second = read_from(tmp_path / "data", *["a"] * 20), read_from(tmp_path / f"{name}-data", *contents)
        return tiny.resumes(tmp_path / name, compiled, x=first, then={"x": second}, **expected).restored

    resume("moved", *["a"] * 20)
    changed = resume("changed", *["a"] * 19, "b", expects="not exact")
    assert changed.notes == ("of the input's files, 1 have another size or content; give fit() the same data",)
    resume("fewer", *["a"] * 16, expects="not exact", saying="input's files have other names")


@pytest.mark.finds("files-not-compared")
def test_many_files_with_other_times_are_a_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_FILES_READ", 4)
    first, copy = (read_from(tmp_path / name, *["a"] * 20) for name in ("data", "copy"))
    for path in (tmp_path / "copy").glob("row*.txt"):
        os.utime(path, (1, 1))  # TensorFlow tells times in seconds, and both were written within one
    ended = tiny.resumes(tmp_path / "b", compiled, x=first, then={"x": copy}, expects="exact if")
    assert ended.restored.conditions == (
        "the 20 files of the input have the same content as before (other times, and not all were compared)",
    )


def test_a_file_that_was_not_sampled_and_has_another_time_is_a_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "_FILES_READ", 2)  # the first and the last

    def changed() -> tf.data.Dataset:
        (tmp_path / "data" / "row007.txt").write_text("b")
        os.utime(tmp_path / "data" / "row007.txt", (1, 1))
        monkeypatch.setattr(Path, "write_text", lambda *arguments: None)
        return read_from(tmp_path / "data", *["a"] * 20)

    first = read_from(tmp_path / "data", *["a"] * 20)
    tiny.resumes(tmp_path / "b", compiled, x=first, then={"x": changed}, expects="exact if")


def test_many_differences_are_counted(tmp_path: Path) -> None:
    def other() -> keras.Model:
        return compiled("mae", rate=0.5, jit_compile=True, loss_weights=[0.1])

    then = {"class_weight": {0: 1.0, 1: 3.0}}
    found = tiny.resumes(tmp_path, compiled, again=other, then=then, expects="not exact").restored.notes
    changed = [note for note in found if " changed from " in note]
    assert found[: len(changed) + 1] == (*changed, "and 4 more")
    assert len(changed) == 4


def test_the_same_in_other_words_is_the_same(tmp_path: Path) -> None:
    """Layers and optimizers are numbered again, a functional model and a loss may be given as before."""

    def functional(before: int) -> keras.Model:
        [keras.layers.Dense(1) for _ in range(before)]  # layers that are made later have other numbers
        entry = keras.Input((6,))
        return keras.Model(entry, keras.layers.Dense(1)(keras.layers.Dense(7)(entry)))

    def numbered(before: int) -> Make:
        return lambda: tiny.compiled(lambda: functional(before), "sgd", keras.losses.MeanSquaredError())

    assert tiny.resumes(tmp_path, numbered(2), again=numbered(5), expects=None, alike=False).restored.notes == ()


def test_a_model_that_was_loaded_is_the_model_that_was_built(tmp_path: Path) -> None:
    built = compiled()
    built.optimizer.build(built.trainable_variables)
    built.save(tmp_path / "model.keras")

    def loaded() -> keras.Model:
        keras.utils.set_random_seed(7)
        return keras.models.load_model(tmp_path / "model.keras")

    given: dict[str, Any] = {"x": lambda: inputs.rows().batch(8), "expects": None, "alike": False}
    assert tiny.resumes(tmp_path / "backup", compiled, again=loaded, **given).restored.notes == ()


def test_a_subclassed_model_is_compared_layer_by_layer(tmp_path: Path) -> None:
    class Own(keras.Model):
        def __init__(self, activation: str) -> None:
            super().__init__()
            self.first, self.last = keras.layers.Dense(7, activation=activation), keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.last(self.first(x))

    def own(activation: str) -> Make:
        def make() -> keras.Model:
            model = Own(activation)
            model(np.zeros((1, 6), "float32"))
            return model

        return lambda: tiny.compiled(make)

    said = "activation of the layer .* changed from relu to tanh"
    tiny.resumes(tmp_path, own("relu"), again=own("tanh"), expects="not exact", saying=said)


def test_tensors_that_a_map_holds_are_part_of_the_input(tmp_path: Path) -> None:
    def scaled(factor: float) -> tf.data.Dataset:
        held = tf.constant([factor] * 6)
        return inputs.rows().map(lambda x, y: (x * held, y)).batch(8)

    said = "tensors that function 0 holds of the input's Dataset.map changed from"
    tiny.resumes(tmp_path, compiled, x=scaled(0.1), then={"x": scaled(0.2)}, expects="not exact", saying=said)


def test_the_numbers_of_enumerated_elements_are_compared(tmp_path: Path) -> None:
    def numbered(start: int) -> tf.data.Dataset:
        rows = inputs.rows().enumerate(start)
        return rows.map(lambda i, row: (row[0] * (1.0 + 0.01 * tf.cast(i % 7, tf.float32)), row[1])).batch(8)

    tiny.resumes(tmp_path / "one", compiled, x=lambda: numbered(0))
    given: dict[str, Any] = {"x": numbered(0), "then": {"x": numbered(5)}, "expects": "not exact"}
    tiny.resumes(tmp_path / "other", compiled, **given, saying=r"range of the input's \S+ changed from \[0, ")


@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_stages_are_not_compared_where_no_step_is_left(tmp_path: Path) -> None:
    model, callback = compiled(), kdc.BackupAndRestore(tmp_path)
    tiny.fit(model, tmp_path, options={"delete_checkpoint": False})
    with pytest.warns(RuntimeWarning, match="runs no step: an earlier fit"):
        tiny.fit(model, None, [callback], x=inputs.rows().batch(4))
    assert callback.restored is not None
    assert len(callback.restored.notes) == 1  # the warning alone


def of_texts(words: str, *, adapts: int = 1) -> keras.Model:
    """A model whose script adapts its vocabulary when it starts, as tutorials do."""

    def make() -> keras.Model:
        vectors = keras.layers.TextVectorization(max_tokens=20, output_mode="tf_idf")
        for _ in range(adapts):
            vectors.adapt([words])
        inputs = keras.Input((), dtype="string")
        return keras.Model(inputs, keras.layers.Dense(1)(vectors(inputs)))

    return tiny.compiled(make, "adam")


def texts() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((["a b", "b c", "c d", "d a"], [0.0, 1.0, 0.0, 1.0])).batch(1)


def test_a_vocabulary_that_is_adapted_again_is_not_a_reason_for_an_alarm(tmp_path: Path) -> None:
    again = lambda: of_texts("a b c d", adapts=2)  # noqa: E731
    tiny.resumes(tmp_path, lambda: of_texts("a b c d"), again=again, x=texts, expects=None)


def test_another_vocabulary_of_the_same_length_is_named(tmp_path: Path) -> None:
    made = (lambda words=words: of_texts(words) for words in ("a b c d", "a b c e"))
    said = "vocabulary 0 changed from 5 entries, .* to 5 entries"
    tiny.resumes(tmp_path, next(made), again=next(made), x=texts, expects="not exact", saying=said)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of numpy, in Keras' saving
def test_a_checkpoint_callback_with_another_directory_is_the_same_one(tmp_path: Path) -> None:
    files = iter(tmp_path / name / "x.keras" for name in ("w0", "w1", "w2"))
    tiny.resumes(tmp_path / "b", callbacks=lambda: [keras.callbacks.ModelCheckpoint(next(files))], expects=None)


@pytest.mark.chaos
def test_rows_of_a_very_large_array_are_compared_at_places_evenly_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "LARGEST", 900)
    monkeypatch.setattr(content, "_ROWS_READ", 4)
    x, y = tiny.data()
    first, last = x.copy(), x.copy()
    first[0, 0] += 1
    last[1, 0] += 1
    given = {"x": x, "y": y, "batch_size": 8}
    said = "other values in them"
    tiny.resumes(tmp_path / "other", compiled, **given, then={"x": first}, expects="not exact", saying=said)
    unseen = tiny.resumes(tmp_path / "unseen", compiled, **given, then={"x": last}, expects="exact if")
    assert unseen.restored.conditions == (
        "the data of the input are the same as in the interrupted run (only 4 of its 40 rows were compared)",
    )


@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_fits_of_one_epoch_each_may_have_other_rows_each(tmp_path: Path) -> None:
    """In a loop that is started again, the first of them has nothing to do."""
    (x, y), model = tiny.data(), compiled()
    tiny.fit(model, tmp_path, epochs=1, x=x, y=y, batch_size=8)
    tiny.interrupt(tmp_path, 1, 2, built=model, initial_epoch=1, epochs=2, x=x + 1, y=y, batch_size=8)
    callback = kdc.BackupAndRestore(tmp_path)
    with pytest.warns(RuntimeWarning, match="runs no step"):  # both are of this process
        tiny.fit(compiled(), None, [callback], epochs=1, x=x, y=y, batch_size=8)
    assert callback.restored is not None
    assert len(callback.restored.notes) == 1  # the warning alone


def test_the_order_of_names_without_weight_decay_tells_nothing() -> None:
    """Keras joins a set of them, whose order is another one in each process."""
    facts = []
    for pattern in ("bias|gamma", "gamma|bias", "bias"):
        model = compiled(optimizer=keras.optimizers.AdamW(0.1))
        model.optimizer.exclude_from_weight_decay(var_names=["bias"])
        model.optimizer._exclude_from_weight_decay_pattern = re.compile(pattern)
        facts.append(of_model.optimizer(model))
    assert facts[0] == facts[1] != facts[2]


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer])
def test_weights_without_weight_decay_are_compared_by_their_places(wrap: Callable[[Any], Any]) -> None:
    facts = []
    for places in ([0], [1, 3], [1, 3], []):
        optimizer = keras.optimizers.AdamW(0.1)
        model = compiled(optimizer=wrap(optimizer))
        optimizer.exclude_from_weight_decay(var_list=[model.trainable_variables[place] for place in places])
        facts.append(of_model.optimizer(model))
    assert facts[1] == facts[2]
    assert len({str(found) for found in facts}) == 3

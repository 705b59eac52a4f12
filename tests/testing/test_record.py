"""Recording runs and comparing them bit for bit; where KillAt strikes, without dying."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest

from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.testing import CountCalls, KillAt, assert_same_run, compare_runs, count_calls, record_run

HISTORY = {"loss": [0.5, 0.1 + 0.2], "top": [1, 2], "per_class": [np.array([0.1, 0.2], "float32")]}


def small_model() -> Any:
    keras.utils.clear_session(free_memory=False)  # automatic names start again
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(np.ones((4, 3), "float32"), np.ones((4, 2), "float32"), verbose=0)
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return small_model()


@pytest.fixture
def runs(tmp_path: Path, model: Any) -> tuple[Path, Path]:
    record_run(tmp_path / "a", model, HISTORY)
    record_run(tmp_path / "b.npz", model, HISTORY)
    return tmp_path / "a", tmp_path / "b"


def change(path: Path, key: str, flip: int | None = None, value: Any = None) -> None:
    """Flips one bit of a recorded variable, or replaces it."""
    with np.load(f"{path}.npz") as file:
        arrays = {name: file[name] for name in file.files}
    if flip is not None:
        arrays[key].view(np.uint8).reshape(-1)[flip // 8] ^= 1 << (flip % 8)
    else:
        arrays[key] = value
    np.savez(f"{path}.npz", **arrays)


def test_the_same_run_is_the_same(runs: tuple[Path, Path]) -> None:
    assert compare_runs(*runs) == []
    assert_same_run(*runs)
    recorded = json.loads(Path(f"{runs[0]}.json").read_text())
    names = " ".join(recorded["variables"])
    for part in (
        "dense/kernel#0",
        "seed_generator_state#0@0",
        "adam/iteration#0",
        "loss/total#0",
        "absolute_error/count",
    ):
        assert part in names
    assert recorded["history"]["loss"] == [(0.5).hex(), (0.1 + 0.2).hex()]


@pytest.mark.slow
def test_the_same_training_twice_is_the_same_run(tmp_path: Path, model: Any) -> None:
    record_run(tmp_path / "a", model, HISTORY)
    record_run(tmp_path / "b", small_model(), HISTORY)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_one_flipped_bit_is_found_and_named(runs: tuple[Path, Path]) -> None:
    key = next(k for k in json.loads(Path(f"{runs[0]}.json").read_text())["variables"] if "dense" in k)
    change(runs[1], key, flip=0)  # the last bit of the first value's mantissa
    with pytest.raises(
        AssertionError, match=r"differ in 1 places:\n.*1 of 6 values differ, max abs difference \d"
    ) as e:
        assert_same_run(*runs)
    assert key in str(e.value)


def test_zero_and_minus_zero_differ_but_nan_is_nan(tmp_path: Path) -> None:
    variable = keras.Variable(np.array([0.0, np.nan], "float32"), name="v")
    record_run(tmp_path / "a", FakeModel(variable), {})
    record_run(tmp_path / "b", FakeModel(variable), {})
    assert_same_run(tmp_path / "a", tmp_path / "b")
    change(tmp_path / "b", "v#0@0", value=np.array([-0.0, np.nan], "float32"))
    assert compare_runs(tmp_path / "a", tmp_path / "b") == [
        "variable v#0@0: 1 of 2 values differ, max abs difference nan"
    ]


def test_bfloat16_is_compared_by_its_bits(tmp_path: Path) -> None:
    for name, values in (("a", [1.0, 2.0]), ("b", [1.0, 2.0]), ("c", [1.0, 2.015625])):
        record_run(tmp_path / name, FakeModel(keras.Variable(values, dtype="bfloat16", name="v")), {})
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert compare_runs(tmp_path / "a", tmp_path / "c") == [
        "variable v#0@0: 1 of 2 values differ, max abs difference 0.015625"
    ]
    assert ml_dtypes.bfloat16(2.015625) != 2.0


def test_variables_of_one_name_are_distinguished(tmp_path: Path) -> None:
    one, two = (keras.Variable([x], name="v") for x in (1.0, 2.0))
    record_run(tmp_path / "a", FakeModel(one, two), {})
    record_run(tmp_path / "b", FakeModel(two, one), {})
    record_run(tmp_path / "c", FakeModel(one), {})
    assert len(compare_runs(tmp_path / "a", tmp_path / "b")) == 2
    assert compare_runs(tmp_path / "a", tmp_path / "c") == ["variable v#1@0: only in the first"]
    assert compare_runs(tmp_path / "c", tmp_path / "a") == ["variable v#1@0: only in the second"]


@pytest.mark.slow
def test_a_model_loaded_from_a_file_is_the_same_though_its_names_differ(tmp_path: Path) -> None:
    model = small_model()
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for one in (model, loaded):
        one.evaluate(np.ones((4, 3), "float32"), np.ones((4, 2), "float32"), verbose=0)  # makes the metrics
    record_run(tmp_path / "a", model, {})
    record_run(tmp_path / "b", loaded, {})
    names = [json.loads((tmp_path / f"{name}.json").read_text())["variables"] for name in "ab"]
    differences = compare_runs(tmp_path / "a", tmp_path / "b")
    if differences:  # the seed generator, where Keras does not save it
        assert all("seed_generator_state" in line for line in differences)
    assert set(names[0]) != set(names[1])
    change(tmp_path / "b", next(key for key in names[1] if "kernel" in key), flip=3)
    assert any("dense/kernel" in line for line in compare_runs(tmp_path / "a", tmp_path / "b"))


def test_another_shape_or_type_is_a_difference(tmp_path: Path) -> None:
    for name, value in (("a", np.zeros(2, "float32")), ("b", np.zeros(3, "float32")), ("c", np.zeros(2, "int32"))):
        record_run(tmp_path / name, FakeModel(keras.Variable(value, dtype=str(value.dtype), name="v")), {})
    assert compare_runs(tmp_path / "a", tmp_path / "b") == ["variable v#0@0: float32(2,) against float32(3,)"]
    assert compare_runs(tmp_path / "a", tmp_path / "c") == ["variable v#0@0: float32(2,) against int32(2,)"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({**HISTORY, "loss": [0.5, 0.3]}, "history loss, value 1: 0.30000000000000004 against 0.3, abs difference 5"),
        ({**HISTORY, "loss": [0.5]}, "history loss: 2 values against 1"),
        ({**HISTORY, "val_loss": []}, "history key val_loss: only in the second"),
        ({"loss": HISTORY["loss"], "top": HISTORY["top"]}, "history key per_class: only in the first"),
        ({**HISTORY, "per_class": [np.array([0.1, 0.3], "float32")]}, "history per_class, value 0: \\["),
    ],
)
def test_differences_of_the_history(tmp_path: Path, model: Any, other: dict[str, Any], message: str) -> None:
    record_run(tmp_path / "a", model, HISTORY)
    record_run(tmp_path / "b", model, other)
    with pytest.raises(AssertionError, match=message):
        assert_same_run(tmp_path / "a", tmp_path / "b")


def test_epochs_of_the_history_count(tmp_path: Path, model: Any) -> None:
    for name, epochs in (("a", [0, 1]), ("b", [0, 0])):
        history = keras.callbacks.History()
        history.epoch, history.history = epochs, {"loss": [1.0, 2.0]}
        record_run(tmp_path / name, model, history)
    assert compare_runs(tmp_path / "a", tmp_path / "b") == ["history epochs: [0, 1] against [0, 0]"]


def test_a_missing_recording_is_named(runs: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match=r"no recorded run at .*nothing"):
        compare_runs(runs[0], runs[0].with_name("nothing"))
    Path(f"{runs[1]}.npz").unlink()
    with pytest.raises(ConfigError, match=r"b\.npz is missing"):
        compare_runs(*runs)


def test_recording_again_replaces_and_leaves_nothing_else(runs: tuple[Path, Path], model: Any) -> None:
    record_run(runs[0], model, HISTORY)
    assert sorted(path.name for path in runs[0].parent.iterdir()) == ["a.json", "a.npz", "b.json", "b.npz"]


@pytest.mark.slow
def test_a_counted_model_can_be_saved_and_loaded(tmp_path: Path) -> None:
    counted = keras.Sequential([keras.Input((3,)), CountCalls(tmp_path / "count-{worker}"), keras.layers.Dense(2)])
    counted.compile("adam", "mse")
    x, y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    counted.fit(x, y, verbose=0)
    counted.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    loaded.fit(x, y, batch_size=1, verbose=0)
    loaded.evaluate(x, y, verbose=0)
    loaded.predict(x, verbose=0)
    assert count_calls(tmp_path / "count-0") == 1 + 4


def test_a_count_needs_an_existing_directory(tmp_path: Path) -> None:
    counted = CountCalls(tmp_path / "missing" / "count")
    with pytest.raises(ConfigError, match="directory does not exist"):
        counted(np.ones((1, 2), "float32"), training=True)
    shutil.rmtree(tmp_path)


# --- KillAt


class FakeModel:
    """Has just what record_run looks at."""

    def __init__(self, *variables: Any) -> None:
        import tensorflow as tf

        self.variables, self.metrics, self.optimizer = list(variables), [], None
        self.distribute_strategy = tf.distribute.get_strategy()


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: sent.append(sig))
    return sent


def train(kill: KillAt, signals: list[int], epochs: int = 2, batches: int = 3, first_epoch: int = 0) -> list[str]:
    """Calls the hooks as fit() does; returns all of them up to the one that sent the signal."""
    kill.set_params({"steps": batches})
    passed: list[str] = []

    def hook(name: str, *args: int) -> None:
        before = bool(signals)
        getattr(kill, f"on_{name}")(*args)
        if not before:
            passed.append(" ".join(map(str, (name, *args))))

    hook("train_begin")
    for epoch in range(first_epoch, epochs):
        hook("epoch_begin", epoch)
        for batch in range(batches):
            hook("train_batch_begin", batch)
            hook("train_batch_end", batch)
        hook("test_batch_end", 0)
        hook("test_batch_end", 1)
        hook("epoch_end", epoch)
    hook("train_end")
    return passed


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("step=4", "train_batch_end 1"),
        ("step=3,phase=train_batch_begin", "train_batch_begin 0"),
        ("epoch=1,batch=2", "train_batch_end 2"),
        ("epoch=1", "train_batch_end 0"),
        ("epoch=1,batch=1,phase=test_batch_end", "test_batch_end 1"),
        ("epoch=1,phase=epoch_begin", "epoch_begin 1"),
        ("epoch=1,phase=epoch_end,after_commit=false", "epoch_end 1"),
        ("phase=train_end", "train_end"),
    ],
)
def test_the_signal_comes_once_and_at_the_right_point(signals: list[int], text: str, where: str) -> None:
    passed = train(KillAt.from_string(text + ",sig=SIGTERM"), signals, epochs=3)
    assert signals == [signal.SIGTERM]
    assert passed[-1] == where
    epoch = sum(name.startswith("epoch_begin") for name in passed) - 1
    assert epoch == (2 if "train_end" in text else 1)


def test_steps_are_counted_from_the_first_fit_on(signals: list[int]) -> None:
    assert train(KillAt(step=7), signals, epochs=3, first_epoch=2)[-1] == "train_batch_end 1"
    assert signals == [signal.SIGKILL]


def test_another_worker_is_spared(signals: list[int]) -> None:
    train(KillAt(epoch=0, worker=1), signals)
    assert signals == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("phase=lunch", "phase must be one of"),
        ("epoch=one", "epoch cannot be 'one'"),
        ("after_commit=maybe", "after_commit cannot be"),
        ("where=here", "is not name=value with one of step, epoch"),
        ("epoch", "epoch cannot be ''"),
        ("sig=SIGNOTHING", "number or name"),
        ("step=1,epoch=1", "not both"),
        ("step=1,phase=test_batch_end", "needs epoch and batch"),
        ("batch=1,phase=epoch_end", "has no batch"),
    ],
)
def test_wrong_descriptions(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KillAt.from_string(text)


def test_a_step_needs_a_known_length(signals: list[int]) -> None:
    kill = KillAt(step=1)
    kill.set_params({"steps": None})
    with pytest.raises(ConfigError, match="give epoch and batch"):
        kill.on_train_begin()

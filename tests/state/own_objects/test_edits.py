"""What an edited script changes is named, and what differs from run to run by its nature is not."""

from __future__ import annotations

import datetime
import functools
import json
import os
import socket
import tempfile
import time
import types
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks.state.facts.of_model import layers
from keras_dist_callbacks.state.own_objects import edits
from keras_dist_callbacks.state.own_objects.kinds import look_at
from keras_dist_callbacks.state.own_objects.look import Policy, Root


def _is_callback(value: Any) -> bool:
    """The callbacks of these tests are those of a fit."""
    return isinstance(value, keras.callbacks.Callback)


POLICY = Policy(
    is_asserted=lambda value: False, own_state=lambda value: None, saved_keys=frozenset, is_listed=_is_callback
)


class Holder:
    """What a script's callback is."""

    def __init__(self, **state: Any) -> None:
        vars(self).update(state)


def described(value: Any, root: str = "callback Holder()") -> Any:
    found = edits.describe(look_at({root: Root(value)}, POLICY), look_at({}, POLICY), ["Holder()"])
    return json.loads(json.dumps(found))


def compared(before: Any, now: Any, root: str = "callback Holder()") -> edits.Edits:
    return edits.compare(described(before, root), described(now, root))


@pytest.mark.parametrize(("was", "is_now"), [(3, 4), (0.5, 0.25), (True, False), (1, 1.0), (1.0, 2.0), (1e3, 3e3)])
@pytest.mark.parametrize("root", ["callback Holder()", "model", "optimizer", "loss"])
def test_another_number_is_named_with_both_values(was: Any, is_now: Any, root: str) -> None:
    found = compared(Holder(rate=was), Holder(rate=is_now), root)
    assert found.settings == {f"{root}/rate": (repr(was), repr(is_now))}
    assert not found.others


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        ("mean", "sum"),
        ([1, 2], [1, 3]),
        ({"a": 1}, {"a": 2}),
        (None, 3),
        ("a.csv", "b.csv"),
        (frozenset("a"), frozenset("b")),
    ],
)
def test_other_values_are_a_condition(was: Any, is_now: Any) -> None:
    found = compared(Holder(value=was), Holder(value=is_now))
    assert list(found.others) == ["callback Holder()/value"]


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        (np.float64(0.484375), 0.484375),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), np.float32(0.5)),
        (np.int64(7), 7),
        (np.bool_(True), True),
        ((1, 2), [1, 2]),
        ((1, "a", None), [np.int64(1), "a", None]),
        ({"a": np.float64(0.5)}, {"a": 0.5}),
        (({"a": 1}, (Holder, 2)), [{"a": 1}, [Holder, 2]]),
        (Path("a"), "a"),
        ([Path("a/b"), 1], ["a/b", 1]),
        ({"path": Path("a")}, {"path": "a"}),
    ],
)
@pytest.mark.parametrize("root", ["callback Holder()", "optimizer"])
def test_equal_numbers_sequences_and_paths_of_other_types_are_equal(was: Any, is_now: Any, root: str) -> None:
    for one, other in ((was, is_now), (is_now, was)):
        assert compared(Holder(value=one), Holder(value=other), root) == edits.Edits()


@pytest.mark.parametrize(
    ("was", "is_now"),
    [(1, True), (1, 1.0), (np.float32(0.1), 0.1), (np.int64(7), 8), (0.5, np.float64(0.25))],
)
def test_other_numbers_are_shown_so_that_one_sees_what_differs(was: Any, is_now: Any) -> None:
    ((shown, shown_now),) = compared(Holder(rate=was), Holder(rate=is_now)).settings.values()
    assert shown != shown_now


@pytest.mark.parametrize(
    ("was", "is_now"),
    [((1, 2), [1, 3]), ((1, 2), [1.0, 2]), ((1, 2), {1, 2}), ((), [0]), (Path("a"), "b"), ("1", 1), ([True], [1])],
)
def test_other_content_of_another_type_is_a_condition(was: Any, is_now: Any) -> None:
    assert compared(Holder(value=was), Holder(value=is_now)).others


@pytest.mark.parametrize(("was", "is_now"), [(None, 1.0), (1.0, None)])
def test_an_option_of_the_optimizer_that_was_not_set_is_a_setting(was: Any, is_now: Any) -> None:
    found = compared(Holder(clipnorm=was), Holder(clipnorm=is_now), "optimizer")
    assert found.settings == {"optimizer/clipnorm": (str(was), str(is_now))}


def with_constant(factor: float) -> Callable[[float], float]:
    return lambda rate: rate * factor


@pytest.mark.parametrize(
    "make",
    [
        lambda factor: with_constant(factor),
        lambda factor: functools.partial(pow, exp=factor),
        lambda factor: types.SimpleNamespace(settings=Holder(factor=factor)),
    ],
)
def test_what_functions_and_objects_hold_is_compared(make: Callable[[float], Any]) -> None:
    found = compared(Holder(value=make(0.5)), Holder(value=make(0.25)))
    assert len(found.settings) == 1


def compiled(source: str, file: str = "train.py") -> Any:
    namespace: dict[str, Any] = {"__name__": "train"}
    exec(compile(source, file, "exec"), namespace)  # noqa: S102 - a script of two versions
    return namespace["schedule"]


CODE = """
def schedule(epoch, rate):
    return rate * 0.9 if epoch > 2 else rate
"""


@pytest.mark.parametrize(
    "edited",
    [
        CODE.replace("0.9", "0.8"),
        CODE.replace("> 2", "> 3"),
        CODE.replace("rate * 0.9", "min(rate, 0.9)"),
        CODE.replace("epoch, rate", "epoch, rate, more=None"),
        CODE.replace("return", "rate += 1\n    return"),
    ],
)
def test_an_edited_function_is_named(edited: str) -> None:
    found = compared(Holder(value=compiled(CODE)), Holder(value=compiled(edited)))
    assert found.code == ["train.py: schedule"]


@pytest.mark.parametrize(
    "edited",
    [
        CODE.replace("    return", "    # a comment\n    return"),
        CODE.replace("    return", '    """A docstring."""\n    return'),
        CODE.replace("rate * 0.9 if", "(\n        rate\n        * 0.9\n    ) if"),
        "import os\n\n\n\n" + CODE + "\n\nprint\n",
    ],
)
def test_comments_docstrings_and_formatting_are_no_edit(edited: str) -> None:
    found = compared(Holder(value=compiled(CODE)), Holder(value=compiled(edited)))
    assert found == edits.Edits()


@pytest.mark.parametrize(("factor", "changed"), [("0.9", []), ("0.8", ["train_2.py: schedule"])])
def test_a_renamed_script_is_no_edit_of_its_functions(factor: str, changed: list[str]) -> None:
    renamed = compiled(CODE.replace("0.9", factor), "train_2.py")
    assert compared(Holder(value=compiled(CODE)), Holder(value=renamed)).code == changed


LAMBDAS = """
schedule = [lambda rate: rate * 0.9, lambda rate: rate * 0.8, lambda rate: rate * 0.7]
"""


@pytest.mark.parametrize("factor", ["0.9", "0.8", "0.7"])
def test_each_of_several_lambdas_is_compared(factor: str) -> None:
    edited = LAMBDAS.replace(factor, "0.5")
    found = compared(Holder(value=compiled(LAMBDAS)), Holder(value=compiled(edited)))
    assert found.code == ["train.py: <lambda>"]


def test_verbose_is_no_edit() -> None:
    assert compared(Holder(verbose=0), Holder(verbose=1)) == edits.Edits()


def test_functions_of_another_version_of_python_are_not_compared() -> None:
    before = described(Holder(value=compiled(CODE)))
    before["python"] = [3, 1]
    assert edits.compare(before, described(Holder(value=compiled(CODE.replace("0.9", "0.8"))))).code == []


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        (time.time() - 5000, time.time()),
        (time.perf_counter() - 5, time.perf_counter()),
        (datetime.datetime(2024, 1, 2), datetime.datetime.now()),
        (f"run-{datetime.datetime.now() - datetime.timedelta(hours=5):%Y%m%d-%H%M%S}", f"run-{datetime.datetime.now():%Y%m%d-%H%M%S}"),  # noqa: E501
        (str(uuid.uuid4()), str(uuid.uuid4())),
        (uuid.uuid4().hex, uuid.uuid4().hex),
        (f"worker-{socket.gethostname()}-{os.getpid()}", f"worker-{socket.gethostname()}-{os.getpid()}"),
        ("/tmp/a/logs", "/mnt/b/logs/"),  # noqa: S108
        (f"{int(time.time()) - 90}", f"{int(time.time())}"),
    ],
    ids=["time", "perf_counter", "datetime", "date in a text", "uuid", "hex", "host and process", "path", "seconds"],
)  # fmt: skip
def test_times_identifiers_and_directories_are_no_edit(was: Any, is_now: Any) -> None:
    assert compared(Holder(value=was), Holder(value=is_now)) == edits.Edits()


def test_temporary_directories_are_no_edit_and_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours, theirs = Holder(value=tempfile.mkdtemp(prefix="swa_")), Holder(value=tempfile.mkdtemp(prefix="swa_"))
    assert compared(ours, theirs) == edits.Edits()
    (tmp_path / "run_weights1").mkdir(mode=0o755)
    assert list(compared(ours, Holder(value=str(tmp_path / "run_weights1"))).others) == ["callback Holder()/value"]


@pytest.mark.parametrize("text", ["data-20190101.csv", "1234567890", "fold 31337 of 40000"])
def test_numbers_that_are_no_times_are_compared(text: str) -> None:
    found = compared(Holder(value=text), Holder(value=text.replace("1", "2")))
    assert list(found.others) == ["callback Holder()/value"]


def test_a_callback_that_only_one_run_has_is_named_once() -> None:
    before, now = described(Holder(rate=1)), described(Holder(rate=1))
    before["callbacks"].append("Other()")
    before["values"]["callback Other()/rate"] = ["int", "3"]
    found = edits.compare(before, now)
    assert found.callbacks == ["Other()"]
    assert not found.settings


def test_what_keras_sets_on_its_own_callbacks_is_not_an_edit() -> None:
    one, other = keras.callbacks.EarlyStopping("loss", patience=3), keras.callbacks.EarlyStopping("loss", patience=3)
    other.wait, other.best = 2, 0.5
    assert compared(one, other) == edits.Edits()
    other.patience = 4
    assert compared(one, other).settings == {"callback Holder()/patience": ("3", "4")}


class WithVariables(keras.Model):
    """A distiller, a GAN or a VAE: what else it trains with are its attributes."""

    def __init__(self, rate: float, weight: float) -> None:
        super().__init__()
        self.second = keras.optimizers.Adam(rate)
        self.weight = tf.Variable(weight, trainable=False)
        self.kernel = self.add_weight(shape=(), initializer=keras.initializers.Constant(weight))


def test_numbers_in_variables_and_rates_of_further_optimizers_are_named() -> None:
    def of_model(*numbers: float, is_loaded: bool = False) -> Any:
        found = look_at({"model": Root(WithVariables(*numbers), True)}, POLICY)
        return edits.describe(found, look_at({}, POLICY), [], is_loaded=is_loaded)

    assert edits.compare(of_model(0.1, 1.0), of_model(0.1, 1.0)) == edits.Edits()
    found = edits.compare(of_model(0.1, 1.0), of_model(0.2, 3.0))
    assert found.settings == {
        "model/second/_learning_rate": ("0.1", "0.2"),
        "model/weight": ("1.0", "3.0"),
    }
    assert edits.compare(of_model(0.1, 1.0), of_model(0.2, 3.0, is_loaded=True)) == edits.Edits()


def test_layers_of_the_input_are_compared() -> None:
    def augmented(factor: float) -> Any:
        keras.utils.set_random_seed(1)
        layer = keras.layers.RandomRotation(factor)
        return described(lambda x: layer(x), "input function 0")

    assert list(edits.compare(augmented(0.1), augmented(0.1)).others) == []
    assert list(edits.compare(augmented(0.1), augmented(0.3)).others) == ["input function 0/closure layer/factor"]


def test_a_later_fit_tells_what_the_first_one_knew() -> None:
    holder = Holder(count=0)
    first = described(holder)
    holder.count, holder.later = 20, 1
    told = edits.with_first(described(holder), first)
    assert edits.compare(told, first).settings == {}
    assert list(edits.compare(told, first).others) == ["callback Holder()/later"]


def model_with(source: str) -> keras.Model:
    layer = keras.layers.Lambda(compiled(f"schedule = {source}"), output_shape=(3,))
    return keras.Sequential([keras.Input((3,)), layer])


def test_a_lambda_layer_is_compared_as_a_function() -> None:
    sources = ["lambda x: 2 * x", "(\n\n    lambda x: 2 * x  # twice\n)", "lambda x: 3 * x"]
    before, moved, edited = map(model_with, sources)
    assert layers(before) == layers(moved) == layers(edited)
    assert compared(before, moved, "model") == edits.Edits()
    assert compared(before, edited, "model").code == ["train.py: <lambda>"]

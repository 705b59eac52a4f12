"""What an edited script changes is named, and what differs from run to run by its nature is not."""

from __future__ import annotations

import datetime
import functools
import json
import os
import socket
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks.state.facts.of_model import layers
from keras_dist_callbacks.state.own_objects import edits
from keras_dist_callbacks.state.own_objects.edits import Edits
from keras_dist_callbacks.state.own_objects.kinds import look_at
from keras_dist_callbacks.state.own_objects.look import Policy, Root
from tests.support.carried_over import Holder

POLICY = Policy(lambda v: False, lambda v: None, frozenset, lambda v: isinstance(v, keras.callbacks.Callback))
ROOT = "callback Holder()"
COMPILED = ("model", "optimizer", "loss")


def described(value: Any, root: str = ROOT, *, is_traced: bool = False, is_loaded: bool = False) -> Any:
    found = look_at({root: Root(value, is_traced)}, POLICY)
    return json.loads(json.dumps(edits.describe(found, look_at({}, POLICY), ["Holder()"], is_loaded=is_loaded)))


def compared(before: Any, now: Any, root: str = ROOT) -> Edits:
    return edits.compare(described(before, root), described(now, root))


@pytest.mark.parametrize(
    ("was", "is_now", "shown"),
    [
        *((3, 4, ("3", "4")), (0.5, 0.25, ("0.5", "0.25")), (True, False, ("True", "False"))),
        *((1, 1.0, ("1", "1.0")), (1, True, ("1", "True")), (np.int64(7), 8, ("7", "8"))),
        (np.float32(0.1), 0.1, ("0.10000000149011612", "0.1")),
        *((None, 1.0, ("None", "1.0")), (1.0, None, ("1.0", "None"))),  # an option of the optimizer, say
    ],
)
def test_another_number_is_named_with_both_values(was: Any, is_now: Any, shown: tuple[str, str]) -> None:
    for root in COMPILED if None in (was, is_now) else (ROOT, *COMPILED):
        assert compared(Holder(rate=was), Holder(rate=is_now), root) == Edits(settings={f"{root}/rate": shown})


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        *(("mean", "sum"), ([1, 2], [1, 3]), ({"a": 1}, {"a": 2}), (None, 3), (frozenset("a"), frozenset("b"))),
        *(((1, 2), [1, 3]), ((1, 2), [1.0, 2]), ((1, 2), {1, 2}), ((), [0]), (Path("a"), "b"), ("1", 1), ([True], [1])),
        *(("data-20190101.csv", "data-20290202.csv"), ("1234567890", "2234567890"), ("fold 31337", "fold 32337")),
    ],
)
def test_other_values_are_a_condition(was: Any, is_now: Any) -> None:
    assert compared(Holder(value=was), Holder(value=is_now)) == Edits(others={f"{ROOT}/value": None})


NOW, DATE = time.time(), datetime.datetime.now()
ALIKE: dict[str, tuple[Any, Any]] = {
    "a float of numpy's": (np.float64(0.484375), 0.484375),
    "a truth value of numpy's": (np.bool_(True), True),
    "a tuple": ((1, "a", None), [np.int64(1), "a", None]),
    "a tuple of containers": (({"a": 1}, (Holder, 2)), [{"a": 1}, [Holder, 2]]),
    "a number in a dict": ({"a": np.float64(0.5)}, {"a": 0.5}),
    "a path": (Path("a"), "a"),
    "a path in a list": ([Path("a/b"), 1], ["a/b", 1]),
    "a time": (NOW - 5000, NOW),
    "a time of another clock": (time.perf_counter() - 5, time.perf_counter()),
    "a date": (datetime.datetime(2024, 1, 2), DATE),
    "a date in a text": (f"run-{DATE - datetime.timedelta(hours=5):%Y%m%d-%H%M%S}", f"run-{DATE:%Y%m%d-%H%M%S}"),
    "seconds in a text": (f"{int(NOW) - 90}", f"{int(NOW)}"),
    "an identifier": (str(uuid.uuid4()), str(uuid.uuid4())),
    "an identifier without hyphens": (uuid.uuid4().hex, uuid.uuid4().hex),
    "host and process": (f"node-7 {os.getpid()}", "<host> <pid>"),
    "a directory": ("/tmp/a/logs", "/mnt/b/logs/"),  # noqa: S108
}


@pytest.mark.parametrize(("was", "is_now"), ALIKE.values(), ids=ALIKE)
def test_equal_values_of_other_types_times_identifiers_and_directories_are_no_edit(
    was: Any, is_now: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-7")
    for one, other in ((was, is_now), (is_now, was)):
        assert compared(Holder(value=one), Holder(value=other)) == Edits()


def test_temporary_directories_are_no_edit_and_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours, theirs = (Holder(value=tempfile.mkdtemp(prefix="swa_")) for _ in range(2))
    assert compared(ours, theirs) == Edits()
    (tmp_path / "run_weights1").mkdir(mode=0o755)
    assert compared(ours, Holder(value=str(tmp_path / "run_weights1"))).others


def test_what_functions_and_objects_hold_is_compared() -> None:
    def made(factor: float) -> Holder:
        held = {"function": lambda rate: rate * factor, "object": Holder(factor=factor)}
        return Holder(partial=functools.partial(pow, exp=factor), **held)

    assert list(compared(made(0.5), made(0.25)).settings.values()) == 3 * [("0.5", "0.25")]


def compiled(source: str, file: str = "train.py") -> Any:
    namespace: dict[str, Any] = {"__name__": "train"}
    exec(compile(source, file, "exec"), namespace)  # noqa: S102 - a script of two versions
    return namespace["schedule"]


CODE = """
def schedule(epoch, rate):
    return rate * 0.9 if epoch > 2 else rate
"""
LAMBDAS = "schedule = [lambda rate: rate * 0.9, lambda rate: rate * 0.8]"


CODES: dict[str, tuple[str, str, str, str, list[str]]] = {
    "a number": (CODE, "0.9", "0.8", "train.py", ["train.py: schedule"]),
    "a call": (CODE, "rate * 0.9", "min(rate, 0.9)", "train.py", ["train.py: schedule"]),
    "an argument": (CODE, "epoch, rate", "epoch, rate, more", "train.py", ["train.py: schedule"]),
    "the first lambda": (LAMBDAS, "0.9", "0.5", "train.py", ["train.py: <lambda>"]),
    "the last lambda": (LAMBDAS, "0.8", "0.5", "train.py", ["train.py: <lambda>"]),
    "a docstring and a comment": (CODE, "    return", '    """Text."""\n\n    # a comment\n    return', "train.py", []),
    "the formatting": (CODE, "rate * 0.9 if", "(\n        rate\n        * 0.9\n    ) if", "train.py", []),
    "what is around": (CODE, CODE, f"import os\n\n\n\n{CODE}\n\nprint\n", "train.py", []),
    "the name of the script": (CODE, "", "", "renamed.py", []),
    "the name of the script and a number": (CODE, "0.9", "0.8", "renamed.py", ["renamed.py: schedule"]),
}


@pytest.mark.parametrize(("before", "old", "new", "file", "edited"), CODES.values(), ids=CODES)
def test_a_function_is_named_if_what_it_does_was_edited(
    before: str, old: str, new: str, file: str, edited: list[str]
) -> None:
    now = compiled(before.replace(old, new), file)
    assert compared(Holder(value=compiled(before)), Holder(value=now)) == Edits(code=edited)


def test_what_only_one_run_has_and_what_another_python_made_of_functions_is_not_compared() -> None:
    before, now = described(Holder(value=compiled(CODE))), described(Holder(value=compiled(CODE.replace("2", "3"))))
    before["callbacks"].append("Other()")
    before["values"]["callback Other()/rate"] = ["int", "3"]
    before["python"] = [3, 1]
    assert edits.compare(before, now) == Edits(callbacks=["Other()"])


def test_what_keras_sets_on_its_own_callbacks_and_verbose_is_not_an_edit() -> None:
    one, other = keras.callbacks.EarlyStopping("loss", patience=3), keras.callbacks.EarlyStopping("loss", patience=3)
    other.wait, other.best, other.verbose = 2, 0.5, 1
    assert compared(one, other) == Edits()
    other.patience = 4
    assert compared(one, other) == Edits(settings={f"{ROOT}/patience": ("3", "4")})


class WithVariables(keras.Model):
    """A distiller, a GAN or a VAE: what else it trains with are its attributes."""

    def __init__(self, rate: float, weight: float) -> None:
        super().__init__()
        self.second = keras.optimizers.Adam(rate)
        self.weight = tf.Variable(weight, trainable=False)
        self.kernel = self.add_weight(shape=(), initializer=keras.initializers.Constant(weight))


def test_numbers_in_variables_and_rates_of_further_optimizers_are_named() -> None:
    def of_model(rate: float, weight: float, *, is_loaded: bool = False) -> Any:
        return described(WithVariables(rate, weight), "model", is_traced=True, is_loaded=is_loaded)

    numbers = {"model/second/_learning_rate": ("0.1", "0.2"), "model/weight": ("1.0", "3.0")}
    assert edits.compare(of_model(0.1, 1.0), of_model(0.1, 1.0)) == Edits()
    assert edits.compare(of_model(0.1, 1.0), of_model(0.2, 3.0)) == Edits(settings=numbers)
    assert edits.compare(of_model(0.1, 1.0), of_model(0.2, 3.0, is_loaded=True)) == Edits()


def test_layers_of_the_input_are_compared() -> None:
    def augmented(factor: float) -> Any:
        layer = keras.layers.RandomRotation(factor, seed=1)
        return lambda x: layer(x)

    assert compared(augmented(0.1), augmented(0.1), "input function 0") == Edits()
    found = compared(augmented(0.1), augmented(0.3), "input function 0")
    assert list(found.others) == ["input function 0/closure layer/factor"]


def test_a_later_fit_tells_what_the_first_one_knew() -> None:
    holder = Holder(count=0)
    first = described(holder)
    holder.count, holder.later = 20, 1
    told = edits.with_first(described(holder), first)
    assert edits.compare(told, first) == Edits(others={f"{ROOT}/later": None})


def test_a_lambda_layer_is_compared_as_a_function() -> None:
    before, moved, edited = (
        keras.Sequential([keras.Input((3,)), keras.layers.Lambda(compiled(f"schedule = {source}"), output_shape=(3,))])
        for source in ("lambda x: 2 * x", "(\n\n    lambda x: 2 * x  # twice\n)", "lambda x: 3 * x")
    )
    assert layers(before) == layers(moved) == layers(edited)
    assert compared(before, moved, "model") == Edits()
    assert compared(before, edited, "model").code == ["train.py: <lambda>"]

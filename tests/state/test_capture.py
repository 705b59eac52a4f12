"""A snapshot holds what was read without a copy, and never changes while training continues."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dist_callbacks._compat import variables
from keras_dist_callbacks.backups.snapshot import SharedTensor
from keras_dist_callbacks.state.own_values import from_json
from keras_dist_callbacks.state.variables import jsonable_logs
from tests.support import SUPPORT, tiny
from tests.support.probe_snapshots import OPTIMIZERS, build, changed, differs_after_a_restore
from tests.support.processes import worker_processes

pytestmark = pytest.mark.slow  # complete fits

PROBE = SUPPORT / "probe_snapshots.py"


def fresh(dtype: str = "float32") -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    return build(dtype)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["graph", pytest.param("eager", marks=pytest.mark.chaos)])
@pytest.mark.in_gate(2)
def test_no_held_value_changes_whatever_the_optimizer(name: str, mode: str) -> None:
    model = fresh()
    model.compile(OPTIMIZERS[name](), "mse", metrics=["mae"], run_eagerly=mode == "eager", jit_compile=False)
    altered, moved = changed(model)
    assert altered == []
    assert moved >= 6, "training did change the variables"


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("name", ["adam", "momentum", "adamw_ema"])
def test_no_held_value_changes_under_xla(name: str) -> None:
    model = fresh()
    model.compile(OPTIMIZERS[name](), "mse", metrics=["mae"], jit_compile=True)
    altered, moved = changed(model)
    assert altered == []
    assert moved >= 6


def test_no_held_value_changes_in_bfloat16() -> None:
    model = fresh("mixed_bfloat16")
    model.compile(OPTIMIZERS["adam"](), "mse", metrics=["mae"])
    altered, moved = changed(model)
    assert altered == []
    assert moved >= 6


@pytest.mark.in_gate(1)
@pytest.mark.cluster
@pytest.mark.parametrize(("kind", "workers"), [("mirrored", 1), ("multi_worker", 2)])
def test_no_held_value_changes_under_a_strategy(tmp_path: Path, kind: str, workers: int) -> None:
    with worker_processes([sys.executable, str(PROBE), kind], workers, tmp_path) as cluster:
        cluster.start()
        assert not any(cluster.wait(180)), cluster.tails()
        lines = [line for i in range(workers) for line in cluster.log(i).splitlines() if line.startswith("RESULTS ")]
    results = [json.loads(line.removeprefix("RESULTS ")) for line in lines]
    assert len(results) == workers
    for result in results:
        for altered, moved, different in result.values():
            assert altered == []
            assert different == [], "restored state that variables share was written to"
            assert moved >= 6


def test_training_from_memory_that_variables_took_over_repeats_bit_by_bit() -> None:
    model = fresh()
    model.compile(OPTIMIZERS["adam"](), "mse", metrics=["mae"])
    assert differs_after_a_restore(model) == []


def test_large_variables_are_restored_bit_by_bit(tmp_path: Path) -> None:
    tiny.resumes(tmp_path, lambda: tiny.model(units=60_000), epochs=2)


def test_what_a_variable_took_over_stays_as_it_was_for_whoever_holds_it() -> None:
    array = variables.empty((1000, 500), np.dtype("float32"))
    array[...] = 1
    first, second = tf.Variable(tf.zeros((1000, 500))), tf.Variable(tf.zeros((1000, 500)))
    for variable in (first, second):
        variables.assign(variable, array)
        held = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)._numpy()
        assert held.ctypes.data == array.ctypes.data, "taken over without a copy"
    del held
    first.assign_add(tf.ones((1000, 500)))
    first.scatter_nd_update([[0]], [tf.fill((500,), 7.0)])
    assert np.all(array == 1)
    del array
    first.assign_add(tf.ones((1000, 500)))
    assert np.all(second.numpy() == 1)
    assert np.all(first.numpy()[0] == 8)
    assert np.all(first.numpy()[1:] == 3)


def test_a_plain_array_is_copied_when_it_is_assigned() -> None:
    array = np.ones((1000, 500), "float32")
    variable = tf.Variable(tf.zeros((1000, 500)))
    variables.assign(variable, array)
    variable.assign_add(tf.ones((1000, 500)))
    assert np.all(array == 1)
    array[...] = 9
    assert np.all(variable.numpy() == 2)


def test_what_is_remembered_of_a_model_follows_its_variables() -> None:
    model = fresh()
    model.compile(OPTIMIZERS["sgd"](), "mse")
    before = variables.variable_set(model)
    assert variables.variable_set(model) is before
    model.compile(OPTIMIZERS["adam"](), "mse")
    model.optimizer.build(model.trainable_variables)
    after = variables.variable_set(model)
    assert after is not before
    assert len(after.labels) > len(before.labels)
    assert list(after.named) == list(variables.named_variables(model))


def test_logs_of_any_numbers_are_plain_ones_in_a_backup() -> None:
    logs = {"a": np.float64(1.5), "b": np.float32(0.5), "c": np.int64(3), "d": np.bool_(True), "e": tf.constant(2.0)}
    found = jsonable_logs({**logs, "f": 1, "g": "text", "object": np.array([object()])}, {})
    assert found == {"a": 1.5, "b": 0.5, "c": 3, "d": True, "e": 2.0, "f": 1, "g": "text"}
    assert {type(value) for value in found.values()} == {float, int, bool, str}


def test_logs_with_axes_and_logs_of_several_metrics_come_back() -> None:
    tensors: dict[str, SharedTensor] = {}
    found = jsonable_logs(
        {"rows": tf.constant([1.0, 2.0]), "metrics": {"a": np.float32(0.5), "b": np.arange(2)}}, tensors
    )
    again = from_json(found, {name: tensor.array() for name, tensor in tensors.items()})
    np.testing.assert_array_equal(again.pop("rows"), [1.0, 2.0])
    np.testing.assert_array_equal(again["metrics"].pop("b"), [0, 1])
    assert again == {"metrics": {"a": 0.5}}

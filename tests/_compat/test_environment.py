"""The numerical environment: described with what bits depend on, and differences named."""

from __future__ import annotations

import pytest

from keras_dist_callbacks._compat import environment


def test_it_is_the_same_again_in_one_process() -> None:
    found = environment.describe()
    assert environment.differences(found, environment.describe()) == []
    assert {"cpu", "cpu_instructions", "threads", "deterministic", "floatx", "python", "numpy", "gpus"} <= found.keys()


@pytest.mark.parametrize(
    "name", ["cpu", "cpu_instructions", "gpus", "threads", "deterministic", "floatx", "TF_ENABLE_ONEDNN_OPTS"]
)
def test_what_bits_depend_on_is_named_with_both_values(name: str) -> None:
    before = {**environment.describe(), name: "something else"}
    ((code, _, was, _),) = environment.differences(before, environment.describe())
    assert (code, was) == ("environment", "something else")


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_versions_of_python_and_numpy_are_a_condition(name: str) -> None:
    ((code, _, was, _),) = environment.differences({**environment.describe(), name: "1.2"}, environment.describe())
    assert (code, was) == ("python-version", "1.2")


def test_tensor_float_32_matters_where_there_is_a_gpu_only() -> None:
    assert ("tf32" in environment.describe()) == (environment.describe()["gpus"] != "none")


def test_a_backup_that_does_not_know_its_environment_is_not_compared() -> None:
    assert environment.differences({}, environment.describe()) == []

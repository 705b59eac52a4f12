"""What differs between the backups of two runs is found and named: every topic of the state, every kind of tensor."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups import manifest as manifests
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.cli.rehearsal.comparison import (
    RunBackups,
    first_difference,
    gaps,
    missing_positions,
)
from tests.support.cli_backups import begin, commit
from tests.support.states import fit_state, random_states

TENSORS: dict[str, Any] = {
    "variables/dense/kernel@0": np.arange(6, dtype="float32").reshape(2, 3),
    "variables/dense/kernel@1": np.arange(6, dtype="float32").reshape(2, 3) + 1,
    "variables/dense/half@0": np.arange(4).astype(ml_dtypes.bfloat16),
    "variables/seed_generator/state@0": np.array([1, 2], "int64"),
    "variables/flag@0": np.array(True),
    "variables/nothing@0": np.zeros((0, 3), "float32"),
    "input/epoch_end/0": np.frombuffer(b"random states", np.uint8),
    "callbacks/Own/values": np.ones(3),
    "progress/logs/by_class": np.ones(2),
    "objects/description": np.frombuffer(b"{}", np.uint8),
    "architecture/json": np.frombuffer(b"{}", np.uint8),
}
KINDS = {
    "variables": "variable", "input": "input", "callbacks": "callback", "progress": "state", "objects": "script",
    "architecture": "script",
}  # fmt: skip

CHANGED: dict[str, tuple[Any, Any]] = {
    "random/now": (random_states(), random_states(1)),
    "random_at_epoch/entered": (random_states(), random_states(1)),
    "random_at_epoch/begun": (random_states(), random_states(1)),
    "input/random": (random_states(), random_states(1)),
    "progress/fit": tuple({"number": n, "first": 0, "epochs": 5, "initial_epoch": 0} for n in (0, 1)),
    "input/num_batches": (10, 11),
    "input/first_epoch": (0, 1),
    "input/num_validations": (1, 2),
    "input/shares_input": (True, False),
    "progress/is_finalized": (False, True),
    "progress/stop_training": (False, True),
    "progress/logs": ({"loss": 0.5}, {"loss": 0.25}),
    "variables/metrics": (["loss/total"], []),
    "input/variables": ([["a", "float32[2]"]], []),
    "step/variables": ([["a", "float32[2]"]], []),
    "input/fit": (0, 1),
    "input/by_count": ([[0, 1, 5]], [[0, 2, 5]]),
    "objects/changed": ({"the callback Own.count": (3, "x")}, {"the callback Own.count": (4, "y")}),
    "objects/traced": ({"Own.rate": (3, "x")}, {"Own.rate": (4, "y")}),
    "input_objects/changed": ({"the PyDataset.place": (3, "x")}, {"the PyDataset.place": (4, "y")}),
    "environment/now": ({"cpu": "one"}, {"cpu": "other"}),
    "input/own": ({"position": 3}, {"position": 4}),
    "input/order": ({"seed": 3, "epoch": 0}, {"seed": 4, "epoch": 0}),
    "compile/is_another": (False, True),
    "compile/optimized": ([0], [0, 1]),
    "loop/user": ({"value": 1}, {"value": 2}),
    "callbacks/History()": ({"epoch": [0], "history": {"loss": [0.5]}}, {"epoch": [0], "history": {"loss": [0.25]}}),
    "callbacks/EarlyStopping(monitor=loss)": ({"wait": 1}, {"wait": 0}),
}


def run(place: Path, tensors: dict[str, Any] | None = None, state: dict[str, Any] | None = None) -> RunBackups:
    store = begin(place)
    for step in (1, 2):
        late = {} if step == 1 else {**(tensors or {})}
        position = Position("within", 1, step, step)
        commit(store, step, {**TENSORS, **late}, position=position, states=({**(state or {})},))
    return RunBackups.read(store)


def test_equal_backups_have_no_difference_though_their_creation_times_differ(tmp_path: Path) -> None:
    one, other = run(tmp_path / "one"), run(tmp_path / "other")
    assert one.manifests[0].info["created"] != other.manifests[0].info["created"]
    assert list(gaps(one, other)) == []


def test_each_topic_that_a_manifest_holds_is_among_the_cases() -> None:
    topics = {f"{part}/{topic}" for part, topics in manifests.PARTS.items() for topic in topics or ()}
    assert CHANGED.keys() >= topics


@pytest.mark.parametrize("part", ["input", "earlier"])
def test_what_was_found_is_no_difference(tmp_path: Path, part: str) -> None:
    found = {f"{part}/findings": [["loop-twice", "", [], ""]]}
    one, other = run(tmp_path / "one"), run(tmp_path / "other", state=found)
    assert list(gaps(one, other)) == []


@pytest.mark.parametrize("topic", CHANGED)
def test_a_topic_that_differs_is_named_with_both_values(tmp_path: Path, topic: str) -> None:
    one, other = (run(tmp_path / str(n), state={topic: copy.deepcopy(CHANGED[topic][n])}) for n in (0, 1))
    found = first_difference(one, other)
    assert found is not None
    assert found.variables == ()
    assert found.step == 1
    assert {state.words for state in found.states} == {_in_words(topic)}
    assert all(state.one != state.other or "a list of" in state.one for state in found.states)


def _in_words(topic: str) -> str:
    words = {
        "random/now": "random states", "progress/logs": "logs of the epoch", "input/own": "position of the input",
        "callbacks/History()": "History", "objects/changed": "Python state",
        "callbacks/EarlyStopping(monitor=loss)": "callback EarlyStopping(monitor=loss)",
    }  # fmt: skip
    known = {
        "random_at_epoch/entered": "random states at the beginning of the epoch",
        "random_at_epoch/begun": "random states before the epoch",
        "input/random": "random states at the beginning of the input",
        "input/variables": "variables of the input",
        "input/order": "order of the input",
        "input_objects/changed": "Python state of the input",
    }
    return {**words, **known}.get(topic, topic)


def _altered(name: str) -> np.ndarray:
    value = np.array(TENSORS[name])
    if value.size == 0:
        return np.zeros((0, 4), value.dtype)
    flat = value.reshape(-1)
    flat[-1] = not flat[-1] if value.dtype == bool else flat[-1] + flat.dtype.type(1)
    return value


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_differs_is_named_with_its_kind_and_distance(tmp_path: Path, name: str) -> None:
    one, other = run(tmp_path / "one"), run(tmp_path / "other", {name: _altered(name)})
    found = first_difference(one, other)
    assert found is not None
    assert found.step == 2
    (variable,) = found.variables
    kind, _, rest = name.partition("/")
    assert variable.kind == KINDS[kind]
    assert rest.partition("@")[0] in variable.name
    if TENSORS[name].size:
        assert (variable.differ, variable.size, variable.largest) == (1, TENSORS[name].size, 1.0)


def test_a_nan_in_a_tensor_counts_by_its_bits_and_not_in_the_distance(tmp_path: Path) -> None:
    name = "variables/dense/kernel@0"
    with_nan = np.full((2, 3), np.nan, "float32")
    same = first_difference(run(tmp_path / "a", {name: with_nan}), run(tmp_path / "b", {name: with_nan.copy()}))
    assert same is None
    found = first_difference(run(tmp_path / "c", {name: with_nan}), run(tmp_path / "d"))
    assert found is not None
    assert (found.variables[0].differ, found.variables[0].largest) == (6, None)


def test_nan_in_a_log_is_no_difference(tmp_path: Path) -> None:
    one, other = (run(tmp_path / str(n), state={"progress/logs": {"loss": float("nan")}}) for n in (0, 1))
    assert first_difference(one, other) is None


@pytest.mark.parametrize("kind", ["within", "end"])
def test_of_the_files_of_checkpoints_the_best_value_is_compared_at_the_end(tmp_path: Path, kind: Any) -> None:
    def run(place: Path, best: float | None, generation: int) -> RunBackups:
        state = {"best": best, "counters": [1, 0], "last_saved": [generation, 7]}
        store, position = begin(place), Position(kind, 1, 2 if kind == "within" else 0, 2)
        states = ({"callbacks/kdc.ModelCheckpoint(monitor=loss)": state},)
        commit(store, 1, TENSORS, position=position, states=states)
        return RunBackups.read(store)

    one = run(tmp_path / "a", 0.5, 1)
    assert first_difference(one, run(tmp_path / "b", 0.5, 2)) is None
    found = first_difference(one, run(tmp_path / "c", None, 1))
    assert (found is None) == (kind == "within")
    assert [state.path for state in (found.states if found else ())] == ["best"] * (kind == "end")


def test_a_process_that_has_traced_no_step_does_not_differ_by_that(tmp_path: Path) -> None:
    one = run(tmp_path / "a", state={"objects/traced": {"Own.rate": (3, "x")}})
    assert first_difference(one, run(tmp_path / "b")) is None


def test_a_missing_tensor_and_a_missing_topic_are_differences(tmp_path: Path) -> None:
    one = run(tmp_path / "a", {"variables/more@0": np.ones(2)}, {"callbacks/Own()": {"count": 1}})
    found = first_difference(one, run(tmp_path / "b"))
    assert found is not None
    assert (found.states[0].words, found.states[0].other) == ("callback Own", "nothing")
    second = list(gaps(one, run(tmp_path / "c")))[1]
    assert [t.name for t in second.tensors] == ["variables/more@0"]


def test_what_another_worker_has_of_its_own_is_compared_too(tmp_path: Path) -> None:
    def two_workers(place: Path, value: float) -> RunBackups:
        store = begin(place)
        own = {"variables/moving_mean@0": np.full(3, value)}
        tensors = [{"variables/moving_mean@0": np.zeros(3)}, own]
        commit(store, 1, tensors, states=({}, {"progress/logs": {"loss": value}}))
        return RunBackups.read(store)

    found = first_difference(two_workers(tmp_path / "a", 1.0), two_workers(tmp_path / "b", 2.0))
    assert found is not None
    assert [variable.name for variable in found.variables] == ["moving_mean (worker 1)"]
    assert [state.words for state in found.states] == ["logs of the epoch"]


def test_every_backup_of_a_position_is_compared_also_that_of_a_killed_process(tmp_path: Path) -> None:
    one, place = run(tmp_path / "one"), tmp_path / "other"
    store = begin(place)
    commit(store, 1, {**TENSORS, "variables/flag@0": np.array(False)}, position=Position("within", 1, 1, 1))
    store = begin(place)
    commit(store, 1, TENSORS, position=Position("within", 1, 1, 1))
    other = RunBackups.read(store)
    assert [manifest.id.generation for manifest in other.at(Position("within", 1, 1, 1))] == [1, 2]
    found = first_difference(one, other)
    assert found is not None
    assert [variable.name for variable in found.variables] == ["flag"]


def test_positions_that_one_run_lacks_are_named(tmp_path: Path) -> None:
    one, store = run(tmp_path / "one"), begin(tmp_path / "other")
    commit(store, 1, TENSORS, position=Position("within", 1, 1, 1))
    commit(store, 2, TENSORS, position=Position("end", 1, 0, 1))
    lacks = missing_positions(one, RunBackups.read(store))
    assert lacks == [
        "only the first run has saved at epoch 2, batch 2 (step 2)",
        "only the second run has saved at the end of epoch 1 (step 1)",
    ]


@pytest.mark.parametrize(
    ("state", "tensors", "is_about_training"),
    [
        ({"objects/changed": ({}, {"Own.start": (3, "x")})}, {}, False),
        ({"callbacks/Own()": ({"began": 1.0}, {"began": 2.0})}, {}, False),
        ({}, {"objects/description": np.frombuffer(b"[]", np.uint8)}, False),
        ({"progress/logs": CHANGED["progress/logs"]}, {}, True),
        ({"random/now": CHANGED["random/now"]}, {}, False),
        ({"callbacks/History()": CHANGED["callbacks/History()"]}, {}, True),
        ({}, {"variables/flag@0": np.array(False)}, True),
    ],
)
def test_what_objects_hold_is_told_from_numbers_of_training(
    tmp_path: Path, state: dict[str, Any], tensors: dict[str, Any], *, is_about_training: bool
) -> None:
    one = run(tmp_path / "a", state={topic: pair[0] for topic, pair in state.items()})
    other = run(tmp_path / "b", tensors, {topic: pair[1] for topic, pair in state.items()})
    found = list(gaps(one, other))
    assert found
    assert {gap.is_about_training for gap in found} == {is_about_training}
    assert list(gaps(one, other, {name for gap in found for name in gap.names})) == []


def test_the_states_of_these_tests_are_complete() -> None:
    assert {topic for topic in fit_state() if not topic.endswith(f"/{findings.FINDINGS}")} <= CHANGED.keys()

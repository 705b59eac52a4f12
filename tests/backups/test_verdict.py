"""The three answers, and what leads to each."""

from __future__ import annotations

from typing import Any

import pytest

from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.snapshot import Position, WorkerState

NOW = {"seed": 7, "replicas": 1, "workers": 1}
SEEN = {verdict.UNTRACKED_INPUT: {"python": [], "unordered": []}}


def saved(**state: Any) -> WorkerState:
    return WorkerState(Position("within", 1, 2, 7), {}, {**SEEN, **state}, NOW)


@pytest.mark.parametrize(
    ("reasons", "conditions", "answer"),
    [
        ([], [], "exact"),
        ([], ["a holds", "b holds"], "exact if a holds; and if b holds"),
        (["c"], [], "not exact (the warning names the reason)"),
        (["c"], ["a holds"], "not exact (the warning names the reason)"),
    ],
)
def test_there_are_three_answers(reasons: list[str], conditions: list[str], answer: str) -> None:
    assert verdict.answer(reasons, conditions) == answer
    assert answer.startswith(verdict.verdict_of(reasons, conditions))


def test_what_was_inspected_completely_is_exact() -> None:
    assert verdict.inexact_reasons(saved(), NOW) == []
    assert verdict.conditions(saved()) == []


def test_python_code_and_what_could_not_be_seen_are_conditions() -> None:
    state = saved(
        **{
            verdict.UNTRACKED_INPUT: {
                "python": ["the PyDataset Rows because reading a batch changes its state", "the PyDataset Rows"],
                "unordered": [],
            },
            verdict.CONDITIONS: ["x holds"],
        }
    )
    read_again, first, second = verdict.conditions(state)
    assert read_again == (
        "the PyDataset Rows gives the same batches when an interrupted epoch is read again: reading a batch changes "
        "its state (if this holds, wrap the input in kdc.advanced.stateless_input; otherwise give fit() an input with "
        "get_state and set_state, without steps_per_epoch or cache())"
    )
    assert first.startswith("the PyDataset Rows keeps no state")
    assert second == "x holds"


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("the PyDataset Rows", "shares no random state with callbacks"),
        ("the PyDataset Rows (read in parallel: workers=2)", "draws from no global random state"),
        ("a function in Dataset.map (called in parallel)", "draws from no global random state"),
        ("Dataset.from_generator before a cache()", "draws from no global random state"),
        ("the Grain dataset MapDataset", "draws from no global random state"),
        ("the Python generator", "draws from no global random state"),
    ],
)
def test_code_that_runs_in_parallel_must_draw_from_no_global_random_state(name: str, draws: str) -> None:
    (condition,) = verdict.conditions(saved(**{verdict.UNTRACKED_INPUT: {"python": [name], "unordered": []}}))
    assert f"keeps no state of its own, reads nothing that training changes, and {draws} (" in condition


def test_kernels_with_a_state_and_open_orders_are_reasons() -> None:
    state = saved(
        **{
            verdict.RANDOM_OPERATIONS: ["RandomUniform (dropout)"],
            verdict.UNTRACKED_INPUT: {"python": [], "unordered": ["two runs differ"]},
        }
    )
    first, second = verdict.inexact_reasons(state, NOW)
    assert "RandomUniform (dropout)" in first
    assert second == "two runs differ"


def test_many_random_operations_are_one_reason() -> None:
    state = saved(**{verdict.RANDOM_OPERATIONS: [f"RandomUniform (dropout_{number})" for number in range(7)]})
    (reason,) = verdict.inexact_reasons(state, NOW)
    assert "RandomUniform (dropout_3), and 3 more, whose state" in reason

"""State of Python code, wherever a script keeps it: really killed, resumed, and compared with the uninterrupted run.

Every place x kind is tried, every effect with each place and each kind; what is called exact must be, and all but a few
named combinations must be exact.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.exactness_objects import STATE_CASES
from tests.support.exactness_run import REFUSED, judged

CELLS = [(name, strategy) for name, case in STATE_CASES.items() for strategy in case.strategies]


def _parts(name: str) -> tuple[str, str]:
    kind, _, place = name.removeprefix("state: ").partition(" in ")
    if kind == "array":
        kind, _, place = "array in place", "", place.removeprefix("place in ")
    return kind, place.rpartition(", ")[0]


def _few_with_each_part() -> list[tuple[str, str]]:
    """Each place and each kind in a cell without a strategy, and a cell of each strategy."""
    shuffled = random.Random(0).sample(CELLS, len(CELLS))  # noqa: S311
    single = [cell for cell in shuffled if cell[1] == "default"]
    chosen: list[tuple[str, str]] = []
    kinds: set[str] = set()
    places: set[str] = set()
    for brings in (lambda kind, place: kind not in kinds and place not in places, lambda _, place: place not in places):
        for cell in single:
            kind, place = _parts(cell[0])
            if brings(kind, place):
                chosen.append(cell)
                kinds.add(kind)
                places.add(place)
    return chosen + [next(cell for cell in shuffled if cell[1] == name) for name in ("mirrored", "multi_worker")]


GATE = _few_with_each_part()
CAMPAIGN = [cell for cell in CELLS if cell not in GATE]
NOT_STORABLE = tuple(f"state: {kind} in " for kind in ("generator", "iterator", "counter"))
MOVED = tuple(f"state: {kind} in nested container" for kind in ("user object", "object with slots"))
"""Objects that training puts elsewhere, while another value takes their place: they cannot be made again."""
COPIED = ("state: set in model", "state: set in layer")
"""Keras copies a set that is assigned to these, here in each step: its order after the next items cannot be saved."""


def check(tmp_path: Path, name: str, strategy: str) -> None:
    outcome = judged(tmp_path, name, strategy)
    assert outcome.verdict != REFUSED, outcome.said
    assert not outcome.problems(STATE_CASES[name])
    assert outcome.verdict == "exact" or name.startswith((*NOT_STORABLE, *MOVED, *COPIED)), outcome.said


def test_the_gate_has_each_place_and_each_kind() -> None:
    for part in (0, 1):
        assert {_parts(name)[part] for name, _ in GATE} == {_parts(name)[part] for name, _ in CELLS}
    assert {strategy for _, strategy in GATE} == {"default", "mirrored", "multi_worker"}


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "strategy"), GATE)
def test_state_is_restored_or_the_resume_says_what_is_not(tmp_path: Path, name: str, strategy: str) -> None:
    check(tmp_path, name, strategy)


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "strategy"), CAMPAIGN)
def test_all_state_is_restored_or_the_resume_says_what_is_not(tmp_path: Path, name: str, strategy: str) -> None:
    check(tmp_path, name, strategy)

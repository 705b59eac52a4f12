"""State of Python code, wherever a script keeps it: really killed, resumed, and compared with the uninterrupted run.

Every place x kind x effect is tried; what is called exact must be, and all but a few named combinations must be exact.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.exactness_run import REFUSED, killed_and_resumed, uninterrupted
from tests.support.exactness_state import STATE_CASES

IN_THE_GATE = 60
SEED = 0
CELLS = [(name, strategy) for name, case in STATE_CASES.items() for strategy in case.strategies]
GATE = random.Random(SEED).sample(CELLS, IN_THE_GATE)  # noqa: S311
CAMPAIGN = [cell for cell in CELLS if cell not in GATE]
NOT_STORABLE = ("state: generator in ",)
MOVED = tuple(f"state: {kind} in nested container" for kind in ("user object", "object with slots", "iterator"))
"""Objects that training puts elsewhere, while another value takes their place: they cannot be made again."""
COPIED = ("state: set in model", "state: set in layer")
"""Keras copies a set that is assigned to these, here in each step: its order after the next items cannot be saved."""


def check(tmp_path: Path, name: str, strategy: str) -> None:
    reference = uninterrupted(tmp_path / "reference", name, strategy)
    outcome = killed_and_resumed(tmp_path / "resumed", reference, name, strategy)
    assert outcome.verdict != REFUSED, outcome.said
    if outcome.verdict == "exact":
        assert outcome.identical, outcome.differences
    else:
        assert name.startswith((*NOT_STORABLE, *MOVED, *COPIED)), outcome.said


def test_the_gate_has_each_place_and_each_kind() -> None:
    assert len(GATE) == IN_THE_GATE
    for part in (0, 1):
        assert {_parts(name)[part] for name, _ in GATE} == {_parts(name)[part] for name, _ in CELLS}
    assert {strategy for _, strategy in GATE} == {"default", "mirrored", "multi_worker"}


def _parts(name: str) -> tuple[str, str]:
    kind, _, place = name.removeprefix("state: ").partition(" in ")
    if kind == "array":
        kind, _, place = "array in place", "", place.removeprefix("place in ")
    return kind, place.rpartition(", ")[0]


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

"""Programs that people use next to `model.fit`: killed and resumed, a training reports truly how it continued."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.program_cases import PROGRAMS
from tests.support.programs import measured, missing

pytestmark = [pytest.mark.kill, pytest.mark.slow]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.chaos] if "GridSearchCV" in name else []) for name in PROGRAMS]
)
def test_a_training_with_another_program_tells_truly_how_it_continues(tmp_path: Path, name: str) -> None:
    program = PROGRAMS[name]
    if package := missing(name):
        pytest.skip(f"{package} is not installed")
    found = measured(name, tmp_path)
    assert found.uninterrupted == [], "it is another training with a backup than without"
    assert found.answer == program.answer, found.said
    assert re.search(program.says, found.said), found.said
    assert (not found.differences) == program.identical, found.differences

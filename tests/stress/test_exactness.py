"""What a resume says of itself, case by case: real jobs, killed with SIGKILL, mostly in their second epoch.

Whatever is called exact ends as the same job without any callback of this package, which no one killed, bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.exactness_cases import CASES, CELLS
from tests.support.exactness_run import killed_and_resumed, uninterrupted

DEFAULT = {
    "augmentation in a map",
    "augmentation in a parallel map",
    "callback with a counter",
    "numpy.random in a PyDataset",
    "tf.random in a layer",
    "changed: number of rows",
}


def check(tmp_path: Path, name: str, strategy: str, *, preload: bool) -> None:
    reference = uninterrupted(tmp_path / "reference", name, strategy, preload=preload)
    outcome = killed_and_resumed(tmp_path / "resumed", reference, name, strategy, preload=preload)
    problems = outcome.problems(name)
    assert not problems, "\n".join([*problems, "what was said:", outcome.said])


def test_the_cases_of_the_gate_exist_and_say_what_they_expect() -> None:
    assert set(CASES) >= DEFAULT
    assert all(case.says for case in CASES.values() if case.expected != "exact")


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(DEFAULT))
def test_a_resume_says_whether_it_is_exact(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, "default", preload=True)


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(300)
def test_replicas_get_orders_again_that_are_drawn_in_the_course_of_a_pass(tmp_path: Path) -> None:
    check(tmp_path, "a shuffled part behind another", "mirrored", preload=True)


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "strategy"), CELLS)
def test_every_resume_says_whether_it_is_exact(tmp_path: Path, name: str, strategy: str) -> None:
    check(tmp_path, name, strategy, preload=True)

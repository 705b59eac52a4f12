"""What a resume says of itself, case by case: real jobs, killed with SIGKILL, mostly in their second epoch.

Whatever is called exact ends as the same job without any callback of this package, which no one killed, bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.exactness_models import Case
from tests.support.exactness_run import CASES, CELLS, judged

DEFAULT = {
    "augmentation in a map",
    "augmentation in a parallel map",
    "callback with a counter",
    "numpy.random in a PyDataset",
    "tf.random in a layer",
    "changed: number of rows",
}


def check(tmp_path: Path, name: str, strategy: str) -> None:
    outcome = judged(tmp_path, name, strategy)
    problems = outcome.problems(CASES[name])
    assert not problems, "\n".join([*problems, "what was said:", outcome.said])


def test_the_cases_of_the_gate_exist_and_say_what_they_expect() -> None:
    assert set(CASES) >= DEFAULT
    with pytest.raises(ValueError, match="nothing says why"):
        Case("not exact")


@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(DEFAULT))
def test_a_resume_says_whether_it_is_exact(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, "default")


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(300)
def test_replicas_get_orders_again_that_are_drawn_in_the_course_of_a_pass(tmp_path: Path) -> None:
    check(tmp_path, "a shuffled part behind another", "mirrored")


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "strategy"), CELLS)
def test_every_resume_says_whether_it_is_exact(tmp_path: Path, name: str, strategy: str) -> None:
    check(tmp_path, name, strategy)

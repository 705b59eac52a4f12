"""Whatever a resume of a training is called that no one thought of: if it is exact, it ends as if nothing had been.

Pipeline, model, callbacks, validation data and kills are drawn from a seed; nothing is expected of the verdict itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.exactness_generated import PREFIX, generated
from tests.support.exactness_run import UntrainableError, judged

SEEDS = range(60)


@pytest.mark.chaos
@pytest.mark.kill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_called_exact_is(tmp_path: Path, seed: int) -> None:
    case = generated(seed)
    try:
        outcome = judged(tmp_path, f"{PREFIX}{seed}", case.strategies[0])
    except UntrainableError as error:
        pytest.skip(str(error).partition("\n")[0])
    problems = outcome.problems(case)
    assert not problems, "\n".join([*problems, str(case), "what was said:", outcome.said])


def test_a_seed_means_the_same_again() -> None:
    assert [str(generated(seed)) for seed in SEEDS] == [str(generated(seed)) for seed in SEEDS]

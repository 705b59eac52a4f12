"""What made it another model is reported under every strategy, on every worker."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import worker_processes
from tests.support.refused_models import CHANGES, FIXES

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("strategy", "workers"), [("mirrored", 1), ("multi_worker", 2)])
def test_refusals_and_a_model_that_is_compiled_again_under_strategies(
    tmp_path: Path, strategy: str, workers: int
) -> None:
    arguments = [strategy, str(tmp_path / "backups"), str(tmp_path / "told")]
    with worker_processes(
        [sys.executable, "-m", "tests.support.refusal_job", *arguments], workers, tmp_path / "logs"
    ) as cluster:
        cluster.start()
        assert cluster.wait(240.0) == [0] * workers, cluster.tails()
    for worker in range(workers):
        told = json.loads((tmp_path / f"told{worker}").read_text())
        assert len(told["notes"]) == (2 if strategy == "multi_worker" else 0)
        assert all(any("compile() was called during fit()" in note for note in notes) for notes in told["notes"])
        for said, (_, _, what) in zip(told["refusals"], CHANGES, strict=True):
            assert re.search(f"{what}; {FIXES}", said), said

"""Every kind of input under strategies of two replicas: exact after a resume, or labelled with the reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.inputs import INPUTS
from tests.support.processes import worker_processes


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("strategy", "workers"), [("mirrored", 1), ("multi_worker", 2)])
def test_each_input_is_exact_or_labelled(tmp_path: Path, strategy: str, workers: int) -> None:
    command = [sys.executable, "-m", "tests.support.probe_inputs", strategy]
    with worker_processes(command, workers, tmp_path) as cluster:
        cluster.start()
        assert not any(cluster.wait(2300)), cluster.tails()
        (line,) = (text for text in cluster.log(0).splitlines() if text.startswith("RESULTS "))
    results = json.loads(line.removeprefix("RESULTS "))
    assert set(results) == set(INPUTS)
    silent = {
        name: result
        for name, result in results.items()
        if not result.startswith(("exact", "differs; ", "not reproducible"))
    }
    assert silent == {}

"""A backup made under one number of workers or replicas continues under another, and says that it is not exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keras_dist_callbacks.state.variables import redistribute
from tests.stress.test_kill_matrix import MID_EPOCH, STRATEGIES, WORKLOAD
from tests.support.processes import worker_processes


def values(*numbers: float, dtype: str = "float32") -> list[np.ndarray]:
    return [np.array([n], dtype) for n in numbers]


@pytest.mark.parametrize(
    ("saved", "aggregation", "count", "expected"),
    [
        (values(1, 2), "sum", 2, [1, 2]),
        (values(5, 5), "none", 3, [5, 5, 5]),
        (values(5, 5), "sum", 1, [10]),
        (values(3, 5), "sum", 1, [8]),
        (values(3, 5), "sum", 3, [8, 0, 0]),
        (values(8), "sum", 2, [8, 0]),
        (values(0, 0), "sum", 3, [0, 0, 0]),
        (values(1, 2), "mean", 3, [1.5, 1.5, 1.5]),
        (values(1, 2), "none", 1, [1.5]),
        (values(1, 2, dtype="uint32"), "none", 1, [1]),
        (values(1, 2), "only_first_replica", 3, [1, 1, 1]),
        (values(np.nan, np.nan), "none", 1, [np.nan]),
    ],
)
def test_components_are_merged_by_their_aggregation(
    saved: list[np.ndarray], aggregation: str, count: int, expected: list[float]
) -> None:
    found = redistribute(saved, aggregation, count)
    np.testing.assert_array_equal([float(v[0]) for v in found], expected)
    assert {v.dtype for v in found} == {saved[0].dtype}


def run(directory: Path, strategy: str, name: str, *arguments: str, killed: bool = False) -> str:
    kind, workers = STRATEGIES[strategy]
    command = [*WORKLOAD, "--strategy", kind, "--source", "shuffled", "--backup-dir", str(directory / "backup")]
    command += ["--keep-backup", "--save-freq", "1", "--record", str(directory / name), *arguments]
    with worker_processes(command, workers, directory / f"logs-{name}", grace=3.0) as cluster:
        cluster.start(["--kill", MID_EPOCH] if killed else [])
        codes = cluster.wait(200)
        assert (codes[0] == -9) if killed else not any(codes), cluster.tails()
        return cluster.log(0)


def recorded(path: Path) -> dict[str, np.ndarray]:
    with np.load(f"{path}-worker0.npz") as file:
        return {name: file[name] for name in file.files}


PAIRS = [(a, b) for a in STRATEGIES for b in STRATEGIES if a != b]
SOME = [("multi-worker-2", "default"), ("mirrored-2", "multi-worker-2")]


@pytest.mark.in_gate(1)
@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("before", "after"), [pytest.param(*p, marks=[] if p in SOME else pytest.mark.chaos) for p in PAIRS]
)
def test_mirrored_state_moves_exactly_and_training_continues(tmp_path: Path, before: str, after: str) -> None:
    run(tmp_path, before, "first", "--epochs", "1")
    run(tmp_path, after, "moved", "--epochs", "1")
    ours, theirs = recorded(tmp_path / "moved"), recorded(tmp_path / "first")
    mirrored = [
        n for n in theirs if n.endswith("@0") and any(k in n for k in ("kernel", "bias", "gamma", "beta", "adam/"))
    ]
    assert len(mirrored) > 10
    for name in mirrored:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    run(tmp_path, before, "killed", "--epochs", "3", killed=True)
    log = run(tmp_path, after, "last", "--epochs", "3")
    assert "RESTORED" in log
    assert "the strategy changed" in log or "the number of workers changed" in log
    assert "finished" in log

"""`make gpu`: the cases that apply, what its table says, and on CPU devices that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import Case, Devices, Row

NONE, ONE, FOUR = (Devices(("H100",) * count, "2.21, cuda 12.5") for count in (0, 1, 4))
CASE = Case("multi worker", determinism=True, mixed=False)


@pytest.mark.parametrize(
    ("devices", "strategies"),
    [(NONE, {*gpu.STRATEGIES}), (ONE, {"one device", "multi worker"}), (FOUR, {*gpu.STRATEGIES})],
)
def test_one_gpu_alone_is_not_mirrored(devices: Devices, strategies: set[str]) -> None:
    found = gpu.cases(devices, gpu.STRATEGIES)
    assert {case.strategy for case in found} == strategies
    assert len(found) == len(set(found)) == 4 * len(strategies)


def test_workers_see_the_gpus_that_the_user_has_left_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert NONE.environment() == {}
    assert FOUR.environment()["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert FOUR.environment()["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"


@pytest.mark.parametrize(
    ("row", "end", "is_wrong"),
    [
        (Row(CASE, verdict="exact"), "| exact | bit-identical |", False),
        (Row(CASE, verdict="exact", differences=("x", "y")), "| exact | 2 differences |", True),
        (Row(CASE, verdict="not exact", reasons=("sums",), differences=("x",)), "| not exact | 1 differences |", False),
        (Row(CASE, verdict="not exact", reasons=("sums",)), "| not exact | bit-identical |", False),
        (Row(CASE, failure="the workers ended with [1]"), "| - | failed |", True),
    ],
)
def test_only_a_promise_that_did_not_come_true_is_wrong(row: Row, end: str, is_wrong: bool) -> None:
    assert row.is_wrong is is_wrong
    page = gpu.page([row], FOUR, {"Processor": "X"})
    (line,) = (line for line in page.splitlines() if line.startswith("| multi worker (2 workers) |"))
    assert line.endswith(end)
    assert (row.failure or "".join(row.differences[:1])) in page
    assert all(f"- {row.verdict}: {reason}" in page for reason in row.reasons)


def test_figures_of_cpu_devices_are_not_called_those_of_gpus() -> None:
    row = Row(CASE, 2, 1.25, 2_000_000_000, 1_900_000_000, "exact")
    assert "| 2 | yes | no | 1.2 | 2,000 | 1,900 | exact |" in gpu.page([row], FOUR, {})
    assert "no figures of GPUs" not in gpu.page([row], FOUR, {})
    assert "GPUs: 0, none. Logical CPU devices took their place: these are no figures of GPUs." in gpu.page(
        [row], NONE, {}
    )


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.kill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", gpu.STRATEGIES)
def test_each_strategy_is_killed_and_resumes_bit_identical(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: str
) -> None:
    assert gpu.main(["--strategy", strategy, "--out", str(tmp_path / "gpu.md")]) == 0
    written = (tmp_path / "gpu.md").read_text()
    assert written in capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")] for line in written.splitlines() if f"| {strategy}" in line]
    assert len(rows) == 4
    for row in rows:
        assert row[3] in ("yes", "no")
        if row[3] == "yes":  # op determinism
            assert row[-3:-1] == ["exact", "bit-identical"]

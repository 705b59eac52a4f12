"""The benchmarks run, and their report says what was measured; small sizes, no verdict on speed."""

from __future__ import annotations

from pathlib import Path

import pytest

import keras_dist_callbacks as kdc
from benchmarks import pictures
from benchmarks.__main__ import main
from benchmarks.estimates import median, number, ratio


@pytest.mark.process
def test_a_table_is_measured_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    scratch.mkdir()
    arguments = ["--quick", "--only", "frozen", "--sizes", "1", "--out", str(out), "--scratch", str(scratch)]
    assert main(arguments) == 0
    report = (out / "RESULTS.md").read_text()
    assert "NOT met" in report  # Adam's slots change with the head: the report does not hide it
    assert "quick run" in report
    assert str(tmp_path) not in report
    assert not list(scratch.iterdir())
    (out / "RESULTS.md").unlink()
    assert main(["--report", "--out", str(out)]) == 0
    assert (out / "RESULTS.md").read_text() == report
    assert "Frozen backbone" in capsys.readouterr().out


@pytest.mark.in_gate(1)
@pytest.mark.process
@pytest.mark.parametrize("table", ["write", "all_in", "thread", "dispatch"])  # the others need Orbax
def test_each_table_is_measured(tmp_path: Path, table: str) -> None:
    assert main(["--quick", "--only", table, "--sizes", "2", "--out", str(tmp_path), "--scratch", str(tmp_path)]) == 0


def test_estimates() -> None:
    values = [1.0, 2.0, 3.0, 100.0]
    found = median(values)
    assert (found.value, found.n) == (2.5, 4)
    assert found.low <= found.value <= found.high
    compared = ratio(values, [2 * v for v in values])
    assert (compared.value, compared.low, compared.high) == (0.5, 0.5, 0.5)
    assert [number(v) for v in (1234.5, 12.34, 1.234, 0.01234, -1e-9)] == ["1234", "12.3", "1.23", "0.012", "0.000"]


@pytest.mark.process
def test_a_command_and_its_output_are_drawn_without_a_font_of_another_host(tmp_path: Path) -> None:
    pictures.terminal(tmp_path / "kdc.svg", tmp_path, 60, ["--version"])
    drawn = (tmp_path / "kdc.svg").read_text().replace("&#160;", " ")
    assert ">$ kdc --version<" in drawn
    assert f">keras_dist_callbacks {kdc.__version__}" in drawn
    assert "@font-face" not in drawn


def test_the_costs_are_drawn_from_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(pictures, "DOCS", tmp_path)
    pictures.costs()
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")

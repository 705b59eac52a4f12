"""`python -m benchmarks`: measures, prints, and writes RESULTS.md, the raw values and a plot."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import machine, processes
from benchmarks.config import HERE, Config, Outcome
from benchmarks.report import RESULTS, write_report

_TABLES = ("blocking", "all_in", "thread", "small", "restore", "dispatch", "write", "frozen", "memory")
_WIDTH = 190
_QUICK_OUT = HERE.parent / "runs" / "benchmarks-quick"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for.

    Returns:
        0 if everything was measured, 1 if a measurement failed. Bounds that are not met are in the report.
    """
    asked = _parse(arguments)
    out: Path = asked.out or (_QUICK_OUT if asked.quick else HERE)
    config = Config(asked.sizes, asked.repeats, asked.quick, asked.seed, asked.scratch)
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    failures: list[str] = []
    if not asked.report:
        for name in asked.only or _TABLES:
            failures += _measure(name, config, out, console)
    write_report(out, console)
    for failure in failures:
        console.print(failure, style="bold red", markup=False, highlight=False)
    return 1 if failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What backups cost, next to others'.")
    parser.add_argument("--only", action="append", choices=_TABLES, metavar="TABLE", help=", ".join(_TABLES))
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds: shows that everything runs")
    parser.add_argument("--sizes", type=_sizes, help="sizes of the state in MB, such as 10,100")
    parser.add_argument("--repeats", type=int, help="rounds of each table")
    parser.add_argument("--seed", type=int, default=0, help="for the order of blocks")
    parser.add_argument("--out", type=Path, help="where results go; default: this package, or runs/ with --quick")
    parser.add_argument("--scratch", type=Path, help="where saves go; default: the directory for temporary files")
    parser.add_argument("--report", action="store_true", help="measure nothing: write the report from stored results")
    return parser.parse_args(arguments)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted(int(part) for part in text.split(",")))


def _measure(name: str, config: Config, out: Path, console: Console) -> list[str]:
    """Measures all cases of a table in turn, each in its own process; returns what failed."""
    outcomes: list[Outcome] = []
    failures = []
    for case in processes.cases(name, config):
        began = time.monotonic()
        try:
            outcomes.append(processes.run(name, case, config.scratch))
            ended = ""
        except processes.MeasurementError as error:
            failures.append(f"{name} {json.dumps(case)}: {error}")
            console.print(error.last_lines, style="red", markup=False, highlight=False)
            ended = " FAILED"
        console.print(
            f"{name} {json.dumps(case)}: {time.monotonic() - began:.0f} s{ended}",
            style="dim",
            markup=False,
            highlight=False,
        )
    scratch = config.scratch or Path(tempfile.gettempdir())
    stored = {"machine": machine.describe(scratch), "quick": config.quick, "failures": failures, "outcomes": outcomes}
    target = out / RESULTS / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_compact(stored))
    return failures


def _compact(stored: object) -> str:
    """JSON with a line per entry of the upper levels, so that a re-run shows as a small difference."""
    text = json.dumps(stored, separators=(",", ":"))
    return text.replace("},{", "},\n{").replace('"outcomes":', '\n"outcomes":\n') + "\n"


if __name__ == "__main__":
    sys.exit(main())

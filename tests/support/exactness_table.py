"""Prints the table of resumes: `python -m tests.support.exactness_table [--strategy S] [--twice] [PATTERN ...]`.

Of the cases whose names match any of the patterns, or of all. It never stops at one that fails.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from keras_dist_callbacks.testing import compare_runs
from tests.support.exactness_cases import CASES, CELLS
from tests.support.exactness_run import WORKERS, Outcome, killed_and_resumed, uninterrupted

SHOWN = 100
HEAD = ("case", "strategy", "identical?", "verdict said", "what was said", "expected", "OK?")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=[""], metavar="PATTERN", help="regular expression")
    parser.add_argument("--strategy", choices=WORKERS, action="append", help="only under this one")
    parser.add_argument("--part", default="1/1", help="of all rows, i/n takes each nth one from the ith on")
    parser.add_argument("--twice", action="store_true", help="compare two uninterrupted runs too")
    parser.add_argument("--fresh", action="store_true", help="processes that are not forked from a template")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs, backups and recordings below it")
    parser.add_argument("--list", action="store_true", help="only name the cases")
    return parser.parse_args(argv)


def chosen(args: argparse.Namespace) -> list[tuple[str, str]]:
    found = [
        (name, strategy)
        for name, strategy in CELLS
        if any(re.search(pattern, name) for pattern in args.patterns)
        and (not args.strategy or strategy in args.strategy)
    ]
    part, parts = map(int, args.part.split("/"))
    return found[part - 1 :: parts]


def measure(directory: Path, name: str, strategy: str, *, twice: bool, preload: bool) -> tuple[str, ...]:
    """One row of the table."""
    expected = CASES[name].expected
    shutil.rmtree(directory, ignore_errors=True)  # what was kept of an earlier time: a backup in it would be resumed
    try:
        reference = uninterrupted(directory / "reference", name, strategy, preload=preload)
        again = uninterrupted(directory / "again", name, strategy, preload=preload) if twice else None
        outcome = killed_and_resumed(directory / "resumed", reference, name, strategy, preload=preload)
        problems = outcome.problems(name)
        if again is not None and any(
            compare_runs(f"{reference}-worker{i}", f"{again}-worker{i}") for i in range(WORKERS[strategy])
        ):
            problems.insert(0, "TWO UNDISTURBED RUNS DIFFER")
    except Exception as error:  # noqa: BLE001 - of any kind: the other cases matter
        lines = [line for line in str(error).splitlines() if re.match(r"\S*(Error|Exception)\b", line)]
        return name, strategy, "-", "-", f"{type(error).__name__}: {(lines or [str(error)])[-1]}", expected, "NO RUN"
    return name, strategy, _identical(outcome), outcome.verdict, outcome.said, expected, "; ".join(problems) or "ok"


def _identical(outcome: Outcome) -> str:
    return "-" if outcome.differences is None else "yes" if outcome.identical else "NO"


def as_row(cells: Sequence[str]) -> str:
    shown = [" ".join(cell.split()).replace("|", "/") for cell in cells]
    return "| " + " | ".join([*shown[:4], shown[4][:SHOWN], *shown[5:]]) + " |"


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.list:
        print("\n".join(f"{name} [{strategy}]" for name, strategy in chosen(args)))
        return
    print(as_row(HEAD), as_row(["---"] * len(HEAD)), sep="\n", flush=True)
    good = total = 0
    for name, strategy in chosen(args):
        with tempfile.TemporaryDirectory(prefix="kdc-exactness-") as temporary:
            directory = args.keep / f"{re.sub('[^a-z0-9]+', '-', name.lower())}-{strategy}" if args.keep else temporary
            row = measure(Path(directory), name, strategy, twice=args.twice, preload=not args.fresh)
        total, good = total + 1, good + (row[-1] == "ok")
        print(as_row(row), flush=True)
    print(f"\n{good} of {total} as expected", flush=True)


if __name__ == "__main__":
    main()

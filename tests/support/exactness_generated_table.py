"""Prints what came of generated cases: `python -m tests.support.exactness_generated_table --seeds 0:100`."""

from __future__ import annotations

import argparse
import collections
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.exactness_generated import generated
from tests.support.exactness_generated_run import Judged, judge
from tests.support.exactness_run import WORKERS, JobError

SHOWN = 220


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, or some with commas between them")
    parser.add_argument("--strategy", choices=[s for s in WORKERS if WORKERS[s] == 1], help="instead of each one's own")
    parser.add_argument("--fresh", action="store_true", help="processes that are not forked from a template")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs, backups and recordings below it")
    parser.add_argument("--list", action="store_true", help="only say what the cases are")
    return parser.parse_args(argv)


def chosen(text: str) -> list[int]:
    if ":" in text:
        first, end = map(int, text.split(":"))
        return list(range(first, end))
    return [int(part) for part in text.split(",")]


def measure(seed: int, args: argparse.Namespace) -> tuple[str, str]:
    """What the totals count it as, and its line."""
    with tempfile.TemporaryDirectory(prefix="kdc-generated-") as temporary:
        try:
            found = judge(
                Path(args.keep / str(seed) if args.keep else temporary), seed, args.strategy, preload=not args.fresh
            )
        except JobError as error:
            return "no run", f"NO RUN: {str(error).splitlines()[0][:SHOWN]}"
    return _kind(found), _line(found)


def _kind(found: Judged) -> str:
    if found.verdict in ("refused", "error"):
        return found.verdict
    same = "identical" if found.identical else "differs"
    return f"{found.verdict} & {same}" + ("" if found.reproducible else ", as two uninterrupted runs do")


def _line(found: Judged) -> str:
    mark = "FAILED " if found.problem else ""
    differs = f" | {found.differences[0]}" if found.differences else ""
    return f"{mark}{_kind(found).upper()}{differs[:SHOWN]} | {' '.join(found.said.split())[:SHOWN]}"


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    totals: collections.Counter[str] = collections.Counter()
    for seed in chosen(args.seeds):
        print(f"{seed}: {generated(seed)}", flush=True)
        if args.list:
            continue
        began = time.monotonic()
        kind, line = measure(seed, args)
        totals[kind] += 1
        print(f"    {line} ({time.monotonic() - began:.1f} s)", flush=True)
    print("\n".join(f"{count:5} {kind}" for kind, count in sorted(totals.items())), flush=True)


if __name__ == "__main__":
    main()

"""Prints how well scripts resume as they are published: `python -m tests.support.published CHECKOUT [PATTERN ...]`.

Such as the guides and examples of keras.io. Each runs without this package, then with `BackupAndRestore` in each
`fit()`, killed with SIGKILL at two places in a row, and resumed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_dist_callbacks.testing import compare_runs

_VERDICT = re.compile(
    r"(?:Resumed from|a later one saved) \S+ \S+ at .*?\): ((?:exact|not exact).*)"
    r"|(the resume is not exact:(?: .*|(?:\n- .*)+))"
)
_SECONDS = 600.0
_TOO_LONG = f"it takes more than {_SECONDS:.0f} s"


def run(script: Path, directory: Path, name: str, *arguments: str) -> tuple[int, str]:
    """A run's exit code and what it printed."""
    job = [sys.executable, "-m", "tests.support.published_job", str(script), str(directory / f"{name}-files")]
    try:
        done = subprocess.run(
            [*job, str(directory / name), *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, _TOO_LONG
    return done.returncode, done.stdout + done.stderr


def row(script: Path, directory: Path) -> tuple[str, str, str]:
    """Whether it ended identically, the verdicts, and what else there is to say."""
    end, log = run(script, directory, "reference", "none", "1000000")
    batches, fits = map(int, (re.findall(r"BATCHES (\d+) IN (\d+) FITS", log) or [("0", "0")])[-1])
    ended = [number for number in range(fits) if (directory / f"reference-{number}.npz").exists()]
    if not ended:
        return "-", "-", _why_not(log, fits)
    until = f"until {_why_not(log, fits)}" if end else ""  # what the script does by itself
    verdicts: list[str] = []
    for place in (batches // 3, batches // 3):
        code, log = run(script, directory, "resumed", "backup", str(max(place, 1)))
        verdicts += _verdicts(log)
        if code != -9:
            return "NO", "; ".join(verdicts), f"it was not killed but ended with {code}: {_last_line(log)}"
    code, log = run(script, directory, "resumed", "backup")
    verdicts += _verdicts(log)
    if code != end:
        return "NO", "; ".join(verdicts), _last_line(log)
    found = [
        f"fit {number}: {line}"
        for number in ended
        for line in compare_runs(directory / f"reference-{number}", directory / f"resumed-{number}")[:2]
    ]
    shown = "; ".join(dict.fromkeys(verdicts)) or "nothing was restored"
    return ("NO", shown, " ".join(found)[:300]) if found else ("yes", shown, until)


def _verdicts(log: str) -> list[str]:
    return [first or "; ".join(second.splitlines()) for first, second in _VERDICT.findall(log)]


def _why_not(log: str, fits: int) -> str:
    if "NEEDS A DOWNLOAD" in log:
        return "it needs a download"
    if _TOO_LONG in log:
        return log
    found = re.findall(r"AFTER \d+ FITS: .*", log)
    return found[-1][:300] if found else "it calls no fit()" if not fits else _last_line(log)


def _last_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("BATCHES")]
    return lines[-1][:300] if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="a folder with scripts")
    parser.add_argument("patterns", nargs="*", default=[""], metavar="PATTERN", help="regular expression of paths")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep backups and recordings below it")
    args = parser.parse_args()
    print("| script | identical? | verdicts | |\n|---|---|---|---|", flush=True)
    for script in sorted(args.checkout.rglob("*.py")):
        name = str(script.relative_to(args.checkout))
        if any(re.search(pattern, name) for pattern in args.patterns):
            with tempfile.TemporaryDirectory(prefix="kdc-published-") as temporary:
                place = args.keep.resolve() / name if args.keep else Path(temporary)
                place.mkdir(parents=True, exist_ok=True)
                print(f"| {name} | {' | '.join(row(script, place))} |", flush=True)


if __name__ == "__main__":
    main()

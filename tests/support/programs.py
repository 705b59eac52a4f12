"""Prints how well trainings with programs of others resume: `python -m tests.support.programs [PATTERN ...]`."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from keras_dist_callbacks.testing import compare_runs, run_until_done
from tests.support.processes import worker_processes
from tests.support.program_case import REFUSED
from tests.support.program_cases import PROGRAMS

_REFUSAL = re.compile(r"BackupMismatchError: (.*)")
_ANSWER = re.compile(r"Resumed from \S+ \S+ at .*?\): ((exact|not exact).*)")


@dataclass(frozen=True)
class Outcome:
    """What came of a training that was killed and resumed.

    Attributes:
        answer: "exact", "exact if" or "not exact"; `REFUSED` if the resume was an error.
        said: The line of the resume or the error, and the warnings of both runs.
        uninterrupted: How a run with a backup that nothing happened to differs from one without any callback of ours.
        differences: How the resumed run differs from the same.
    """

    answer: str
    said: str
    uninterrupted: list[str]
    differences: list[str]


def missing(name: str) -> str:
    """The package that a case needs and that is not there, or nothing."""
    program = PROGRAMS[name]
    return "" if importlib.util.find_spec(program.module) else program.distribution


def measured(name: str, directory: Path) -> Outcome:
    """Runs a case without our callback, with it, and killed and resumed."""
    runs = {"reference": [["none"]], "uninterrupted": [["backup"]]}
    runs["killed"] = [["backup", str(PROGRAMS[name].killed_behind)], ["backup"]]
    logs = {run: _run(name, directory, run, attempts) for run, attempts in runs.items()}
    refusal = _REFUSAL.search(logs["killed"])
    if refusal is not None:
        same = compare_runs(directory / "reference", directory / "uninterrupted")
        return Outcome(REFUSED, refusal[1], same, ["it was refused"])
    answer, said = _answer(logs["killed"])
    warned = re.findall(r"the resume is not exact:(?: .*|(?:\n- .*)+)", logs["killed"])
    found = [compare_runs(directory / "reference", directory / run) for run in ("uninterrupted", "killed")]
    return Outcome(answer, "\n".join([said, *dict.fromkeys(warned)]), *found)


def _run(name: str, directory: Path, run: str, attempts: list[list[str]]) -> str:
    place = [str(directory / f"{run}-files"), str(directory / run)]
    command = [sys.executable, "-m", "tests.support.program_job", name, *place]
    with worker_processes(command, 1, directory / f"{run}-logs") as cluster:
        done = run_until_done(cluster, len(attempts) - 1, 300.0 * len(attempts), extra_args=attempts)
        log = "\n".join(cluster.log(0, number) for number in range(len(done)))
    codes = [attempt.returncodes[0] for attempt in done]
    end = int(run == "killed" and PROGRAMS[name].answer == REFUSED)
    if codes != [*[-9] * (len(attempts) - 1), end]:
        raise AssertionError(f"{name}, {run}: the processes ended with {codes}\n{log[-3000:]}")
    return log


def _answer(log: str) -> tuple[str, str]:
    found = _ANSWER.findall(log)
    if len(found) != 1:
        raise AssertionError(f"restored {len(found)} times\n{log[-3000:]}")
    said = found[0][0]
    return next(answer for answer in ("exact if", "not exact", "exact") if said.startswith(answer)), said


def version(name: str) -> str:
    return importlib.metadata.version(PROGRAMS[name].distribution)


def row(name: str, keep: Path | None) -> str:
    if missing(name):
        return f"| {name} | - | {missing(name)} is not installed | | |"
    with tempfile.TemporaryDirectory(prefix="kdc-program-") as temporary:
        place = keep.resolve() / re.sub("[^a-z0-9]+", "-", name.lower()) if keep else Path(temporary)
        try:
            found = measured(name, place)
        except AssertionError as error:
            return f"| {name} | {version(name)} | no run | | {' '.join(str(error).split())[-1500:]} |"
    same = ["yes" if not differences else f"NO ({differences[0]})" for differences in _both(found)]
    return f"| {name} | {version(name)} | {found.answer} | {same[1]} (uninterrupted: {same[0]}) | {found.said} |"


def _both(found: Outcome) -> tuple[list[str], list[str]]:
    return found.uninterrupted, found.differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=[""], metavar="PATTERN", help="regular expression")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs, backups and recordings below it")
    args = parser.parse_args()
    print("| program | version | answer | identical? | what was said |\n|---|---|---|---|---|", flush=True)
    for name in PROGRAMS:
        if any(re.search(pattern, name) for pattern in args.patterns):
            print(row(name, args.keep), flush=True)


if __name__ == "__main__":
    main()

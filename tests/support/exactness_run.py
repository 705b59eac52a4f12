"""Trains the cases of the table of resumes, kills and resumes them, and prints what came of it.

`python -m tests.support.exactness_run table [--strategy S] [--seeds 0:100] [PATTERN ...]` prints a row for each case
whose name matches any of the patterns, or for the generated ones of these seeds; it never stops at one that fails.
`exactness_run.py train --case NAME` is the script that is killed: with or without a backup.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import keras_dist_callbacks as kdc
import tests.support.busy_machine  # noqa: F401 - it changes this process on request
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.testing import KillAt, compare_runs, run_until_done
from tests.support import SUPPORT
from tests.support.exactness_generated import PREFIX, generated
from tests.support.exactness_inputs import CALLBACK_CASES, CHANGE_CASES, INPUT_CASES
from tests.support.exactness_models import MODEL_CASES, Case
from tests.support.exactness_networks import NETWORK_CASES
from tests.support.exactness_objects import HIDDEN_CASES, STATE_CASES
from tests.support.processes import worker_processes
from tests.support.workload import STRATEGIES, finish, make_strategy

CASES = {**INPUT_CASES, **MODEL_CASES, **CALLBACK_CASES, **CHANGE_CASES, **NETWORK_CASES, **HIDDEN_CASES}
CELLS = [(name, strategy) for name, case in CASES.items() for strategy in case.strategies]
SCRIPT = [sys.executable, str(SUPPORT / "exactness_run.py"), "train"]
WORKERS = {"default": 1, "mirrored": 1, "multi_worker": 2}
REFUSED, ERROR = "refused", "error"
SHOWN = 100
HEAD = ("case", "strategy", "identical?", "verdict said", "what was said", "expected", "OK?")
# Under a strategy, each shuffle with a seed is exact under this condition, which every job here meets.
_NO_OTHER_READS = {Finding("first-pass-hidden", data).message for data in ("training data", "validation data")}
_REFUSAL = re.compile(r"^keras_dist_callbacks\.errors\.(?:BackupMismatchError|BackupError|ConfigError): .*", re.M)


class JobError(Exception):
    """A job of a case did not do what it is there for."""


class UntrainableError(JobError):
    """A case that fails without any callback of ours: shapes that do not fit, mostly."""


def case_of(name: str) -> Case:
    """One of the table, or one of which no verdict is expected but a true one."""
    if name.startswith(PREFIX):
        return generated(int(name.removeprefix(PREFIX)))
    return CASES[name] if name in CASES else STATE_CASES[name]


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        verdict: What the last resume was called; `REFUSED` if fit() raised an error of this package that refuses a
            backup, `ERROR` for any other; "exact" if the only condition is one that each of these jobs meets.
        said: Its notes and conditions, then the warnings of all runs; or the error.
        differences: From the uninterrupted run; empty if they are the same bit for bit. None if it was not resumed.
        reproducible: Whether two uninterrupted runs are the same, which are compared if it is called exact and is not.
    """

    verdict: str
    said: str
    differences: tuple[str, ...] | None = None
    reproducible: bool = True

    @property
    def identical(self) -> bool:
        return self.differences == ()

    def problems(self, case: Case) -> list[str]:
        """What is wrong with it, in words; first that something is called exact that is not."""
        if self.verdict == ERROR:
            return [f"the resume failed: {self.said}"]
        found = []
        if self.verdict == "exact" and self.differences:
            what = "it differs" if self.reproducible else "two uninterrupted runs differ"
            found.append(f"called exact, but {what}: {self.differences[0]}")
        if case.expected is None:
            return found
        if case.expected == "exact" and not self.identical and self.verdict != "exact":
            found.append("not identical")
        refused_instead = self.verdict == REFUSED and case.expected == "not exact"  # says no less
        if self.verdict != case.expected and not refused_instead:
            found.append(f"called {self.verdict!r} instead of {case.expected!r}")
        if not re.search(case.says, self.said):
            found.append(f"/{case.says}/ is not said")
        return found


def judged(directory: Path, name: str, strategy: str, *, preload: bool = True) -> Outcome:
    """Runs a case without any callback of this package, and killed and resumed in new processes; compares their ends.

    Raises:
        UntrainableError: It cannot be trained at all.
        JobError: The kill did not strike, or nothing was restored.
    """
    job = _Job(name, case_of(name), strategy, preload)
    reference = job.uninterrupted(directory / "reference")
    outcome = job.killed_and_resumed(directory / "resumed", reference)
    if outcome.verdict == "exact" and outcome.differences:
        again = job.uninterrupted(directory / "again")
        return replace(outcome, reproducible=not job.compare(reference, again))
    return outcome


@dataclass(frozen=True)
class _Job:
    name: str
    case: Case
    strategy: str
    preload: bool

    def uninterrupted(self, directory: Path) -> Path:
        """Returns the base name of its recordings."""
        self._run(directory, [["--record", f"{directory}/run"]])
        return directory / "run"

    def killed_and_resumed(self, directory: Path, reference: Path) -> Outcome:
        backup, last = ["--backup-dir", f"{directory}/backup"], WORKERS[self.strategy] - 1
        attempts = [
            [*backup, "--kill", f"phase=train_batch_begin,epoch={epoch},batch={batch},worker={last}"]
            for epoch, batch in self.case.kills
        ]
        attempts.append([*backup, "--record", f"{directory}/run"])
        codes, logs = self._run(directory, [attempts[0], *([*later, "--resumed"] for later in attempts[1:])])
        warned = "\n".join(line for log in logs for line in log.splitlines() if "RuntimeWarning: " in line)
        refusal = _REFUSAL.search(logs[-1])
        if codes:
            return Outcome(REFUSED, f"{refusal[0]}\n{warned}") if refusal else Outcome(ERROR, _error(logs[-1]))
        restored = re.findall("^RESTORED (.*)$", logs[-1], re.M)
        if not restored:
            raise JobError(f"nothing was restored\n{logs[-1][-2000:]}")
        said = json.loads(restored[0])
        met = said["verdict"] == "exact if" and _NO_OTHER_READS.issuperset(said["conditions"])
        words = "\n".join([*said["notes"], *said["conditions"], warned])
        return Outcome("exact" if met else said["verdict"], words, self.compare(reference, directory / "run"))

    def compare(self, first: Path, second: Path) -> tuple[str, ...]:
        workers = range(WORKERS[self.strategy])
        return tuple(line for i in workers for line in compare_runs(f"{first}-worker{i}", f"{second}-worker{i}"))

    def _run(self, directory: Path, attempts: Sequence[Sequence[str]]) -> tuple[list[int], list[str]]:
        """Each attempt but the last is to be killed; returns the last one's failures, and the chief's log of each."""
        command = [*SCRIPT, "--case", self.name, "--strategy", self.strategy]
        workers, kills = WORKERS[self.strategy], len(attempts) - 1
        with worker_processes(command, workers, directory / "logs", grace=5.0, preload=self.preload) as cluster:
            done = run_until_done(cluster, kills, 120.0 * len(attempts), extra_args=attempts)
            logs = [cluster.log(0, number) for number in range(len(done))]
            if not kills and not done[0].succeeded:
                raise UntrainableError(f"it cannot be trained: {_error(logs[0])}\n{cluster.tails()}")
        for number, attempt in enumerate(done[:-1]):
            if attempt.returncodes[-1] != -9 and number == 0:
                raise JobError(f"it failed before the kill: {_error(logs[0])}")
            if attempt.returncodes[-1] != -9:
                return [*attempt.returncodes], logs[: number + 1]
        if len(done) != len(attempts):
            raise JobError(f"the kill did not strike: {done}\n{logs[0][-2000:]}")
        return [code for code in done[-1].returncodes if code], logs


def _error(log: str) -> str:
    """The last error of a log, then its end."""
    lines = [line for line in log.splitlines() if re.match(r"\S*(Error|Exception|Interrupt)\w*\b", line)]
    return f"{(lines or log.splitlines() or ['nothing'])[-1]}\n{log[-3000:]}"


def train(args: argparse.Namespace) -> None:
    """The script that is killed."""
    keras.utils.set_random_seed(7)
    if args.strategy != "default":
        tf.config.experimental.enable_op_determinism()  # what one replica does next to another is else in any order
    strategy = make_strategy(args.strategy)
    case = case_of(args.case).as_resumed() if args.resumed else case_of(args.case)
    with strategy.scope():
        model = case.model()
    arguments = case.fit(model)
    callbacks = [*arguments.pop("callbacks", []), *case.callbacks(), *args.kill]
    backup = None
    if args.backup_dir:
        options = kdc.WriteOptions(when_busy="wait")
        backup = kdc.BackupAndRestore(args.backup_dir, save_freq=case.save_freq, write_options=options)
        callbacks.append(backup)
    history = model.fit(**arguments, epochs=case.epochs, verbose=2, callbacks=callbacks)
    if backup is not None and backup.restored is not None:
        restored = backup.restored
        said = {"verdict": restored.verdict, "notes": [*restored.notes], "conditions": [*restored.conditions]}
        print("RESTORED " + json.dumps(said), flush=True)
    finish(args.record, model, history)


def chosen(args: argparse.Namespace) -> list[tuple[str, str]]:
    cells = CELLS
    if args.seeds:
        cells = [(f"{PREFIX}{n}", generated(n).strategies[0]) for n in range(*map(int, args.seeds.split(":")))]
    found = [
        (name, strategy)
        for name, strategy in cells
        if any(re.search(pattern, name) for pattern in args.patterns)
        and (not args.strategy or strategy in args.strategy)
    ]
    part, parts = map(int, args.part.split("/"))
    return found[part - 1 :: parts]


def row(directory: Path, name: str, strategy: str, *, preload: bool) -> tuple[str, ...]:
    case = case_of(name)
    shutil.rmtree(directory, ignore_errors=True)  # what was kept of an earlier time: a backup in it would be resumed
    try:
        outcome = judged(directory, name, strategy, preload=preload)
    except Exception as error:  # noqa: BLE001 - of any kind: the other cases matter
        said = f"{type(error).__name__}: {error}"
        return name, strategy, "-", "-", said, str(case.expected), "NO RUN"
    identical = "-" if outcome.differences is None else "yes" if outcome.identical else "NO"
    problems = "; ".join(outcome.problems(case)) or "ok"
    return name, strategy, identical, outcome.verdict, outcome.said, str(case.expected), problems


def as_row(cells: Sequence[str]) -> str:
    shown = [" ".join(cell.split()).replace("|", "/") for cell in cells]
    return "| " + " | ".join([*shown[:4], shown[4][:SHOWN], *shown[5:]]) + " |"


def table(args: argparse.Namespace) -> None:
    if args.list:
        print("\n".join(f"{name} [{strategy}]: {case_of(name)}" for name, strategy in chosen(args)))
        return
    print(as_row(HEAD), as_row(["---"] * len(HEAD)), sep="\n", flush=True)
    totals: collections.Counter[str] = collections.Counter()
    for name, strategy in chosen(args):
        with tempfile.TemporaryDirectory(prefix="kdc-exactness-") as temporary:
            place = args.keep / f"{re.sub('[^a-z0-9]+', '-', name.lower())}-{strategy}" if args.keep else temporary
            found = row(Path(place), name, strategy, preload=not args.fresh)
        totals[f"{found[3]}, identical: {found[2]}"] += 1
        totals["as expected"] += found[-1] == "ok"
        print(as_row(found), flush=True)
    print("\n".join(["", *(f"{count:5} {kind}" for kind, count in sorted(totals.items()))]), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    job = commands.add_parser("train")
    job.set_defaults(run=train)
    job.add_argument("--case", required=True)
    job.add_argument("--strategy", choices=STRATEGIES, default="default")
    job.add_argument("--backup-dir", help="without it no callback of this package takes part")
    job.add_argument("--resumed", action="store_true", help="what the case changes between two runs is changed")
    job.add_argument("--kill", type=KillAt.from_string, action="append", default=[])
    job.add_argument("--record", help="base name: writes <record>-worker<i>.npz and .json at the end")
    printed = commands.add_parser("table")
    printed.set_defaults(run=table)
    printed.add_argument("patterns", nargs="*", default=[""], metavar="PATTERN", help="regular expression")
    printed.add_argument("--strategy", choices=WORKERS, action="append", help="only under this one")
    printed.add_argument("--seeds", metavar="FIRST:END", help="generated cases instead of the written ones")
    printed.add_argument("--part", default="1/1", help="of all rows, i/n takes each nth one from the ith on")
    printed.add_argument("--fresh", action="store_true", help="processes that are not forked from a template")
    printed.add_argument("--keep", type=Path, metavar="DIR", help="keep logs, backups and recordings below it")
    printed.add_argument("--list", action="store_true", help="only name the cases")
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()

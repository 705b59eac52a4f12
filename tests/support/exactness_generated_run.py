"""Runs a generated case and judges it: whatever is called exact must end as an uninterrupted run does."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_dist_callbacks.testing import compare_runs, run_until_done
from tests.support import SUPPORT
from tests.support.exactness_generated import PREFIX, Generated, generated
from tests.support.exactness_run import REFUSED, JobError
from tests.support.processes import worker_processes

SCRIPT = [sys.executable, str(SUPPORT / "exactness_generated_job.py")]
ERROR = "error"
_REFUSAL = re.compile(r"^keras_dist_callbacks\.errors\.\w+: .*", re.M)


class UntrainableError(JobError):
    """A case that fails without any callback of ours: shapes that do not fit, mostly."""


@dataclass(frozen=True)
class Judged:
    """What came of a generated case.

    Attributes:
        verdict: What the last resume was called; `REFUSED` for an error of this package and `ERROR` for any other.
        differences: From the uninterrupted run.
        said: Its notes and conditions, or the error.
        reproducible: Whether two uninterrupted runs are the same; they are compared only where something differs.
    """

    verdict: str
    differences: tuple[str, ...]
    said: str
    reproducible: bool = True

    @property
    def identical(self) -> bool:
        return not self.differences

    @property
    def problem(self) -> str | None:
        """What is wrong with it, if anything is."""
        if self.verdict == ERROR:
            return f"the resume failed: {self.said}"
        if self.verdict != "exact" or self.identical:
            return None
        if not self.reproducible:
            return f"two uninterrupted runs differ, but it was called exact: {self.differences[0]}"
        return f"called exact, but differs: {self.differences[0]}"


def judge(directory: Path, seed: int, strategy: str | None = None, *, preload: bool = True) -> Judged:
    """Runs a case uninterrupted, and killed and resumed.

    Raises:
        JobError: It cannot be trained at all, or the kill did not strike.
    """
    case = generated(seed)
    run = _Runs(seed, case, strategy or case.strategy, preload)
    reference = run.uninterrupted(directory / "reference")
    resumed = directory / "resumed"
    codes, logs = run.killed(resumed)
    refusal = _REFUSAL.search(logs[-1])
    if codes:
        said = refusal[0] if refusal else _last_error(logs[-1])
        return Judged(REFUSED if refusal else ERROR, (), said)
    restored = re.findall("^RESTORED (.*)$", logs[-1], re.M)
    if not restored:
        raise JobError(f"nothing was restored\n{logs[-1][-2000:]}")
    said = json.loads(restored[0])
    differences = tuple(compare_runs(f"{reference}-worker0", f"{resumed}/run-worker0"))
    words = "; ".join([*said["notes"], *said["conditions"]])
    reproducible = True
    if differences and said["verdict"] == "exact":
        again = run.uninterrupted(directory / "again")
        reproducible = not compare_runs(f"{reference}-worker0", f"{again}-worker0")
    return Judged(said["verdict"], differences, words, reproducible)


@dataclass(frozen=True)
class _Runs:
    seed: int
    case: Generated
    strategy: str
    preload: bool

    def uninterrupted(self, directory: Path) -> Path:
        codes, logs = self.run(directory, [["--record", f"{directory}/run"]])
        if codes:
            raise UntrainableError(f"it cannot be trained: {_last_error(logs[-1])}\n{logs[-1][-3000:]}")
        return directory / "run"

    def killed(self, directory: Path) -> tuple[list[int], list[str]]:
        """The last attempt's failures, and the log of each."""
        backup = ["--backup-dir", f"{directory}/backup"]
        kills = [f"phase=train_batch_begin,epoch={epoch},batch={batch}" for epoch, batch in self.case.kills]
        attempts = [[*backup, "--kill", kill, *(["--resumed"] if i else [])] for i, kill in enumerate(kills)]
        return self.run(directory, [*attempts, [*backup, "--record", f"{directory}/run", "--resumed"]])

    def run(self, directory: Path, attempts: Sequence[Sequence[str]]) -> tuple[list[int], list[str]]:
        command = [*SCRIPT, "--case", f"{PREFIX}{self.seed}", "--strategy", self.strategy]
        command += ["--epochs", str(self.case.epochs)]
        with worker_processes(command, 1, directory / "logs", grace=5.0, preload=self.preload) as cluster:
            done = run_until_done(cluster, len(attempts) - 1, 120.0 * len(attempts), extra_args=attempts)
            logs = [cluster.log(0, number) for number in range(len(done))]
        for number, attempt in enumerate(done[:-1]):
            if attempt.returncodes[-1] != -9 and number > 0:
                return [*attempt.returncodes], logs[: number + 1]
            if attempt.returncodes[-1] != -9:
                raise JobError(f"it failed before the kill: {_last_error(logs[number])}\n{logs[number][-3000:]}")
        if len(done) != len(attempts):
            raise JobError(f"the kill did not strike: {done}")
        return [code for code in done[-1].returncodes if code], logs


def _last_error(log: str) -> str:
    lines = [line for line in log.splitlines() if re.match(r"\S*(Error|Exception|Interrupt)\w*\b", line)]
    return (lines or log.splitlines() or ["nothing"])[-1]

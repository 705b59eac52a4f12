"""Runs a case of the table of resumes: uninterrupted, and killed with SIGKILL and resumed; and compares the two."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.testing import compare_runs, run_until_done
from tests.support import SUPPORT
from tests.support.exactness_cases import ALL_CASES as CASES
from tests.support.processes import worker_processes

SCRIPT = [sys.executable, str(SUPPORT / "exactness_job.py")]
WORKERS = {"default": 1, "mirrored": 1, "multi_worker": 2}
REFUSED = "refused"
# Under a strategy, each shuffle with a seed is exact under this condition, which every job here meets.
_NO_OTHER_READS = {Finding("first-pass-hidden", data).message for data in ("training data", "validation data")}
_REFUSAL = re.compile(r"^keras_dist_callbacks\.errors\.(?:BackupMismatchError|BackupError|ConfigError): .*", re.M)


class JobError(Exception):
    """A job of a case did not do what it is there for."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        verdict: What the resume was called, or `REFUSED` if fit() raised an error of this package instead; "exact" if
            the only condition is one that each of these jobs meets.
        said: Its notes and conditions, then the warnings of both runs.
        differences: From the uninterrupted run; empty if they are the same bit for bit. None if it was refused.
    """

    verdict: str
    said: str
    differences: list[str] | None

    @property
    def identical(self) -> bool:
        return self.differences == []

    def problems(self, name: str) -> list[str]:
        """What is wrong with it, in words; first that something is called exact that is not."""
        case, found = CASES[name], []
        if self.verdict == "exact" and not self.identical:
            found.append(f"called exact, but differs: {(self.differences or ['it was refused'])[0]}")
        if case.expected == "exact" and not self.identical and self.verdict != "exact":
            found.append("not identical")
        refused_instead = self.verdict == REFUSED and case.expected == "not exact"  # says no less
        if self.verdict != case.expected and not refused_instead:
            found.append(f"called {self.verdict!r} instead of {case.expected!r}")
        if not re.search(case.says, self.said):
            found.append(f"/{case.says}/ is not said")
        return found


def uninterrupted(directory: Path, name: str, strategy: str, *, preload: bool = True) -> Path:
    """Runs a case without any callback of this package; returns the base name of its recordings."""
    _run(directory, name, strategy, [["--record", f"{directory}/run"]], preload=preload)
    return directory / "run"


def killed_and_resumed(directory: Path, reference: Path, name: str, strategy: str, *, preload: bool = True) -> Outcome:
    """Kills a case in its second epoch, resumes it in a new process, and compares its end with the reference's."""
    workers = WORKERS[strategy]
    backup = ["--backup-dir", f"{directory}/backup"]
    resume = [*backup, "--record", f"{directory}/run", "--resumed"]
    kill = f"phase=train_batch_begin,epoch={CASES[name].epoch},batch={CASES[name].batch},worker={workers - 1}"
    codes, logs = _run(directory, name, strategy, [[*backup, "--kill", kill], resume], preload=preload)
    warned = "\n".join(line for log in logs for line in log.splitlines() if "RuntimeWarning: " in line)
    refusal = _REFUSAL.search(logs[-1])
    if codes and refusal:
        return Outcome(REFUSED, f"{refusal[0]}\n{warned}", None)
    if codes:
        raise JobError(f"the resumed run failed with {codes}\n{logs[-1][-2000:]}")
    restored = re.findall("^RESTORED (.*)$", logs[-1], re.M)
    if not restored:
        raise JobError(f"nothing was restored\n{logs[-1][-2000:]}")
    said = json.loads(restored[0])
    found = [compare_runs(f"{reference}-worker{i}", f"{directory}/run-worker{i}") for i in range(workers)]
    differences = [line for lines in found for line in lines]
    met = said["verdict"] == "exact if" and _NO_OTHER_READS.issuperset(said["conditions"])
    return Outcome(
        "exact" if met else said["verdict"], "\n".join([*said["notes"], *said["conditions"], warned]), differences
    )


def _run(
    directory: Path, name: str, strategy: str, attempts: Sequence[Sequence[str]], *, preload: bool
) -> tuple[list[int], list[str]]:
    """Each attempt but the last is to be killed; the last one's failures, and the chief's log of each."""
    command = [*SCRIPT, "--case", name, "--strategy", strategy]
    workers, restarts = WORKERS[strategy], len(attempts) - 1
    with worker_processes(command, workers, directory / "logs", grace=5.0, preload=preload) as cluster:
        done = run_until_done(cluster, restarts, 120.0 * len(attempts), extra_args=attempts)
        logs = [cluster.log(0, run) for run in range(len(done))]
        if len(done) != len(attempts) or any(attempt.returncodes[-1] != -9 for attempt in done[:-1]):
            raise JobError(f"the fault did not strike: {done}\n{logs[0][-2000:]}")
        if restarts == 0 and not done[-1].succeeded:
            raise JobError(cluster.tails())
    return [code for code in done[-1].returncodes if code], logs

"""Which runs a rehearsal has, what they show, and the exit code that follows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.terminal import write_line
from keras_dist_callbacks.cli.rehearsal import causes, comparison, costs
from keras_dist_callbacks.cli.rehearsal.causes import Restart
from keras_dist_callbacks.cli.rehearsal.comparison import Difference, RunBackups
from keras_dist_callbacks.cli.rehearsal.costs import Costs
from keras_dist_callbacks.cli.rehearsal.runs import RecordedAttempt, RehearsedRun, Runner
from keras_dist_callbacks.rehearsal.plan import Kill
from keras_dist_callbacks.storage.storage import Storage

EQUAL, DIFFERENT, CANNOT, NOT_REPRODUCIBLE = range(4)
"""The exit codes."""

_KILLS: tuple[Kill, ...] = ("backup", "steps", "validation", "end")
_PLACES = {
    "backup": "right after a backup",
    "steps": "two steps after a backup",
    "validation": "during validation",
    "end": "before the end of fit()",
}
NO_FIT = (
    "no fit() with BackupAndRestore took part: give fit() the callback, in the script's own process; loops with "
    "Checkpointer are not rehearsed"
)
_NO_KILL = "the process was never killed, because fit() had too few steps for a backup before its end"


@dataclass(frozen=True)
class Fit:
    """How one fit() of the script was shortened.

    Attributes:
        epochs: Epochs that were trained.
        asked: Epochs that the script asks for.
        batches: Batches of an epoch, at most.
        save_freq: Batches between two backups.
        continues: The input continues where the shortened epoch before has left it.
    """

    epochs: int
    asked: int
    batches: int
    save_freq: int
    continues: bool


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal has shown.

    Attributes:
        exit_code: 0 equal, 1 different, 2 nothing was shown, 3 the script is not reproducible.
        summary: One sentence.
        seconds: How long it took.
        runs: How long each run took, by its name.
        fits: The fits of the script.
        resumes: The kills.
        between: Which two runs differ.
        difference: The first difference.
        problems: What else is wrong, a sentence each.
        unstable: What the user's objects hold and is another one in any two runs, which was not compared.
        advice: What helps.
        costs: Of backups and restarts.
        files: Files that the script wrote or deleted in their real place.
        refused: Files that it may not change.
        output: The end of the output of a process that failed.
        kept: Directories that were kept: the scratch directory, and the output of each process.
    """

    exit_code: int
    summary: str
    seconds: float = 0.0
    runs: dict[str, float] = field(default_factory=dict)
    fits: tuple[Fit, ...] = ()
    resumes: tuple[Restart, ...] = ()
    between: str = ""
    difference: Difference | None = None
    problems: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    costs: Costs | None = None
    files: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


class Rehearsing:
    """One rehearsal.

    Args:
        runner: Starts the runs.
        kills: How many.
        open_storage: Opens a directory of the scratch directory.
    """

    def __init__(self, runner: Runner, kills: int, open_storage: Callable[[str], Storage]) -> None:
        self._runner, self._kills, self._open = runner, kills, open_storage
        self._runs: list[RehearsedRun] = []

    def __call__(self) -> Rehearsal:
        """Runs everything; raises what reading the backups does."""
        began = time.monotonic()
        found = self._rehearse()
        return replace(
            found,
            seconds=time.monotonic() - began,
            runs={run.name: run.seconds for run in self._runs},
            files=tuple(_files(self._runs, "file")),
            refused=tuple(_files(self._runs, "refused")),
        )

    def _rehearse(self) -> Rehearsal:
        for name in ("uninterrupted-1", "uninterrupted-2"):
            run = self._run(name)
            reason = _failure(run.attempts[0])
            if reason is not None:
                return Rehearsal(CANNOT, reason, output=tuple(run.attempts[0].tail()))
        validates = self._runs[0].attempts[0].events("fit")[0]["validates"]
        kills = [kill for kill in _KILLS if validates or kill != "validation"][: self._kills]
        return self._judge(self._run("killed", kills))

    def _run(self, name: str, kills: Sequence[Kill] = ()) -> RehearsedRun:
        times = f", {len(kills)} times" if kills else ""
        write_line(f"kdc: {name}{times} ...", to_stderr=True)
        self._runs.append(self._runner.run(name, kills))
        return self._runs[-1]

    def _judge(self, killed: RehearsedRun) -> Rehearsal:
        first, second = self._runs[:2]
        fits = tuple(
            Fit(r["epochs"][1] - r["epochs"][0], r["asked"], r["batches"], r["save_freq"], r["continues"])
            for r in first.attempts[0].events("fit")
        )
        known = Rehearsal(EQUAL, "", fits=fits, resumes=tuple(_resumes(killed)))
        if (failed := killed.failed) is not None:
            how = _how_it_ended(failed)
            code, summary = CANNOT, f"the script fails by itself in its third run: {how}"
            if known.resumes:
                code, summary = DIFFERENT, f"the restart after the kill {known.resumes[-1].killed} failed: {how}"
            return replace(known, exit_code=code, summary=summary, output=tuple(failed.tail()))
        if not known.resumes:
            return replace(known, exit_code=CANNOT, summary=_NO_KILL)
        ones, twos, ends = (self._backups(run) for run in (first, second, killed))
        known = replace(known, costs=costs.measure([first, second], killed, ones[0]))
        unlike, unstable = _between_uninterrupted(ones, twos)
        gaps, apart = _gaps(ones, ends), _gaps(ones, twos)
        if unlike is not None or apart:
            advice = causes.of_irreproducible(ones[0].manifests[0], unlike)
            summary = "two uninterrupted runs differ, so a resume cannot be compared"
            code = DIFFERENT if gaps and not apart else NOT_REPRODUCIBLE
            return replace(
                known, exit_code=code, summary=summary, between="two uninterrupted runs", difference=unlike,
                advice=tuple(advice), problems=tuple(apart or gaps),
            )  # fmt: skip
        return _compare_with_killed(replace(known, unstable=tuple(sorted(unstable))), ones, ends, gaps)

    def _backups(self, run: RehearsedRun) -> list[RunBackups]:
        return [RunBackups.read(BackupStore(self._open(place))) for place in run.places]


def _failure(attempt: RecordedAttempt) -> str | None:
    """Why an uninterrupted run shows nothing; None if it was complete."""
    if any(record["event"] == "loop" for process in attempt.records for record in process):
        return NO_FIT
    if attempt.has_failed:
        return f"the script fails by itself: {_how_it_ended(attempt)}"
    return None if attempt.events("end") else NO_FIT


def _how_it_ended(attempt: RecordedAttempt) -> str:
    if attempt.timed_out:
        return f"it still ran after {attempt.seconds:.0f} s and was ended (--timeout)"
    codes = ", ".join(f"signal {-code}" if code < 0 else f"exit code {code}" for code in attempt.codes)
    return f"it ended with {codes}"


def _resumes(killed: RehearsedRun) -> list[Restart]:
    found = []
    for before, after in itertools.pairwise(killed.attempts):
        restored = after.events("restored", 1)
        place = _PLACES[str(before.kill)]
        if restored:
            last = restored[0]
            found.append(Restart.of(place, last["at"], findings.from_json(last["found"])))
        else:
            found.append(Restart(place, "", "nothing was restored"))
    return found


def _files(runs: Sequence[RehearsedRun], event: str) -> list[str]:
    """What the script changes by itself, in the order in which it does."""
    processes = [process for run in runs for attempt in run.attempts for process in attempt.records]
    return list(dict.fromkeys(r["path"] for process in processes for r in process if r["event"] == event))


def _compare_with_killed(
    known: Rehearsal, ones: Sequence[RunBackups], ends: Sequence[RunBackups], gaps: Sequence[str]
) -> Rehearsal:
    pairs = list(zip(ones, ends, strict=False))
    found = (comparison.first_difference(one, end, known.unstable) for one, end in pairs)
    difference = next((difference for difference in found if difference is not None), None)
    if difference is None and not gaps and all(resume.resumed for resume in known.resumes):
        count = sum(len(end.manifests) for end in ends)
        kills = len(known.resumes)
        times = "once" if kills == 1 else f"{kills} times"
        summary = (
            f"resumed exactly: killed {times}, and equal to the uninterrupted runs, bit for bit, at all {count} backups"
        )
        return replace(known, summary=summary)
    between = "the uninterrupted run and the killed one"
    lost = [f"the restart after the kill {r.killed} found no backup" for r in known.resumes if not r.resumed]
    return replace(
        known, exit_code=DIFFERENT, summary="the killed run differs from the uninterrupted ones", between=between,
        difference=difference, problems=(*gaps, *lost), advice=tuple(causes.of_inexact(known.resumes, difference)),
    )  # fmt: skip


def _between_uninterrupted(
    ones: Sequence[RunBackups], twos: Sequence[RunBackups]
) -> tuple[Difference | None, frozenset[str]]:
    """The first difference of training between two uninterrupted runs; and what else differs, such as times.

    Random states count only where numbers of training differ too: without that, the short runs did not use them.
    """
    unstable: set[str] = set()
    drawn: tuple[comparison.Gap, RunBackups, RunBackups] | None = None
    for one, two in zip(ones, twos, strict=False):
        for gap in comparison.gaps(one, two):
            if gap.is_random and drawn is None:
                drawn = gap, one, two
            if gap.is_about_training:
                return comparison.describe(*(drawn or (gap, one, two))), frozenset()
            unstable |= gap.names
    return None, frozenset(unstable)


def _gaps(ones: Sequence[RunBackups], others: Sequence[RunBackups]) -> list[str]:
    found = [gap for one, other in zip(ones, others, strict=False) for gap in comparison.missing_positions(one, other)]
    if len(ones) != len(others):
        found.append(f"the uninterrupted run had {len(ones)} fits and the killed one {len(others)}")
    return found

"""Where the time of a killed job has gone: the journal, against a clock of the job's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.support import ROOT

pytestmark = [pytest.mark.chaos, pytest.mark.kill, pytest.mark.timeout(900)]
SAVES = 20
KILLS = [33, 78, 111, 167, 199, 230, 266, 291]
FEW = [78, 167, 230]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "starting": ("program_startup",),
    "up to the first step": ("training_prep", "unproductive_checkpoint_restore_time", "data_loading_sync"),
    "training": ("training", "unproductive_checkpoint_save_time", "other"),
    "validation": ("custom_badput_events/eval_step",),
    "in vain": ("wasted_progress_from_disruption",),
    "not running": ("infrastructure_recovery_from_disruption",),
}
"""Categories that the job's own notes cannot tell from each other."""


@dataclass(frozen=True)
class Row:
    """A job, and how often it ends early.

    Attributes:
        kills: The steps after which it is killed.
        terms: Those after which it gets a SIGTERM.
        launch: Options of `kdc launch`; None: a loop of a shell.
        job: Further arguments of the job.
        workers: How many processes train.
    """

    kills: Sequence[int]
    terms: Sequence[int] = ()
    launch: Sequence[str] | None = ()
    job: Sequence[str] = ()
    workers: int = 1

    @property
    def starts(self) -> int:
        return len(self.kills) + len(self.terms) + 1


ROWS = {
    "launched": Row(KILLS),
    "loop of a shell": Row(KILLS, launch=None),
    "two workers, the second of which is killed": Row(FEW, launch=("--workers", "2"), workers=2),
    "SIGTERM under the launcher": Row([], [67, 133, 210], job=("--validation",)),
    "SIGTERM in a loop of a shell": Row([78], [33, 210], launch=None, job=("--validation",)),
    "Checkpointer": Row(FEW, [111, 199], job=("--loop",)),
    "Checkpointer in a loop of a shell": Row(FEW, [111], launch=None, job=("--loop",)),
    "standby": Row(FEW, launch=("--standby",)),
}


def measured(place: Path, row: Row) -> dict[str, float]:
    """Seconds by group of categories, as the notes of the chief say, and for its end those of the one that ends."""
    processes, others = (_notes(place / f"ticks-{worker}") for worker in (0, row.workers - 1))
    found = dict.fromkeys(GROUPS, 0.0)
    heard = 0.0
    for notes, last in zip(processes, others, strict=True):
        at = {what: when for when, what in notes}
        ticks = [(when, int(what)) for when, what in notes if what.isdigit()]
        tests = [(when, what) for when, what in notes if what.startswith("test")]
        ended, step = next((when, what) for when, what in reversed(last) if what.isdigit() or what == "end")
        saved = [when for when, tick in ticks if not tick % SAVES]
        kept = ended if step == "end" or int(step) in row.terms else saved[-1] if saved else ticks[0][0]
        if heard and "--standby" in (row.launch or ()):  # a process that was there begins when it is told to
            at["begin"] = heard
        elif heard:
            found["not running"] += at["begin"] - heard
        found["starting"] += at["fit"] - at["begin"]
        found["up to the first step"] += ticks[0][0] - at["fit"]
        in_tests = sum(when * (1 if what == "tested" else -1) for when, what in tests if when < kept)
        found["validation"] += in_tests
        found["training"] += kept - ticks[0][0] - in_tests
        if row.launch is not None:
            found["in vain"] += ended - kept
        heard = kept if row.launch is None else ended
    return found


def _notes(file: Path) -> list[list[tuple[float, str]]]:
    found: dict[str, list[tuple[float, str]]] = {}
    for line in file.read_text().splitlines():
        pid, when, what = line.split()
        found.setdefault(pid, []).append((float(when), what))
    return list(found.values())


@pytest.mark.parametrize("name", ROWS)
def test_a_job_that_ends_early_knows_where_its_time_has_gone(tmp_path: Path, name: str) -> None:
    row, out, err = ROWS[name], "", ""
    ends = [*(f"--kill={step}" for step in row.kills), *(f"--term={step}" for step in row.terms)]
    job = [str(tmp_path), "--pace=0.05", f"--save={SAVES}", *ends, *row.job]
    by = [sys.executable, "-m", "tests.support.goodput_job"]
    if row.launch is not None:
        command = by[1:] if "--standby" in row.launch else ["--", *by]
        by = [sys.executable, "-m", "keras_dist_callbacks.cli", "launch", *row.launch, *command]
    for _ in range(row.starts if row.launch is None else 1):
        done = subprocess.run([*by, *job], env=ENV, capture_output=True, text=True, check=False)
        out, err = out + done.stdout, err + done.stderr
    assert done.returncode == 0, out + err
    store = BackupStore(Storage.open(tmp_path / "backup"))
    journal = store.left_journal(store.journals()[-1])
    totals, whole = journal.totals(), journal.attempts[-1].heard - journal.attempts[0].began
    off = []
    for group, seconds in measured(tmp_path, row).items():
        told = sum(totals.get(category, 0.0) for category in GROUPS[group])
        print(f"{group:22} {told:8.2f} s, measured {seconds:8.2f} s of {whole:.1f} s")
        off += [group] if abs(told - seconds) > 0.02 * whole else []
    print(totals)
    assert not off
    assert journal.starts == row.starts
    assert sum(totals.values()) == pytest.approx(whole, rel=0.001), "each second is counted once"
    assert journal.steps_repeated == (0 if row.launch is None else sum(step % SAVES for step in row.kills))
    assert f"kdc: {row.starts} starts in" in out
    if row.launch is not None:
        assert f"kdc launch: ended with code 0 after {row.starts} starts; before that by " in err

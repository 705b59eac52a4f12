"""Where the time of a killed job has gone: the journal, against a clock of the job's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from keras_dist_callbacks.backups.journal import Journal
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.storage.storage import Storage
from tests.support import ROOT

pytestmark = [pytest.mark.chaos, pytest.mark.kill, pytest.mark.timeout(900)]
SAVES = 20
KILLS = [33, 78, 111, 167, 199, 230, 266, 291]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def job(place: Path, kills: list[int], pace: float) -> list[str]:
    words = ["-m", "tests.support.goodput_job", str(place), "--pace", str(pace), "--save", str(SAVES)]
    return [*words, *(word for step in kills for word in ("--kill", str(step)))]


def measured(place: Path, *, launched: bool) -> dict[str, float]:
    """Seconds by category, as the job's own notes say."""
    processes: dict[str, list[tuple[float, str]]] = {}
    for line in (place / "ticks").read_text().splitlines():
        pid, when, what = line.split()
        processes.setdefault(pid, []).append((float(when), what))
    found = dict.fromkeys(
        ("program_startup", "training", "wasted_progress_from_disruption", "infrastructure_recovery_from_disruption"),
        0.0,
    )
    heard = 0.0
    for notes in processes.values():
        at = {what: when for when, what in notes}
        ticks = [(when, int(what)) for when, what in notes if what.isdigit()]
        ended = notes[-1][0]
        saved = [when for when, step in ticks if not step % SAVES] if "end" not in at else [ended]
        last = saved[-1] if saved else ticks[0][0]
        if heard:
            found["infrastructure_recovery_from_disruption"] += at["begin"] - heard
        found["program_startup"] += at["fit"] - at["begin"]
        found["training"] += last - ticks[0][0]
        if launched and "end" not in at:
            found["wasted_progress_from_disruption"] += ended - last
        heard = ended if launched else last
    return found


def told(place: Path) -> tuple[Journal, Mapping[str, float]]:
    store = BackupStore(Storage.open(place / "backup"))
    journal = store.left_journal(store.journals()[-1])
    return journal, journal.totals()


def check(place: Path, kills: list[int], *, launched: bool) -> None:
    journal, totals = told(place)
    whole = journal.attempts[-1].heard - journal.attempts[0].began
    assert journal.starts == len(kills) + 1
    assert sum(totals.values()) == pytest.approx(whole, rel=0.001), "each second is counted once"
    for category, seconds in measured(place, launched=launched).items():
        print(f"{category:45} {totals.get(category, 0.0):8.2f} s, measured {seconds:8.2f} s of {whole:.1f} s")
        assert abs(totals.get(category, 0.0) - seconds) < 0.02 * whole, category
    expected = sum(step % SAVES for step in kills) if launched else 0
    assert journal.steps_repeated == expected


@pytest.mark.parametrize("pace", [0.05])
def test_a_job_under_the_launcher_knows_what_was_in_vain(tmp_path: Path, pace: float) -> None:
    command = [sys.executable, "-m", "keras_dist_callbacks.cli", "launch", "--", sys.executable]
    done = subprocess.run([*command, *job(tmp_path, KILLS, pace)], env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check(tmp_path, KILLS, launched=True)
    assert "kdc: 9 starts in" in done.stdout
    assert "kdc launch: ended with code 0 after 9 starts; before that by SIGKILL, SIGKILL" in done.stderr


@pytest.mark.parametrize("pace", [0.05])
def test_a_job_in_a_loop_of_a_shell_counts_it_as_not_running(tmp_path: Path, pace: float) -> None:
    for _ in range(len(KILLS) + 1):
        done = subprocess.run(
            [sys.executable, *job(tmp_path, KILLS, pace)], env=ENV, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    check(tmp_path, KILLS, launched=False)

"""`kdc watch` and `kdc report`: what is seen of a job from its store alone."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keras_dist_callbacks.backups.journal import AttemptRecord, Journal
from keras_dist_callbacks.backups.owner_records import OWNER
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cli import reporting, watching
from keras_dist_callbacks.storage.storage import Storage
from tests.support.cli_backups import begin, commit, kdc, kdc_json

NOW = 1_800_000_000.0
BEGAN = NOW - 1000.0


def journal(*steps: tuple[int, int], end: str = "") -> dict[str, Any]:
    """Processes of 100 s each, 10 of which they train, one after the other without a gap; the last one ends now."""
    attempts = [
        AttemptRecord(
            number,
            NOW - 100.0 * (len(steps) - number + 1),
            *place,
            {"program_startup": 90.0, "training": 10.0},
            end if number == len(steps) else "",
        )
        for number, place in enumerate(steps, start=1)
    ]
    return msgspec.to_builtins(Journal(tuple(attempts)))


def saved(directory: Path, *steps: tuple[int, int], age: float = 5.0, epochs: int = 10, **more: Any) -> None:
    """A backup in epoch 3 of a training of 100 batches an epoch, `age` seconds ago."""
    for _ in steps:
        store = begin(directory, age)
    position = more.pop("position", Position("within", 2, 30, steps[-1][1]))
    state = {
        "progress/fit": {"number": 0, "first": 0, "epochs": epochs, "initial_epoch": 0},
        "callbacks/History()": more.pop("history", {"epoch": [0, 1], "history": {"loss": [2.0, 1.0]}}),
    }
    info = {"journal": journal(*steps, end=more.pop("end", "")), "steps_per_epoch": 100, **more}
    commit(store, 1, position=position, age=time.time() - NOW + age, states=[state], **info)


def look(directory: Path, now: float = NOW, stale: float = 1800.0) -> watching.JobView:
    return watching.Watch(BackupStore(Storage.open(directory)), stale).look(now)


def test_where_a_run_is_how_fast_and_what_is_at_risk(tmp_path: Path) -> None:
    saved(tmp_path, (0, 130), (130, 230), age=5.0)
    found = look(tmp_path)
    assert (found.position, found.step, found.epoch, found.epochs) == ("epoch 3 of 10, batch 30", 230, 3, 10)
    assert found.steps_per_second == pytest.approx(10.0)
    assert found.steps_at_risk == 50
    assert found.seconds_left == pytest.approx((800 - 30) / 10.0 - 5.0, abs=0.1)
    assert (found.starts, found.ends) == (2, ("", ""))
    assert found.goodput == pytest.approx(0.1)
    assert found.loss == (2.0, 1.0)
    assert found.troubles == ()


@pytest.mark.parametrize(
    ("steps", "age", "troubles"),
    [
        ([(0, 230)], 5000.0, ("stalled",)),
        ([(0, 100)] + [(100, 230)] * 5, 5.0, ("restart storm",)),
        ([(0, 230), (230, 230), (230, 230)], 5.0, ("no progress between restarts",)),
        ([(0, 230)], 500.0, ("backups failing",)),
    ],
)
def test_what_goes_wrong_is_named(tmp_path: Path, steps: Any, age: float, troubles: tuple[str, ...]) -> None:
    saved(tmp_path, *steps, age=age)
    assert look(tmp_path).troubles == troubles


def test_a_directory_without_a_run_one_that_starts_and_one_that_has_finished(tmp_path: Path) -> None:
    assert look(tmp_path).state == "nothing"
    assert kdc("watch", tmp_path, "--once").exit_code == 2
    store = begin(tmp_path, time.time() - NOW)
    assert look(tmp_path).state == "starting"
    assert look(tmp_path, NOW + 5000).state == "stalled"
    store.leave_journal(Journal((AttemptRecord(1, BEGAN, 0, 50, {"training": 1000.0}, "finished"),)))
    store.delete_everything()
    found = look(tmp_path)
    assert (found.state, found.step, found.starts) == ("finished", 50, 1)
    assert found.summary == "1 start in 17 min: 100.0 % training"
    assert kdc("watch", tmp_path).exit_code == 0
    assert "a finished run has deleted its backup. `kdc watch`" in " ".join(kdc("ls", tmp_path).stderr.split())
    assert "1 start in 17 min" in kdc("report", tmp_path, "--out", tmp_path / "r.html").stdout


@pytest.mark.process
def test_it_follows_a_run_writes_a_line_for_each_change_and_ends_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keras_dist_callbacks.cli", "watch", str(tmp_path / "b"), "--every", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "state nothing"
        saved(tmp_path / "b", (0, 230), age=time.time() - NOW)
        assert "epoch 3 of 10, batch 30, step 230" in process.stdout.readline()
        store = begin(tmp_path / "b", 0.0)
        commit(store, 2, position=Position("end", 10, 0, 1000), age=0.0, journal=journal((0, 1000), end="finished"))
        assert "state finished; position end, after epoch 10, step 1,000" in process.stdout.readline()
        assert process.wait(30) == 0


def test_nothing_is_written_and_a_manifest_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, (0, 230))
    requests: list[str] = []
    for name in ("read", "files", "create", "delete", "exists"):
        real = getattr(Storage, name)

        def counted(self: Any, *arguments: Any, real: Any = real, name: str = name, **more: Any) -> Any:
            requests.append(f"{name} {arguments[0] if arguments else ''}".strip())
            return real(self, *arguments, **more)

        monkeypatch.setattr(Storage, name, counted)
    watch = watching.Watch(BackupStore(Storage.open(tmp_path)))
    watch.look(NOW)
    first = [*requests]
    requests.clear()
    watch.look(NOW)
    assert not any(one.startswith(("create", "delete")) for one in [*first, *requests])
    assert len([one for one in first if one.startswith("read commits")]) == 1
    assert not [one for one in requests if one.startswith("read commits")]
    assert len(requests) <= 6, requests


def test_metrics_for_prometheus(tmp_path: Path) -> None:
    saved(tmp_path, (0, 130), (130, 230))
    kdc("watch", tmp_path, "--once", "--openmetrics", tmp_path / "kdc.prom")
    text = (tmp_path / "kdc.prom").read_text()
    assert f'kdc_goodput_ratio{{backup_dir="{tmp_path}"}} 0.1' in text
    assert f'kdc_badput_seconds_total{{backup_dir="{tmp_path}",type="program_startup"}} 180.0' in text
    assert f'kdc_restarts_total{{backup_dir="{tmp_path}",reason="killed"}} 1.0' in text


def test_json_has_all_that_the_screen_shows(tmp_path: Path) -> None:
    saved(tmp_path, (0, 230), position=Position("end", 10, 0, 1000), end="finished")
    found = kdc_json("watch", tmp_path)
    assert (found["state"], found["ends"], found["loss"]) == ("finished", ["finished"], [2.0, 1.0])


@pytest.mark.parametrize(
    ("values", "curve"),
    [((), ""), ((1.0,), "▁"), ((0.0, 1.0), "▁█"), ((0.0, None, 7.0), "▁ █"), ((None,), "")],
)
def test_a_curve_in_one_line(values: tuple[float | None, ...], curve: str) -> None:
    assert watching.sparkline(values) == curve


def test_a_run_that_has_ended_puts_nothing_at_risk_and_earlier_ends_are_counted(tmp_path: Path) -> None:
    saved(tmp_path, (0, 100), (100, 130), (130, 230), age=500.0)
    file = tmp_path / "owners/000003.json"
    owner = OWNER.decode(file.read_bytes(), file.name)
    assert owner.began is not None
    file.write_bytes(OWNER.encode(msgspec.structs.replace(owner, began=owner.began - 1)))  # of another process
    found = look(tmp_path)
    assert (found.state, found.steps_at_risk, found.troubles) == ("not running", None, ())
    assert ("earlier ends", "2 killed") in watching.facts(found)


def test_a_loss_that_is_not_finite_is_a_gap(tmp_path: Path) -> None:
    history = {"epoch": [0, 1], "history": {"loss": [2.0, {"$float": "nan"}], "words": ["a", "b"]}}
    saved(tmp_path, (0, 230), history=history)
    assert look(tmp_path).loss == (2.0, None)
    assert kdc_json("watch", tmp_path)["loss"] == [2.0, None]
    assert ("loss", "▁  not finite") in watching.facts(look(tmp_path))
    page = reporting.page_of(reporting.gather(BackupStore(Storage.open(tmp_path))))
    assert ">loss</text>" in page
    assert "words" not in page


def test_a_report_loads_nothing_and_shows_starts_and_curves(tmp_path: Path) -> None:
    saved(tmp_path, (0, 130), (130, 230))
    file = tmp_path / "run.html"
    told = kdc_json("report", tmp_path, "-o", file)
    assert told["summary"].startswith("2 starts in 3 min")
    page = file.read_text()
    assert page.count("<svg") == 4  # two pictures, each for a desk and for a phone
    assert not re.findall(r"""<script|<link|@import|(?:src|href)=(?!["']#)|url\((?!#)""", page)
    assert "<td>killed</td><td class=n>unknown</td>" in page
    for meaning in ("starting, restoring", "training", "killed some time later", "backup that is there"):
        assert f">{meaning}</text>" in page
    assert reporting._INK not in page


KILLED = AttemptRecord(1, BEGAN, 0, 100, {"training": 100.0}, after=10.0, after_step=109)
LATER = AttemptRecord(2, BEGAN + 120.0, 100, 200, {"training": 100.0}, "preempted")
BACK = AttemptRecord(4, BEGAN + 300.0, 150, 160, {"training": 10.0})


@pytest.mark.parametrize(
    ("attempts", "more", "shown"),
    [
        ([KILLED, LATER], {}, ["0 to 109</td><td>killed</td><td class=n>9<", ">training that was repeated</text>"]),
        ([KILLED, LATER, BACK], {}, ["100 to 200</td><td>preempted</td><td class=n>50<", "<td>killed</td>"]),
        ([LATER, BACK], {"is_running": True}, ["<td>running</td>", "A resume from the newest backup: exact."]),
        ([LATER], {"has_finished": True, "verdict": ""}, ["Training has finished.", "There is no backup"]),
        ([AttemptRecord(1, BEGAN)], {}, ["<td>unknown</td>", "training had not finished"]),
        ([LATER] * 0, {}, ["0 starts."]),
    ],
)
def test_what_a_report_says_of_each_start(attempts: Any, more: Any, shown: list[str]) -> None:
    page = reporting.page_of(reporting.Report("runs/b", Journal(tuple(attempts)), **{"verdict": "exact", **more}))
    assert [text for text in shown if text not in page] == []
    assert ("<svg" in page) == any(one.seconds for one in attempts)


def test_a_report_of_many_starts_says_which_it_does_not_show() -> None:
    journal = Journal()
    for number in range(1, 108):
        journal = journal.with_attempt(AttemptRecord(number, BEGAN + number, number, number + 1, {"training": 1.0}))
    page = reporting.page_of(reporting.Report("runs/b", journal))
    assert "Of the first 7 starts only the sums are known" in page
    assert "time since start 8 (s)" in page
    assert page.count("<tr>") == 1 + 100 + 1 + len(journal.totals())


@pytest.mark.parametrize("command", ["watch", "report"])
def test_a_rollback_takes_no_start_away(tmp_path: Path, command: str) -> None:
    saved(tmp_path, (0, 130), position=Position("within", 1, 30, 130))
    store, info = begin(tmp_path, 5.0), {"journal": journal((0, 130), (130, 230)), "steps_per_epoch": 100}
    commit(store, 1, position=Position("within", 2, 30, 230), age=5.0, **info)
    rolled = kdc("rollback", tmp_path, "--to", "1-1", "--force")
    assert rolled.exit_code == 0, rolled.output
    arguments = ["--once"] if command == "watch" else ["--out", tmp_path / "r.html"]
    assert "2 starts in 3 min" in kdc(command, tmp_path, *arguments).stdout

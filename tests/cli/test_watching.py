"""`kdc watch` and `kdc report`: what is seen of a job from its store alone."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from keras_dist_callbacks.backups.journal import AttemptRecord, Journal
from keras_dist_callbacks.backups.owner_records import OWNER
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base import progress_file
from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.cli import reporting, watching
from keras_dist_callbacks.storage.storage import Storage
from tests.support import ROOT
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
    saved(tmp_path, (0, 130), (130, 230), age=6.0)
    found = look(tmp_path)
    assert (found.position, found.step, found.epoch, found.epochs) == ("epoch 3 of 10, batch 30", 230, 3, 10)
    assert found.steps_per_second == pytest.approx(9.9)  # the first step is preparation
    assert found.steps_at_risk == 59
    assert found.seconds_left == pytest.approx((800 - 30) / 9.9 - 6.0, abs=0.1)
    assert (found.starts, found.ends) == (2, ("", ""))
    assert found.goodput == pytest.approx(0.1)
    assert found.loss == (2.0, 1.0)
    assert found.troubles == ()


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes cannot be looked at")
@pytest.mark.parametrize(
    ("saved_at", "shown"), [(20, ("running, in validation", "13 steps")), (19, ("running", "about 99 steps"))]
)
def test_of_a_process_under_the_launcher_on_this_machine_its_steps_are_known(
    tmp_path: Path, saved_at: int, shown: tuple[str, str]
) -> None:
    progress_file.create(tmp_path / "progress")
    code = f"""
import sys, time
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.progress_file import Phase, progress_file
from keras_dist_callbacks.storage.storage import Storage
BackupStore(Storage.open({str(tmp_path)!r})).claim({{}})
file = progress_file()
file.begin_fit("elsewhere, as this process calls it")
file.begin_epoch(0, 0)
file.step_done(33)
file.backup("elsewhere, as this process calls it", {saved_at})
file.enter(Phase.VALIDATION)
print("up", flush=True)
time.sleep(60)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "KDC_PROGRESS": str(tmp_path / "progress")}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            store = BackupStore(Storage.open(tmp_path))
            store.generation = store.newest_generation()
            store._claim = (tmp_path / "owners" / "000001.json").read_bytes()
            commit(
                store, 1, position=Position("within", 0, 20, 20), age=time.time() - NOW + 10, journal=journal((0, 100))
            )
            found = dict(watching.facts(look(tmp_path)))
            assert (found["state"], found["at risk"]) == shown
        finally:
            process.kill()


def test_after_one_step_no_pace_is_known(tmp_path: Path) -> None:
    saved(tmp_path, (0, 1), position=Position("within", 0, 1, 1))
    found = look(tmp_path)
    assert (found.steps_per_second, found.seconds_left, found.steps_at_risk) == (None, None, None)


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
    saved(tmp_path, (0, 130), (130, 230), (230, 330))
    requests: list[str] = []
    for name in ("read", "files", "create", "delete", "exists"):
        real = getattr(Storage, name)

        def counted(self: Any, *arguments: Any, real: Any = real, name: str = name, **more: Any) -> Any:
            requests.append(f"{name} {arguments[0] if arguments else ''}".strip())
            return real(self, *arguments, **more)

        monkeypatch.setattr(Storage, name, counted)
    watch = watching.Watch(BackupStore(Storage.open(tmp_path)))
    watch.look(NOW)
    commit = next(one for one in requests if one.startswith("read commits"))
    older = ["read owners/000001.json", "read owners/000002.json"]
    assert requests == ["files owners", "read owners/000003.json", *older, "files commits", commit]
    requests.clear()
    watch.look(NOW)
    assert requests == ["files owners", "read owners/000003.json", "files commits"]


def test_a_training_that_begins_again_in_the_same_directory_is_seen(tmp_path: Path) -> None:
    saved(tmp_path, (0, 230), age=500.0)
    watch = watching.Watch(BackupStore(Storage.open(tmp_path)))
    assert watch.look(NOW).step == 230
    shutil.rmtree(tmp_path)  # as its end does
    begin(tmp_path, time.time() - NOW)
    found = watch.look(NOW + 1700)
    assert (found.state, found.starts, found.troubles) == ("starting", 1, ()), "the old record would be stalled"


def test_a_backup_that_is_deleted_during_a_look_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, (0, 230))
    files = Storage.files

    def then_deleted(self: Storage, directory: str = "") -> Any:
        found = files(self, directory)
        if directory == "commits":
            monkeypatch.undo()
            saved(tmp_path, (0, 230), (230, 430))
            for file in found:
                (tmp_path / directory / file.name).unlink()
        return found

    monkeypatch.setattr(Storage, "files", then_deleted)
    assert look(tmp_path).step == 430


def test_a_store_that_cannot_be_read_for_a_while_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    down = StorageError("cannot list s3://bucket/run/owners: no answer in time")
    down.unavailable = True
    saved(tmp_path, (0, 230))
    seen = [look(tmp_path), down, down, look(tmp_path), dataclasses.replace(look(tmp_path), state="finished")]

    def watch() -> watching.JobView:
        one = seen.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    assert watching.follow(watch, 0.0, 60.0).state == "finished"
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "state running",
        "state running 0 s ago",
        "state running",
        "state finished",
    ]
    assert lines[1].endswith("cannot list s3://bucket/run/owners: no answer in time")


@pytest.mark.parametrize(("unavailable", "patience"), [(False, 60.0), (True, 0.0)])
def test_a_store_that_does_not_come_back_or_refuses_ends_it(tmp_path: Path, unavailable: bool, patience: float) -> None:
    down = StorageError("cannot list s3://bucket/run/owners")
    down.unavailable = unavailable
    saved(tmp_path, (0, 230))
    seen = [look(tmp_path)]

    def watch() -> watching.JobView:
        if not seen:
            raise down
        return seen.pop()

    with pytest.raises(StorageError, match="cannot list"):
        watching.follow(watch, 0.001, patience)


def test_what_the_newest_process_has_warned_of_and_how_long_its_backup_took(tmp_path: Path) -> None:
    warned = {"time": NOW - 130.0, "text": "the backup at epoch 2 failed \x1b[31m"}
    saved(tmp_path, (0, 230), warnings=[warned], seconds=3.25)
    found = look(tmp_path)
    assert (found.backup_seconds, found.warnings[0].age) == (3.25, 130.0)
    text = kdc("watch", tmp_path, "--once").stdout
    assert r"the backup at epoch 2 failed \x1b[31m" in text
    assert "took 3.2 s" in text
    assert re.search(r"time so far +1 start in 2 min: 10.0 % training, 90.0 % starting", kdc("show", tmp_path).stdout)


def test_metrics_for_prometheus(tmp_path: Path) -> None:
    saved(tmp_path, (0, 130), (130, 230), age=NOW - time.time() + 5.0)
    kdc("watch", tmp_path, "--once", "--openmetrics", tmp_path / "kdc.prom")
    text = (tmp_path / "kdc.prom").read_text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    values = {
        (name, *(value for label, value in sample.labels.items() if label != "backup_dir")): sample.value
        for name, family in families.items()
        for sample in family.samples
    }
    assert {sample.labels["backup_dir"] for family in families.values() for sample in family.samples} == {str(tmp_path)}
    assert {name: family.type for name, family in families.items()} == {
        "kdc_goodput_ratio": "gauge",
        "kdc_steps_at_risk": "gauge",
        "kdc_last_backup_timestamp_seconds": "gauge",
        "kdc_badput_seconds": "counter",
        "kdc_restarts": "counter",
    }
    assert values.pop(("kdc_last_backup_timestamp_seconds",)) == pytest.approx(time.time() - 5.0, abs=5.0)
    assert values.pop(("kdc_steps_at_risk",)) >= 50
    assert values == {
        ("kdc_goodput_ratio",): pytest.approx(0.1),
        ("kdc_badput_seconds", "program_startup"): 180.0,
        ("kdc_restarts", "killed"): 1.0,
    }


def test_json_has_all_that_the_screen_shows(tmp_path: Path) -> None:
    saved(tmp_path, (0, 230), position=Position("end", 10, 0, 1000), end="finished")
    found = kdc_json("watch", tmp_path)
    assert (found["state"], found["ends"], found["loss"]) == ("finished", ["finished"], [2.0, 1.0])


@pytest.mark.parametrize("width", [80, 44, 24])
def test_a_screen_fits_into_its_terminal_and_breaks_lines_after_commas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    saved(tmp_path, (0, 130), (130, 230), end="failed", warnings=[{"time": NOW, "text": "a backup was late"}])
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    console.print(watching._screen(look(tmp_path), width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text), "no color"
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if not line.startswith(" ")][-1] == "loss"


@pytest.mark.parametrize(
    ("fact", "room", "lines"),
    [
        ("running", 30, ["running"]),
        (
            "3 starts in 52 s: 55.7 % starting, 20.1 % training",
            25,
            ["3 starts in 52 s:", "55.7 % starting,", "20.1 % training"],
        ),
        (
            "3 starts in 52 s: 55.7 % starting, 20.1 % training",
            40,
            ["3 starts in 52 s: 55.7 % starting,", "20.1 % training"],
        ),
        (
            "3 starts in 52 s: 55.7 % starting, 20.1 % training",
            15,
            ["3 starts in 52 s: 55.7 % starting, 20.1 % training"],
        ),
    ],
)
def test_a_fact_is_broken_after_commas(fact: str, room: int, lines: list[str]) -> None:
    assert watching._folded(fact, room).splitlines() == lines


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


def test_a_report_leaves_out_what_is_deleted_or_damaged_meanwhile(tmp_path: Path) -> None:
    for last in (230, 330, 430):
        saved(tmp_path, (0, last))
    *_, lost, torn = BackupStore(Storage.open(tmp_path)).commits()
    (tmp_path / torn.name).write_bytes(b"")

    class Pruned(BackupStore):
        def commits(self, claims: Any = None) -> Any:
            found = super().commits(claims)
            (tmp_path / lost.name).unlink()
            return found

    report = reporting.gather(Pruned(Storage.open(tmp_path)))
    assert [step for _, step in report.backups] == [230]


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

"""`kdc rehearse`: what follows from the runs, without TensorFlow; real ones are in tests/stress and at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.cli.rehearsal import command, report, start
from keras_dist_callbacks.cli.rehearsal.rehearse import Rehearsal, Rehearsing
from keras_dist_callbacks.cli.rehearsal.runs import RecordedAttempt, RehearsedRun, Runner, Settings
from keras_dist_callbacks.launch import guard
from keras_dist_callbacks.rehearsal.plan import VARIABLE, Kill
from keras_dist_callbacks.storage.storage import Storage
from tests.support import ROOT
from tests.support.cli_backups import begin, commit, kdc
from tests.support.launching import is_alive, wait_for
from tests.support.states import random_states

FREQ, STEPS = 2, 8


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command works in a fork of its process, of which `kdc()` would see no output."""

    def run(work: Callable[[], int], clean_up: Callable[[], object]) -> int:
        code = work()
        clean_up()
        return code

    monkeypatch.setattr(guard, "run_guarded", run)
    monkeypatch.setattr(command, "_end_on_signals", lambda: None)


EXACT: dict[str, Any] = {"at": "epoch 2, batch 2 (step 6)", "found": []}
NOISY = {**EXACT, "found": [["input-table", "", [], ""]]}
NOISE = "the input changes a lookup table, which cannot be saved; fill tables before training"


class Runs:
    """Runs as they would be recorded and saved, each as the test wants it.

    Args:
        directory: Where they save.
        values: By run, what a variable is at each step; a number is the same at all steps.
        verdict: What each restart prints; None: it finds no backup.
        states: By run, topics of the state.
    """

    def __init__(
        self,
        directory: Path,
        values: dict[str, float] | None = None,
        verdict: dict[str, Any] | None = EXACT,
        states: dict[str, dict[str, Any]] | None = None,
        steps: dict[str, int] | None = None,
        *,
        validates: bool = True,
    ) -> None:
        self.directory, self.values, self.verdict = directory, values or {}, verdict
        self.states, self.steps, self.validates = states or {}, steps or {}, validates
        self.kills: list[Kill] = []
        self.broken: dict[str, dict[str, Any]] = {}
        self.replaced: dict[str, RehearsedRun] = {}

    def run(self, name: str, kills: Sequence[Kill] = ()) -> RehearsedRun:
        if name in self.replaced:
            return self.replaced[name]
        place = self.directory / name
        self.kills += kills
        self._save(name, begin(place), self.steps.get(name, STEPS))
        attempts = []
        for number, kill in enumerate([*kills, None]):
            records = self._records(place, kill, restarts=number > 0)
            codes = (0,) if kill is None else (-9,)
            attempts.append(RecordedAttempt(kill, codes, 100.0, 5.0, [records], self.directory / "output.log"))
        if name in self.broken:
            attempts[-1] = replace(attempts[-1], **self.broken[name])
        return RehearsedRun(name, tuple(attempts))

    def _save(self, name: str, store: Any, steps: int) -> None:
        kernel = np.full(3, self.values.get(name, 1.0))
        state = self.states.get(name, {})
        for step in range(FREQ, steps + 1, FREQ):
            position, age = Position("within", 1, step, step), time.time() - 105.05
            commit(store, step, {"variables/kernel@0": kernel + step}, position=position, states=(state,), age=age)
        commit(store, steps + 1, {"variables/kernel@0": kernel}, position=Position("end", 2, 0, steps), states=(state,))

    def _records(self, place: Path, kill: Kill | None, *, restarts: bool) -> list[dict[str, Any]]:
        fit = {
            "worker": 0, "place": str(place), "epochs": [0, 2], "asked": 9, "batches": 4, "save_freq": FREQ,
            "validates": self.validates, "continues": False,
        }  # fmt: skip
        found: list[dict[str, Any]] = [{"event": "place", "time": 103.0}, {"event": "open", "time": 104.0, "fit": 1}]
        if restarts and self.verdict is not None:
            found.append({"event": "restored", "time": 104.2, "fit": 1, **self.verdict})
        found += [{"event": "fit", "time": 104.5, "fit": 1, **fit}, {"event": "epoch", "time": 104.5, "fit": 1}]
        found += _steps()
        end = {"event": "end"} if kill is None else {"event": "kill", "place": kill}
        return [*found, {"time": 106.0, "fit": 1, **end}]


def _steps() -> list[dict[str, Any]]:
    """Steps of 10 ms, the first one of 500 ms; a backup holds training up for 4 ms, and the step after it for 6."""
    found = []
    for step in range(1, STEPS + 1):
        slow = step > FREQ and step % FREQ == 1
        seconds = 0.5 if step == 1 else 0.016 if slow else 0.010
        found.append({"event": "step", "time": 105.0, "fit": 1, "step": step, "seconds": seconds, "writing": False})
        if step % FREQ == 0:
            found.append({"event": "save", "time": 105.0, "fit": 1, "step": step, "seconds": 0.004})
    return found


def judge(runs: Runs, kills: int = 2) -> Rehearsal:
    runs.directory.mkdir(exist_ok=True)
    (runs.directory / "output.log").write_text("the last line\n")
    return Rehearsing(runs, kills, Storage.open)()  # type: ignore[arg-type]


def test_equal_runs_are_code_0(tmp_path: Path) -> None:
    found = judge(Runs(tmp_path))
    assert (found.exit_code, found.difference, found.problems) == (0, None, ())
    assert (
        found.summary
        == "resumed exactly: killed 2 times, and equal to the uninterrupted runs, bit for bit, at all 5 backups"
    )
    assert [resume.killed for resume in found.resumes] == ["right after a backup", "two steps after a backup"]


def test_a_difference_after_an_exact_resume_is_reported_as_a_bug(tmp_path: Path) -> None:
    found = judge(Runs(tmp_path, {"killed": 1.5}))
    assert found.exit_code == 1
    assert found.difference is not None
    assert (found.difference.step, found.difference.variables[0].name) == (FREQ, "kernel")
    assert (found.difference.variables[0].differ, found.difference.variables[0].largest) == (3, 0.5)
    (advice,) = found.advice
    assert "this is a bug in keras_dist_callbacks" in advice


def test_a_difference_after_a_conditional_resume_names_the_condition_about_what_differs(tmp_path: Path) -> None:
    found = [["traced", f"the callback {name}", ["x"], ""] for name in ("Other", "Own")]
    verdict = {**EXACT, "found": found}
    state = {"killed": {"callbacks/Own()": {"count": 3}}, "uninterrupted-1": {"callbacks/Own()": {"count": 4}}}
    state["uninterrupted-2"] = state["uninterrupted-1"]
    judged = judge(Runs(tmp_path, {"killed": 1.5}, verdict, state))
    assert judged.exit_code == 1
    (advice,) = judged.advice
    assert advice.startswith("this condition does not hold: the resume is exact if no function that TensorFlow traced ")
    assert "uses x of the callback Own; " in advice


def test_a_difference_after_a_resume_that_is_not_exact_gives_its_reason(tmp_path: Path) -> None:
    found = judge(Runs(tmp_path, {"killed": 1.5}, NOISY))
    assert (found.exit_code, found.advice) == (1, (f"the verdict was not exact: {NOISE}",))


def test_equal_runs_are_code_0_whatever_the_verdict_was(tmp_path: Path) -> None:
    found = judge(Runs(tmp_path, verdict=NOISY))
    assert found.exit_code == 0
    assert found.resumes[0].notes == (NOISE,)


def test_a_restart_that_finds_no_backup_is_code_1(tmp_path: Path) -> None:
    found = judge(Runs(tmp_path, verdict=None))
    assert (found.exit_code, found.advice) == (1, ())
    assert "found no backup" in found.problems[0]


def test_a_restart_that_fails_is_code_1_with_its_output(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.broken["killed"] = {"codes": (1,)}
    found = judge(runs)
    assert (found.exit_code, found.output) == (1, ("the last line",))
    assert "the restart after the kill two steps after a backup failed: it ended with exit code 1" in found.summary


def test_a_third_run_that_fails_before_it_is_killed_is_code_2(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    attempt = RecordedAttempt("backup", (1,), 100.0, 5.0, [[]], tmp_path / "output.log")
    runs.replaced["killed"] = RehearsedRun("killed", (attempt,))
    found = judge(runs)
    assert (found.exit_code, found.resumes) == (2, ())
    assert "fails by itself in its third run" in found.summary


def test_a_run_that_is_never_killed_is_code_2(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    ended = runs.run("uninterrupted-0").attempts
    runs.replaced["killed"] = RehearsedRun("killed", (replace(ended[0], kill="backup"),))
    found = judge(runs)
    assert found.exit_code == 2
    assert "never killed" in found.summary


def test_a_killed_run_with_other_steps_is_code_1(tmp_path: Path) -> None:
    found = judge(Runs(tmp_path, steps={"killed": STEPS - FREQ}))
    assert found.exit_code == 1
    assert found.difference is None
    assert any("only the first run has saved" in problem for problem in found.problems)


def test_uninterrupted_runs_that_differ_are_code_3_and_the_structure_is_compared_anyway(tmp_path: Path) -> None:
    apart = judge(Runs(tmp_path / "a", {"uninterrupted-2": 1.5}))
    assert (apart.exit_code, apart.between) == (3, "two uninterrupted runs")
    assert apart.difference is not None
    lost = judge(Runs(tmp_path / "b", {"uninterrupted-2": 1.5}, steps={"killed": STEPS - FREQ}))
    assert lost.exit_code == 1
    assert lost.problems


def test_uninterrupted_runs_of_different_lengths_are_code_3(tmp_path: Path) -> None:
    assert judge(Runs(tmp_path, steps={"uninterrupted-2": STEPS - FREQ})).exit_code == 3


def test_random_states_that_training_does_not_use_are_named_and_not_compared(tmp_path: Path) -> None:
    names = ("uninterrupted-1", "uninterrupted-2", "killed")
    states = {name: {"random/now": {**random_states(), "torch": f"{number}f"}} for number, name in enumerate(names)}
    found = judge(Runs(tmp_path / "a", states=states))
    assert (found.exit_code, found.unstable) == (0, ("random states: torch",))
    found = judge(Runs(tmp_path / "b", {"uninterrupted-2": 1.5}, states=states))
    assert (found.exit_code, found.between) == (3, "two uninterrupted runs")
    assert found.difference is not None
    assert [state.name for state in found.difference.states] == ["random states: torch"]


def test_values_of_objects_that_differ_in_any_two_runs_are_named_and_not_compared(tmp_path: Path) -> None:
    names = ("uninterrupted-1", "uninterrupted-2", "killed")
    states = {name: {"callbacks/Clock()": {"began": float(number)}} for number, name in enumerate(names)}
    found = judge(Runs(tmp_path / "a", states=states))
    assert (found.exit_code, found.unstable) == (0, ("callback Clock: began",))
    found = judge(Runs(tmp_path / "b", {"killed": 1.5}, states=states))
    assert found.exit_code == 1
    assert found.difference is not None
    assert found.difference.states == ()


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"codes": (3,)}, "the script fails by itself: it ended with exit code 3"),
        ({"codes": (), "timed_out": True}, "it still ran after 5 s"),
        ({"codes": (-11,)}, "signal 11"),
        ({"records": [[]]}, "no fit() with BackupAndRestore took part"),
        ({"records": [[{"event": "loop", "time": 1.0}]], "codes": (1,)}, "loops with Checkpointer are not rehearsed"),
    ],
)
@pytest.mark.parametrize("name", ["uninterrupted-1", "uninterrupted-2"])
def test_a_script_of_which_nothing_can_be_shown_is_code_2(
    tmp_path: Path, broken: dict[str, Any], why: str, name: str
) -> None:
    runs = Runs(tmp_path)
    runs.broken[name] = broken
    found = judge(runs)
    assert found.exit_code == 2
    assert why in found.summary
    assert runs.kills == []


@pytest.mark.parametrize(
    ("kills", "validates", "expected"),
    [
        (1, True, ["backup"]),
        (4, True, ["backup", "steps", "validation", "end"]),
        (4, False, ["backup", "steps", "end"]),
        (3, False, ["backup", "steps", "end"]),
    ],
)
def test_kills_come_in_their_order_and_the_one_in_validation_needs_one(
    tmp_path: Path, kills: int, expected: list[str], *, validates: bool
) -> None:
    runs = Runs(tmp_path, validates=validates)
    assert judge(runs, kills).exit_code == 0
    assert runs.kills == expected


def test_costs_follow_from_the_recorded_times(tmp_path: Path) -> None:
    costs = judge(Runs(tmp_path)).costs
    assert costs is not None
    assert costs.step_seconds == pytest.approx(0.010)
    # four backups: the last one has no step after it
    assert costs.delay_seconds == pytest.approx((3 * 0.010 + 0.004) / 4)
    assert costs.save_freq == 43  # 8.5 ms are 2 % of 42.5 steps
    assert costs.restart_seconds == pytest.approx({"import": 3.0, "start": 1.0, "restore": 0.5, "trace": 0.49})
    assert costs.written_seconds == pytest.approx(0.054, abs=0.01)
    assert costs.lost_steps == 21.5
    assert costs.lost_seconds == pytest.approx(21.5 * 0.010 + 4.99)
    assert costs.state_bytes == 24


def test_a_result_is_printed_for_people_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from keras_dist_callbacks.cli.formatting import Page

    found = replace(
        judge(Runs(tmp_path, {"killed": 1.5})),
        files=("/somewhere/metrics.csv",),
        refused=("/there",),
        kept=("/scratch",),
    )
    report.show_rehearsal(Page(), found)
    shown = capsys.readouterr().out
    for part in (
        "the killed run differs", "epoch 2, batch 2 (step 2)", "kernel: 3 of 3 values differ, by 0.5 at most",
        "right after a backup", "/somewhere/metrics.csv", "/there", "measured in these", "save_freq", "/scratch",
    ):  # fmt: skip
        assert part in shown, shown


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["no-such-script.py"], "script not found"),
        (["--steps", "3", "x.py"], "--steps"),
        (["--epochs", "1", "x.py"], "--epochs"),
        (["--kills", "5", "x.py"], "--kills"),
        (["--workers", "0", "x.py"], "--workers"),
        ([], "name a script"),
        (["-m", "no_such_module"], "no module is named"),
        (["-m", "--", "true"], "name a script"),
        (["--", "no-such-program"], "no such program"),
        (["--scratch", "nowhere://x", "script.py"], "nowhere"),
    ],
)
def test_wrong_usage_is_code_2_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("raise SystemExit('it was run')")
    result = kdc("rehearse", *arguments)
    assert result.exit_code == 2
    assert why in result.stderr + result.stdout
    assert "it was run" not in result.output


@pytest.mark.parametrize("variable", [VARIABLE, "TF_CONFIG"])
def test_a_rehearsal_in_a_rehearsal_or_in_a_cluster_is_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    monkeypatch.setenv(variable, "{}")
    result = kdc("rehearse", script)
    assert (result.exit_code, f"{variable} is set" in result.stderr) == (2, True)


# --- with real processes, which need no TensorFlow


def runner(tmp_path: Path, code: str, *words: str, timeout: float = 60.0, in_place: bool = False) -> Runner:
    """Runs of a script in a directory of its own, which is the working directory."""
    source, own = tmp_path / "project", tmp_path / "own"
    source.mkdir()
    own.mkdir()
    (source / "script.py").write_text(code)
    (source / "mine.txt").write_text("of the user")
    command = (*start.COMMAND, "script.py", *words)
    env = {"PYTHONPATH": str(ROOT)}
    return Runner(
        Settings(command, 4, 2, 1, timeout, str(tmp_path / "scratch"), own, None if in_place else source, env)
    )


RECORD = """
import os, signal, sys
from pathlib import Path
from keras_dist_callbacks.rehearsal.plan import plan_in_force
from keras_dist_callbacks.rehearsal.records import note
from keras_dist_callbacks.rehearsal.scratch import place_of
plan = plan_in_force()
print(os.getcwd(), Path("mine.txt").read_text(), flush=True)
print(place_of("/real")[0], flush=True)
Path("mine.txt").write_text(f"changed before the kill {plan.kill}")
note(plan, "fit", worker=0, fit=1)
if plan.kill:
    note(plan, "kill", place=plan.kill)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_a_run_has_a_copy_of_the_working_directory_and_its_restarts_share_it(tmp_path: Path) -> None:
    runs = runner(tmp_path, RECORD)
    first, second = runs.run("one", ["backup", "steps"]), runs.run("two")
    assert [attempt.kill for attempt in first.attempts] == ["backup", "steps", None]
    assert [attempt.codes for attempt in first.attempts] == [(-9,), (-9,), (0,)]
    assert [attempt.was_killed for attempt in first.attempts] == [True, True, False]
    assert not any(attempt.has_failed for attempt in (*first.attempts, *second.attempts))
    said = [attempt.log.read_text().split("\n") for attempt in (*first.attempts, *second.attempts)]
    place = str(tmp_path / "own/work" / (tmp_path / "project").relative_to("/"))  # the same in all runs
    texts = ("of the user", "changed before the kill backup", "changed before the kill steps", "of the user")
    assert [lines[0] for lines in said] == [f"{place} {text}" for text in texts]
    assert [lines[1].partition("real-")[0] for lines in said] == [f"{tmp_path}/scratch/{n}/" for n in ONE_AND_TWO]
    assert (tmp_path / "project/mine.txt").read_text() == "of the user"
    assert not (tmp_path / "own/work").exists()


ONE_AND_TWO = ("one", "one", "one", "two")


@pytest.mark.process
def test_in_place_the_files_that_a_script_changes_are_its_own_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os; open('before.txt', 'w').close(); os.remove('mine.txt')"
    runs = runner(tmp_path, code, in_place=True)
    monkeypatch.chdir(tmp_path / "project")
    run = runs.run("one")
    files = [r["path"] for process in run.attempts[0].records for r in process if r["event"] == "file"]
    assert files == [str(tmp_path / "project" / name) for name in ("before.txt", "mine.txt")]
    assert sorted(path.name for path in (tmp_path / "project").iterdir()) == ["before.txt", "script.py"]


@pytest.mark.process
def test_a_process_that_takes_too_long_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    code = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, file=open(sys.argv[1], 'w'))"
    run = runner(tmp_path, f"{code}; time.sleep(60)", str(tmp_path / "pid"), timeout=3.0).run("one")
    assert (run.attempts[0].timed_out, run.attempts[0].codes, run.failed) == (True, (), run.attempts[0])
    deadline = time.monotonic() + 30.0
    while is_alive(int((tmp_path / "pid").read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.process
def test_a_script_that_fails_is_code_2_with_the_end_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("script.py").write_text("raise SystemExit('this script fails by itself')")
    printed = kdc("rehearse", "--json", "script.py")
    assert printed.exit_code == 2
    found = json.loads(printed.stdout)
    assert found["summary"] == "the script fails by itself: it ended with exit code 1"
    assert found["output"] == ["this script fails by itself"]
    result = kdc("rehearse", "--", sys.executable, "-c", "print('hello')")
    assert result.exit_code == 2
    assert "no fit() with BackupAndRestore took part" in result.stdout


class Rehearsed:
    """A command whose script sleeps, in a process of its own."""

    def __init__(self, directory: Path, *options: str) -> None:
        script, self.noted = directory / "script.py", directory / "noted"
        script.write_text(
            "import os, subprocess, sys, time; from pathlib import Path\n"
            "child = subprocess.Popen(['sleep', '120'], start_new_session=True)\n"
            "with open(sys.argv[1], 'a') as file:\n"
            "    print(os.environ['KDC_REHEARSAL'], os.getpid(), child.pid, file=file)\n"
            "time.sleep(120)"
        )
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(directory)}
        words = [sys.executable, "-m", "keras_dist_callbacks.cli", "rehearse", *options, str(script), str(self.noted)]
        (directory / "project").mkdir()
        with (directory / "said").open("wb") as said:
            self.process = subprocess.Popen(words, env=env, cwd=directory / "project", stdout=said, stderr=said)

    def found(self, count: int) -> tuple[Path, list[int]]:
        """The plan, and what so many processes of the script have started, once they have."""
        wait_for(lambda: self.noted.exists() and self.noted.read_text().count("\n") == count, 60.0)
        lines = [line.split() for line in self.noted.read_text().splitlines()]
        return Path(lines[0][0]), [int(pid) for line in lines for pid in line[1:]]


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_command_that_is_terminated_ends_its_processes_and_its_plan(tmp_path: Path, number: int) -> None:
    command = Rehearsed(tmp_path)
    plan, pids = command.found(1)
    assert plan.exists()
    command.process.send_signal(number)
    assert command.process.wait(60) == 128 + number
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert not any(map(is_alive, pids))
    assert not plan.exists()
    assert not list(tmp_path.glob("kdc-*"))


@pytest.mark.kill
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_of_a_command_that_is_killed_stays(tmp_path: Path, workers: int) -> None:
    command = Rehearsed(tmp_path, "--workers", str(workers))
    plan, pids = command.found(workers)
    command.process.kill()
    assert command.process.wait(60) == -signal.SIGKILL
    wait_for(lambda: not any(map(is_alive, pids)) and not plan.exists(), 10.0)
    wait_for(lambda: not list(tmp_path.glob("kdc-*/rehearsal-*")), 10.0)
    assert command.noted.read_text().count("\n") == workers  # none was started after it
    assert [list(place.iterdir()) for place in tmp_path.glob("kdc-*")] == [[*tmp_path.glob("kdc-*/lock")]]


# --- a real rehearsal


@pytest.mark.kill
@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_digits_example_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = kdc("rehearse", "--json", "--steps", 8, ROOT / "examples/train_digits.py", "runs/digits")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert "bit for bit" in found["summary"]
    assert [resume["verdict"] for resume in found["resumes"]] == ["exact", "exact"]
    assert found["costs"]["save_freq"] >= 1
    assert (found["files"], found["refused"], found["kept"]) == ([], [], [])
    assert list(tmp_path.iterdir()) == []

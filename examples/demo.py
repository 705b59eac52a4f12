"""`make demo`: kills a two-worker training twice and compares its end with that of an uninterrupted run.

`train_digits.py`, the user's script, is run (a) uninterrupted and (b) with one of its workers killed by SIGKILL
in the middle of an epoch, restarted, killed again in the same epoch, and restarted. A restart resumes from the last
backup: the steps after it are trained again. Then the final weights, optimizer, metrics and History of both are
compared bit by bit, and so is the loss of each step. `losses.png` in the directory shows the losses of both runs,
`report.html` what `kdc report` shows of the killed one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from keras_dist_callbacks import KdcError
from keras_dist_callbacks.testing import Attempt, LocalCluster, Step, compare_runs, read_steps, run_until_done

WORKERS = 2
TOTAL_STEPS = 4 * 25  # epochs and steps of train_digits.py
KILLS = (  # the first directly after a backup, the second two steps after one
    "phase=train_batch_begin,epoch=1,batch=10,worker=1",
    "phase=train_batch_begin,epoch=1,batch=17,worker=1",
)
TIMEOUT = 3600.0  # only against a hang: how fast the machine is must not matter
PARTS = ("uninterrupted", "killed")
PICTURE, REPORT = "losses.png", "report.html"
console = Console(highlight=False)


@dataclass(frozen=True)
class Run:
    """What one of the two trainings left."""

    directory: Path
    attempts: list[Attempt]

    def starts(self) -> list[list[Step]]:
        """The steps of worker 1, those of each start of the job together."""
        by_process: dict[int, list[Step]] = {}
        for step in read_steps(self.directory / "steps-worker1"):
            by_process.setdefault(step.pid, []).append(step)
        return list(by_process.values())

    def losses(self, worker: int) -> list[dict[tuple[int, int], float]]:
        """By epoch and batch the loss that a worker has logged, in each start of the job."""
        by_process: dict[str, dict[tuple[int, int], float]] = {}
        for line in (self.directory / f"losses-worker{worker}").read_text(encoding="ascii").splitlines():
            pid, epoch, batch, loss = line.split()
            by_process.setdefault(pid, {})[int(epoch), int(batch)] = float.fromhex(loss)
        return list(by_process.values())

    def recording(self, worker: int) -> Path:
        """Where a worker has recorded what it ended with."""
        return self.directory / f"final-worker{worker}"


class DemoError(Exception):
    """The demo cannot continue; the message has the reason and shows the logs."""


class LossLog(keras.callbacks.Callback):
    """Appends `pid epoch batch loss` to a file after each step: the loss that Keras prints, the epoch's mean so far."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers the epoch."""
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes a line."""
        with self.path.open("a", encoding="ascii") as file:
            file.write(f"{os.getpid()} {self.epoch} {batch} {float((logs or {})['loss']).hex()}\n")


def worker(directory: Path, kill: str | None) -> None:
    """What each process of the clusters runs: the user's script, watched."""
    import train_digits

    from keras_dist_callbacks.advanced import Cluster
    from keras_dist_callbacks.testing import KillAt, StepLog, record_run

    index = Cluster.detect().worker_index
    watchers = [StepLog(directory / "steps-worker{worker}"), LossLog(directory / f"losses-worker{index}")]
    history = train_digits.train(
        str(directory / "job"), extra_callbacks=[*watchers, *([KillAt.from_string(kill)] if kill else [])]
    )
    record_run(directory / f"final-worker{index}", history.model, history)


def run(directory: Path, kills: Sequence[str], progress: Progress, title: str) -> Run:
    """Runs the training, restarting it after each kill."""
    directory.mkdir(parents=True)
    task = progress.add_task(title, total=TOTAL_STEPS)
    say(f"{title}: {WORKERS} workers, logs in {directory / 'logs'}", progress)
    command = [sys.executable, __file__, str(directory), "--worker"]
    with LocalCluster(command, WORKERS, directory / "logs") as cluster:
        try:
            attempts = run_until_done(
                cluster,
                max_restarts=len(kills),
                timeout=TIMEOUT,
                extra_args=[["--kill", kill] for kill in kills],
                on_tick=Ticker(directory / "steps-worker1", progress, task, title),
            )
        except KdcError as error:
            raise DemoError(str(error)) from error
        if not attempts[-1].succeeded:
            raise DemoError(f"{title}: the workers ended with {list(attempts[-1].returncodes)}\n{cluster.tails()}")
        if len(attempts) != len(kills) + 1:
            raise DemoError(f"{title}: {len(kills)} kills, but {len(attempts)} starts\n{cluster.tails()}")
    progress.update(task, completed=TOTAL_STEPS)
    seconds = " + ".join(f"{attempt.seconds:.0f}" for attempt in attempts)
    say(f"{title}: finished after {seconds} s", progress)
    return Run(directory, attempts)


class Ticker:
    """Shows how far the training is, and each start of its processes."""

    def __init__(self, steps: Path, progress: Progress, task: TaskID, title: str) -> None:
        self.steps, self.progress, self.task, self.title = steps, progress, task, title
        self.looked = 0.0
        self.pid: int | None = None

    def __call__(self) -> None:
        """Reads the steps that were run, a few times a second."""
        if time.monotonic() - self.looked < 0.2:
            return
        self.looked = time.monotonic()
        steps = read_steps(self.steps)
        if not steps:
            return
        self.progress.update(self.task, completed=len({step[1:] for step in steps}))
        if steps[-1].pid != self.pid:
            first = next(step for step in steps if step.pid == steps[-1].pid)
            word = "starts" if self.pid is None else "was killed; it resumes"
            say(f"{self.title}: {word} at {where(first)}", self.progress)
            self.pid = steps[-1].pid


def say(text: str, progress: Progress) -> None:
    progress.console.print(text, soft_wrap=True)


def where(step: Step) -> str:
    """A step as people count, from 1."""
    return f"epoch {step.epoch + 1} step {step.batch + 1}"


def table(plain: Run, killed: Run) -> Table:
    found = Table("run", "first step", "last step", "steps", "trained again")
    for name, one in zip(PARTS, (plain, killed), strict=True):
        done: set[tuple[int, int]] = set()
        for number, (steps, attempt) in enumerate(zip(one.starts(), one.attempts, strict=True), start=1):
            places = {(step.epoch, step.batch) for step in steps}
            label = f"{name} #{number}" if len(one.attempts) > 1 else name
            end = "finished" if attempt.succeeded else "SIGKILL"
            last = f"{where(steps[-1])}, {end}"
            found.add_row(label, where(steps[0]), last, str(len(steps)), str(len(places & done)))
            done |= places
        found.add_section()
    return found


def verdict(plain: Run, killed: Run) -> list[str]:
    """Prints what is identical; returns what is not."""
    differences = [
        f"worker {i}: {line}" for i in range(WORKERS) for line in compare_runs(plain.recording(i), killed.recording(i))
    ]
    for what, mark in (("final weights, optimizer and metrics", ": variable "), ("History", ": history ")):
        same = not any(mark in line for line in differences)
        report(what, same)
    found = [line for i in range(WORKERS) for line in different_losses(plain, killed, i)]
    report("loss of each step, also of those that were trained again", not found)
    return differences + found


def report(what: str, same: bool) -> None:
    console.print(f"{what}: {'[green]bit-identical' if same else '[red]DIFFERENT'} on {WORKERS} workers")


def different_losses(plain: Run, killed: Run, worker: int) -> list[str]:
    """One line for each step of the killed run whose loss is not that of the uninterrupted one."""
    (expected,) = plain.losses(worker)
    logged = [step for start in killed.losses(worker) for step in start.items()]
    wrong = [
        f"worker {worker}: loss {loss!r} in epoch {epoch + 1} step {batch + 1}, not {expected.get((epoch, batch))!r}"
        for (epoch, batch), loss in logged
        if loss != expected.get((epoch, batch))
    ]
    missing = len(expected.keys() - dict(logged).keys())
    return [*wrong, *([f"worker {worker}: {missing} steps without a loss"] if missing else [])]


def draw(plain: Run, killed: Run, target: Path) -> None:
    """Draws the losses of the killed run, one color for each start, on top of those of the uninterrupted one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    (expected,), starts = plain.losses(1), killed.losses(1)
    numbers = {place: number for number, place in enumerate(sorted(expected), start=1)}
    figure, (complete, close) = pyplot.subplots(1, 2, figsize=(9, 3.4), width_ratios=(3, 2))
    for axes in (complete, close):
        axes.plot(numbers.values(), [expected[place] for place in numbers], color="0.8", linewidth=8, label=PARTS[0])
        for count, losses in enumerate(starts):
            steps, values = [numbers[place] for place in losses], list(losses.values())
            label = f"restart {count}" if count else "killed twice: first start"
            size = 6 - 2 * count if axes is close else 0  # those that were trained again are seen one in the other
            axes.plot(steps, values, "o-", color=f"C{count}", linewidth=1.5, markersize=size, label=label)
            if count < len(starts) - 1:
                axes.plot(steps[-1:], values[-1:], "kx", markersize=11, label="" if count else "SIGKILL")
        axes.set_xlabel("step")
    complete.set_ylabel("loss, the epoch's mean so far")
    complete.legend(fontsize=8)
    kills = [numbers[max(losses)] for losses in starts[:-1]]
    shown = [expected[place] for place, number in numbers.items() if kills[0] - 5 < number < kills[-1] + 6]
    margin = 0.1 * (max(shown) - min(shown))
    close.set(xlim=(kills[0] - 5, kills[-1] + 6), ylim=(min(shown) - margin, max(shown) + margin))
    close.set_title("around the kills", fontsize=10)
    figure.tight_layout()
    figure.savefig(target, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def show(plain: Run, killed: Run, target: Path) -> None:
    try:
        draw(plain, killed, target)
    except ModuleNotFoundError as error:
        console.print(f"no picture of the losses: {error.name} is not installed")
    else:
        console.print(f"losses: {target}", soft_wrap=True)


def report_of(killed: Run, target: Path) -> None:
    """Lets `kdc report` show the killed run; it says what was written, or which package is missing."""
    command = [sys.executable, "-m", "keras_dist_callbacks.cli", "report", str(killed.directory / "job/backup")]
    subprocess.run([*command, "--out", str(target)], check=False)


def main(directory: Path) -> int:
    began = time.monotonic()
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        empty(directory)
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            plain, killed = (
                run(directory / part, kills, progress, f"{part} run")
                for part, kills in zip(PARTS, ((), KILLS), strict=True)
            )
        console.print(table(plain, killed))
        counts = [sum(map(len, one.starts())) for one in (plain, killed)]
        console.print(
            f"steps trained: {counts[0]} uninterrupted, {counts[1]} killed (the steps between the last backup and a "
            "SIGKILL are trained again, with the same result)",
            soft_wrap=True,
        )
        differences = verdict(plain, killed)
        show(plain, killed, directory / PICTURE)
        report_of(killed, directory / REPORT)
    except DemoError as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 1
    for line in differences[:20]:
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{'FAILED' if differences else 'ok'}, {time.monotonic() - began:.0f} s")
    return 1 if differences else 0


def empty(directory: Path) -> None:
    """Removes what an earlier demo left, and nothing else."""
    found = [path.name for path in directory.iterdir()] if directory.exists() else []
    others = [name for name in found if name not in (*PARTS, PICTURE, REPORT)]
    if others:
        raise DemoError(f"{directory} holds files that are not the demo's ({others[0]}, ...): give another directory")
    shutil.rmtree(directory, ignore_errors=True)


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "directory", type=Path, nargs="?", default=Path("runs/demo"), help="what a demo left is removed"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--kill", help=argparse.SUPPRESS)
    return parser.parse_args(given)


if __name__ == "__main__":
    arguments = parse()
    if arguments.worker:
        worker(arguments.directory, arguments.kill)
    else:
        sys.exit(main(arguments.directory))

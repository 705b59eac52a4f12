"""`python -m benchmarks.tensorboard DIR`: what TensorBoard shows of a training that is killed three times.

Keras' own callbacks and ours are killed after the same steps, next to a run that is not. Three readers say how many
points of a curve they show, and how many of these are of a step that was shown already: `EventAccumulator`, and
TensorBoard with each of its loaders, opened before the first kill and opened at the end. `--picture FILE.png` has a
browser, chromium, show the charts.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tensorboard_job import EPOCHS, STEPS

KILLS = (73, 138, 222)
LOADERS = {"Python loader": "false", "data server": "true"}
TAGS = (("train", "batch_loss"), ("train", "epoch_loss"), ("validation", "evaluation_loss_vs_iterations"))
RUNS = {
    "keras": ("keras", KILLS, "Keras' callbacks, killed 3 times"),
    "kdc": ("kdc", KILLS, "kdc's callbacks, killed 3 times"),
    "uninterrupted": ("kdc", (), "uninterrupted"),
}
_ENV = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
_TIMEOUT_SECONDS = 120.0
_RELOAD_SECONDS = 1
_ALL = 100_000  # more points than there are: else a sample is shown


def train(kind: str, directory: Path, kill: int = 0) -> int:
    """Runs the training once; returns its exit code."""
    command = [sys.executable, "-m", "benchmarks.tensorboard_job", kind, str(directory), "--kill", str(kill)]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run(command, env=_ENV, check=False, **quiet).returncode  # noqa: S603 - our own program


class Board:
    """TensorBoard's own server, as it is asked by its pages.

    Args:
        directory: Whose event files it shows.
        loader: One of `LOADERS`.
    """

    def __init__(self, directory: Path, loader: str) -> None:
        self._said = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 - closed with the process
        options = ["--host", "127.0.0.1", "--port", "0", "--reload_interval", str(_RELOAD_SECONDS)]
        options += ["--load_fast", LOADERS[loader], "--samples_per_plugin", f"scalars={_ALL}"]
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(directory), *options]
        with open(self._said.name, "w") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - an installed program
                command, env=_ENV, stdout=subprocess.DEVNULL, stderr=errors
            )
        self.url = ""

    def __enter__(self) -> Board:
        """Waits until it answers."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self.url:
            self._said.seek(0)
            said = self._said.read()
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"TensorBoard did not start: {said}")
            if "http://" in said.partition("Press CTRL")[0]:
                self.url = "http://" + said.partition("http://")[2].split("/")[0]
            time.sleep(0.05)
        return self

    def __exit__(self, *error: object) -> None:
        """Stops it."""
        self._process.terminate()
        self._process.wait()
        self._said.close()

    def steps(self, run: str, tag: str) -> list[int]:
        """Returns the steps of the points of a curve, in the order in which they are joined."""
        query = urllib.parse.urlencode({"run": run, "tag": tag})
        try:
            with urllib.request.urlopen(f"{self.url}/data/plugin/scalars/scalars?{query}") as answer:  # noqa: S310
                return [step for _, step, _ in json.load(answer)]
        except urllib.error.HTTPError:  # nothing is known of it yet
            return []

    def settled(self, run: str, tag: str) -> list[int]:
        """Returns the steps once three looks in a row, a reload apart, have found the same."""
        looks: list[list[int]] = []
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while len(looks) < 3 or not looks[-1] == looks[-2] == looks[-3] != []:
            if time.monotonic() > deadline:
                return []
            time.sleep(1.5 * _RELOAD_SECONDS)
            looks.append(self.steps(run, tag))
        return looks[-1]


def accumulated(directory: Path, tag: str) -> list[int]:
    """Returns the steps of a curve as `EventAccumulator` has them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory), size_guidance={"tensors": 0}).Reload()
    return [event.step for event in found.Tensors(tag)] if tag in found.Tags()["tensors"] else []


def twice(steps: Sequence[int]) -> int:
    """Returns how many points are of a step that has one already."""
    return len(steps) - len(set(steps))


def folds(steps: Sequence[int]) -> int:
    """Returns how often a curve goes back."""
    return sum(later <= earlier for earlier, later in itertools.pairwise(steps))


def _rows(directory: Path, boards: dict[str, Board], opened: str) -> Iterator[str]:
    for run in RUNS:
        for part, tag in TAGS:
            for loader, board in boards.items():
                yield _row(run, tag, f"{loader}, {opened}", board.settled(f"{run}/logs/{part}", tag))
            if opened == "opened at the end":
                yield _row(run, tag, "EventAccumulator", accumulated(directory / run / "logs" / part, tag))


def _row(run: str, tag: str, reader: str, steps: Sequence[int]) -> str:
    whole = EPOCHS if tag == "epoch_loss" else EPOCHS * STEPS
    return (
        f"{run:14} {tag:30} {reader:34} {len(steps):5} points, {twice(steps):4} of a step twice, {folds(steps)} folds, "
        f"up to step {max(steps, default=0)} of {whole}"
    )


def main() -> None:
    """Trains, reads, prints, and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--picture", type=Path, help="a PNG file, of what a browser shows")
    asked = parser.parse_args()
    for run in RUNS:
        shutil.rmtree(asked.directory / run, ignore_errors=True)
    with contextlib.ExitStack() as open_boards:
        asked.directory.mkdir(parents=True, exist_ok=True)
        boards = {loader: open_boards.enter_context(Board(asked.directory, loader)) for loader in LOADERS}
        for run, (kind, kills, _) in RUNS.items():
            for kill in (*kills, 0):
                code = train(kind, asked.directory / run, kill)
                print(f"{run}: ended with {code}", flush=True)
                for board in boards.values():
                    board.settled(f"{run}/logs/train", TAGS[0][1])
        print(*_rows(asked.directory, boards, "opened before the first kill"), sep="\n")
    with contextlib.ExitStack() as open_boards:
        boards = {loader: open_boards.enter_context(Board(asked.directory, loader)) for loader in LOADERS}
        print(*_rows(asked.directory, boards, "opened at the end"), sep="\n")
    if asked.picture is not None:
        _show(asked.directory, asked.picture)


def _show(directory: Path, target: Path) -> None:
    from benchmarks.tensorboard_picture import draw

    with contextlib.ExitStack() as open_boards:

        def chart(loader: str, run: str) -> tuple[str, str]:
            board = open_boards.enter_context(Board(directory / run / "logs", loader))
            return f"{RUNS[run][2]}: {loader}", board.url

        draw([[chart(loader, run) for run in RUNS] for loader in LOADERS], target)


if __name__ == "__main__":
    main()

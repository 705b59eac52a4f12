"""`python -m benchmarks.pictures`: draws the pictures in `docs/`, of runs and of the stored results of `make bench`.

- `run`: a training of digits, slowed down and killed three times under `kdc launch`: `kdc watch` while it trains,
  `kdc ls` after it, and the timeline of `kdc report`.
- `demo`: the losses that `make demo` draws.
- `costs`: of `results/`; nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from benchmarks import plot
from benchmarks.config import HERE
from benchmarks.estimates import Blocks
from benchmarks.report import RESULTS
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cli import reporting, watching
from keras_dist_callbacks.storage.storage import Storage

DOCS = HERE.parent / "docs"
_KDC = [sys.executable, "-m", "keras_dist_callbacks.cli"]
_JOB = HERE / "pictures_job.py"
_BACKUP, _CHECKPOINTS = "digits/backup", "digits/checkpoints"
_STARTS, _WATCHED_FROM = 4, 260  # of the job: its last start, and a step in it
_TIMEOUT_SECONDS = 1200


def main() -> None:
    """Draws what was asked for."""
    kinds = {"run": run, "demo": demo, "costs": costs}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", choices=[[], *kinds], metavar="KIND", help=f"{', '.join(kinds)}; all")
    for kind in parser.parse_args().only or kinds:
        kinds[kind]()


def run() -> None:
    """Runs the job, and draws what `kdc` shows of it."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        store = BackupStore(Storage.open(directory / _BACKUP))
        with (directory / "log").open("wb") as log:
            command = [*_KDC, "launch", str(_JOB), "digits"]
            job = subprocess.Popen(command, cwd=scratch, stdout=log, stderr=log)  # noqa: S603 - our own programs
        try:
            _wait_for_last_start(directory / _BACKUP, job)
            terminal(DOCS / "kdc_watch.svg", directory, 80, ["watch", _BACKUP, "--once"])
            if job.wait(_TIMEOUT_SECONDS):
                raise RuntimeError((directory / "log").read_text())
        finally:
            job.kill()
        terminal(DOCS / "kdc_ls.svg", directory, 100, ["ls", _BACKUP], ["ls", _CHECKPOINTS])
        figure = reporting.timeline(reporting.gather(store))
        figure.savefig(DOCS / "report.png", dpi=100, metadata={"Software": None})


def _wait_for_last_start(backup: Path, job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    watch = watching.Watch(BackupStore(Storage.open(backup)))
    while job.poll() is None and time.monotonic() < deadline:
        look = watch.look(time.time())
        if look.starts == _STARTS and look.step >= _WATCHED_FROM:
            time.sleep(1.0)  # a backup that has just been made puts nothing at risk
            return
        time.sleep(0.2)
    raise RuntimeError("the job never came to its last start")


def terminal(target: Path, directory: Path, width: int, *commands: list[str]) -> None:
    """Draws commands of `kdc` and what they print.

    Args:
        target: The file.
        directory: Where they run.
        width: Columns of the terminal.
        *commands: Their arguments.
    """
    env = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(width)}
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=width, file=nowhere, force_terminal=True)
        for number, arguments in enumerate(commands):
            words = [*_KDC, *arguments]
            shown = subprocess.run(words, cwd=directory, env=env, check=True, capture_output=True, text=True)  # noqa: S603
            console.print(Text("\n" * (number > 0) + f"$ kdc {' '.join(arguments)}", "bold"))
            for line in map(Text.from_ansi, shown.stdout.splitlines()):
                line.rstrip()
                console.print(line)
        console.print()  # or what hangs below the last line is cut off
    svg = console.export_svg(title="")
    target.write_text(
        re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    )  # a font of another host


def demo() -> None:
    """Runs the demo, and keeps its picture."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "demo"
        command = [sys.executable, str(HERE.parent / "examples" / "demo.py"), str(directory)]
        subprocess.run(command, check=True)  # noqa: S603 - our own program
        shutil.copyfile(directory / "losses.png", DOCS / "killed_twice.png")


def costs() -> None:
    """Draws what a save costs, next to others'."""
    stored = {name: json.loads((HERE / RESULTS / f"{name}.json").read_text()) for name in ("blocking", "all_in")}
    found = {name: [(o["case"], Blocks(o)) for o in one["outcomes"] if "blocks" in o] for name, one in stored.items()}
    plot.costs(found["blocking"], found["all_in"], DOCS / "costs.png")


if __name__ == "__main__":
    main()

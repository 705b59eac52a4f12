"""`python -m benchmarks.goodput`: training time over wall time of a job that is killed again and again.

Arms: a shell loop, `kdc launch`, `kdc launch --standby`, and Keras' own callback in a shell loop. One process is killed
some seconds after each of its first starts. With several rounds, the arms take turns; medians and ranges end it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import machine

_JOB = str(Path(__file__).with_name("goodput_job.py"))
_KDC = [sys.executable, "-m", "keras_dist_callbacks.cli"]
_PARTS = ("start", "import", "join", "restore", "trace")
_TIMEOUT_SECONDS = 1800
ARMS = ("uninterrupted", "shell loop", "kdc launch", "kdc launch --standby", "Keras in a shell loop")


def main() -> None:
    """Measures all arms, prints a line for each and one for its median; writes what was measured to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100, help="of each epoch")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--after", type=float, default=20.0, help="seconds from a start to its kill")
    parser.add_argument("--arm", action="append", choices=ARMS, help="default: all")
    parser.add_argument("--rounds", type=int, default=1, help="of all arms, each in another order")
    parser.add_argument("--out", type=Path, help="a JSON file, as in benchmarks/results")
    asked = parser.parse_args()
    outcomes = [found for number in range(asked.rounds) for found in _round(asked, number)]
    for arm in ARMS:
        if shares := [found["goodput"] for found in outcomes if found["arm"] == arm and "goodput" in found]:
            middle, spread = round(statistics.median(shares), 3), [min(shares), max(shares)]
            print(
                json.dumps({"arm": arm, "median_goodput": middle, "range": spread, "rounds": len(shares)}), flush=True
            )
    if asked.out is not None:
        stored = {"machine": machine.describe(Path(tempfile.gettempdir())), "outcomes": outcomes}
        asked.out.write_text(json.dumps(stored, indent=1) + "\n")


def _round(asked: argparse.Namespace, number: int) -> Iterator[dict[str, Any]]:
    """The goodput of each arm with its parts, of which each is printed too."""
    arms = [arm for arm in asked.arm or ARMS if arm != "uninterrupted"]
    random.Random(number).shuffle(arms)  # noqa: S311 - what one arm leaves to the next must not always be the same
    training, code = 0.0, machine.measured_code()
    for arm in ("uninterrupted", *arms):  # how long training takes, of which the goodput is a share
        found: dict[str, Any] = {"arm": arm, "round": number, "code": code}
        try:
            found |= _measure(arm, asked)
        except RuntimeError as error:  # Keras' file may be torn by a kill: then no restart can read it
            found["failed"] = str(error)
        else:
            training = training or found["training"]
            found["goodput"] = round(training / found["wall"], 3)
        print(json.dumps(found), flush=True)
        yield found


def _command(arm: str, arguments: list[str]) -> list[str]:
    if arm.startswith("kdc launch"):
        return [
            *_KDC,
            "launch",
            *(["--standby"] if "--standby" in arm else []),
            "--max-restarts",
            "20",
            _JOB,
            *arguments,
        ]
    script = [*_KDC, "run", _JOB, *arguments]
    return ["sh", "-c", 'until "$@"; do [ $? -eq 137 ] || exit 1; done', "sh", *script]  # 137: killed


def _measure(arm: str, asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        log.touch()
        kind = "keras" if arm.startswith("Keras") else "kdc"
        sizes = [str(asked.epochs), str(asked.steps), str(asked.step_seconds)]
        command = _command(arm, [str(log), kind, f"{directory}/backup", *sizes])
        env = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
        began = time.time()
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)  # noqa: S603 - our own programs
        kills = _kill(process, log, 0 if arm == "uninterrupted" else asked.kills, asked.after)
        wall = time.time() - began
        if process.returncode != 0:
            raise RuntimeError(f"{arm}: exit code {process.returncode}")
        return {"wall": round(wall, 1), **_parts(_events(log), kills)}


def _kill(process: subprocess.Popen[bytes], log: Path, count: int, after: float) -> list[float]:
    """Kills the training so many times; returns when, once the job is done."""
    kills: list[float] = []
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
        starts = [(moment, pid) for part, moment, pid in _events(log) if part == "start"]
        if len(kills) < count and len(starts) > len(kills) and time.time() > starts[len(kills)][0] + after:
            with contextlib.suppress(ProcessLookupError):  # it has failed by itself
                os.kill(starts[len(kills)][1], signal.SIGKILL)
            kills.append(time.time())
        time.sleep(0.02)
    return kills


def _events(log: Path) -> list[tuple[str, float, int]]:
    lines = [line.split() for line in log.read_text().splitlines()]
    return [(part, float(moment), int(pid)) for part, moment, pid in lines]


def _parts(events: list[tuple[str, float, int]], kills: list[float]) -> dict[str, Any]:
    """Seconds of training in one process, and from a kill to the next trained step, by part: medians."""
    moments = {part: [moment for name, moment, _ in events if name == part] for part in (*_PARTS, "end")}
    found: dict[str, Any] = {"training": round(moments["end"][-1] - moments["trace"][-1], 1)}
    seconds: dict[str, list[float]] = {part: [] for part in _PARTS}
    for kill in kills:
        before = kill
        for part in _PARTS:
            moment = next((moment for moment in moments[part] if moment > kill), None)
            if moment is not None:
                seconds[part].append(moment - before)
                before = moment
    found["parts"] = {part: round(statistics.median(values), 2) for part, values in seconds.items() if values}
    found["to_next_step"] = round(sum(found["parts"].values()), 2)
    return found


if __name__ == "__main__":
    main()

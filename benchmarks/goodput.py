"""`python -m benchmarks.goodput`: training time over wall time of a job that is killed again and again.

Arms: a shell loop, `kdc launch`, `kdc launch --standby`, and Keras' own callback in a shell loop. One process is killed
some seconds after each of its first starts. With several rounds, the arms take turns; the end is the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_JOB = str(Path(__file__).with_name("goodput_job.py"))
_KDC = [sys.executable, "-m", "keras_dist_callbacks.cli"]
_PARTS = ("start", "import", "join", "restore", "trace")
_TIMEOUT_SECONDS = 1800
ARMS = ("uninterrupted", "shell loop", "kdc launch", "kdc launch --standby", "Keras in a shell loop")


def main() -> None:
    """Measures all arms, and prints one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100, help="of each epoch")
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--after", type=float, default=20.0, help="seconds from a start to its kill")
    parser.add_argument("--arm", action="append", choices=ARMS)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    goodput: dict[str, list[float]] = {}
    for _ in range(asked.rounds):
        for arm, share in _round(asked).items():
            goodput.setdefault(arm, []).append(share)
    for arm, shares in goodput.items():
        middle, spread = round(statistics.median(shares), 3), [min(shares), max(shares)]
        print(json.dumps({"arm": arm, "median_goodput": middle, "range": spread, "rounds": len(shares)}), flush=True)


def _round(asked: argparse.Namespace) -> dict[str, float]:
    """The goodput of each arm, which is printed with its parts."""
    goodput: dict[str, float] = {}
    training = 0.0
    for arm in ARMS if asked.arm is None else ("uninterrupted", *asked.arm):
        try:
            found = _measure(arm, asked)
        except RuntimeError as error:  # Keras' file may be torn by a kill: then no restart can read it
            print(json.dumps({"arm": arm, "failed": str(error)}), flush=True)
            continue
        if arm == "uninterrupted":
            training = found["training"]
        goodput[arm] = round(training / found["wall"], 3)
        print(json.dumps({"arm": arm, "goodput": goodput[arm], **found}), flush=True)
    return goodput


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

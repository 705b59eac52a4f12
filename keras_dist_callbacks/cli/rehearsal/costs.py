"""What backups and restarts cost in the short runs of a rehearsal, and the save_freq that follows from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keras_dist_callbacks.backups.packing import tensor_bytes
from keras_dist_callbacks.backups.snapshot import Manifest
from keras_dist_callbacks.cli.rehearsal.comparison import RunBackups
from keras_dist_callbacks.cli.rehearsal.runs import RecordedAttempt, RehearsedRun
from keras_dist_callbacks.options import MAX_OVERHEAD
from keras_dist_callbacks.rehearsal.records import Record


@dataclass(frozen=True)
class Costs:
    """Figures of short runs.

    Attributes:
        state_bytes: Of a complete backup.
        step_seconds: The median of steps during which nothing was written.
        delay_seconds: By how much one backup has delayed training, on average.
        written_seconds: From a backup's step until it was committed, on average.
        restart_seconds: What a restart took until its first step was trained, by part: `import` of the script's
            modules, `start` of the script until fit(), `restore`, and `trace` of the first step.
        save_freq: The smallest one with which backups take less than 2 % of the time.
        lost_steps: How many steps a kill at a random moment costs with it, on average.
        lost_seconds: The seconds of these steps, and of a restart.
    """

    state_bytes: int
    step_seconds: float
    delay_seconds: float
    written_seconds: float
    restart_seconds: dict[str, float]
    save_freq: int
    lost_steps: float
    lost_seconds: float


def measure(uninterrupted: Sequence[RehearsedRun], killed: RehearsedRun, backups: RunBackups) -> Costs | None:
    """The costs in the first fit of each run; None where there are too few steps.

    Args:
        uninterrupted: The runs in which backups are measured.
        killed: The run in which restarts are.
        backups: Those of the first uninterrupted run.
    """
    logs = [run.attempts[0] for run in uninterrupted]
    quiet = [seconds for attempt in logs for seconds in _quiet_steps(attempt)]
    delays = [delay for attempt in logs for delay in _delays(attempt, statistics.median(quiet or [0.0]))]
    if not quiet or not delays or not backups.manifests:
        return None
    step, delay = statistics.median(quiet), statistics.fmean(delays)
    written = _written(logs[0], backups.manifests)
    save_freq = max(1, math.ceil(delay / MAX_OVERHEAD / step), math.ceil(written / step))
    restart = _restart(killed, step)
    return Costs(
        state_bytes=sum(tensor_bytes(i) for record in backups.manifests[-1].workers for i in record.tensors.values()),
        step_seconds=step,
        delay_seconds=delay,
        written_seconds=written,
        restart_seconds=restart,
        save_freq=save_freq,
        lost_steps=save_freq / 2,
        lost_seconds=save_freq / 2 * step + sum(restart.values()),
    )


def _steps_after_first(attempt: RecordedAttempt) -> list[Record]:
    """Steps and saves of the first fit, without its first step, which is traced."""
    found = [record for record in attempt.chief if record["event"] in ("step", "save") and record["fit"] == 1]
    return found[1:]


def _quiet_steps(attempt: RecordedAttempt) -> Iterator[float]:
    is_disturbed = False
    for record in _steps_after_first(attempt):
        if record["event"] == "step" and not record["writing"] and not is_disturbed:
            yield record["seconds"]
        is_disturbed = record["event"] == "save" or record["writing"]


def _delays(attempt: RecordedAttempt, step: float) -> Iterator[float]:
    """Of each backup: how long it held training up, and by how much the steps during its writing were slower."""
    delay: float | None = None
    slower, is_writing = 0.0, False
    for record in _steps_after_first(attempt):
        if record["event"] == "save":
            if delay is not None:
                yield delay + max(0.0, slower)
            delay, slower, is_writing = record["seconds"], 0.0, True
        elif is_writing:
            slower, is_writing = slower + record["seconds"] - step, record["writing"]
    if delay is not None:
        yield delay + max(0.0, slower)


def _written(attempt: RecordedAttempt, manifests: Sequence[Manifest]) -> float:
    created: dict[int, float] = {m.position.step: m.info["created"] for m in manifests if not m.done}
    begun = {record["step"]: record["time"] - record["seconds"] for record in attempt.events("save", 1)}
    found = [created[step] - begun[step] for step in begun if step in created]
    return max(0.0, statistics.fmean(found)) if found else 0.0


def _restart(killed: RehearsedRun, step: float) -> dict[str, float]:
    found: dict[str, list[float]] = {"import": [], "start": [], "restore": [], "trace": []}
    for attempt in killed.attempts[1:]:
        first = {record["event"]: record for record in reversed(attempt.chief)}
        if not {"place", "open", "restored", "epoch", "step"} <= first.keys():
            continue  # it found no backup, or had no step left to train
        before = attempt.began
        for part, event in (("import", "place"), ("start", "open"), ("restore", "epoch")):
            found[part].append(max(0.0, first[event]["time"] - before))
            before = first[event]["time"]
        found["trace"].append(max(0.0, first["step"]["seconds"] - step))
    return {part: statistics.fmean(seconds) for part, seconds in found.items() if seconds}

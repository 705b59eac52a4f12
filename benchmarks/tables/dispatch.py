"""What our callback costs on a step that saves nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_dist_callbacks as kdc
from benchmarks import models
from benchmarks.config import Case, Config, Outcome
from benchmarks.estimates import median
from benchmarks.table import Table, at_most

NOTES = [
    "fit() with a train function that does nothing: what is left are its loop, the callback list and our seam. Fits "
    "with each list alternate, in shuffled pairs; the difference to the empty list of the same pair.",
]
_EMPTY, _EMPTY_AGAIN = "empty list", "empty list (A/A)"
_OURS, _KERAS, _HOOKS = "ours", "keras BackupAndRestore", "a callback without hooks"
_LIMIT_US = 1.0
_SKIPPED_STEPS = 100


def cases(config: Config) -> list[Case]:
    """An endless input with `steps_per_epoch`, and one that knows its length."""
    steps = 2000 if config.quick else 20_000
    common = {"pairs": config.rounds(15), "steps": steps, "seed": config.seed}
    return [{**common, "endless": endless} for endless in (True, False)]


def measure(directory: Path, *, pairs: int, steps: int, endless: bool, seed: int) -> Outcome:
    """Microseconds per step of each list, pair by pair."""
    workload = models.large(1)
    workload.model.fit(workload.data, steps_per_epoch=1, verbose=0)
    lists: dict[str, Callable[[], list[Any]]] = {
        _EMPTY: list,
        _EMPTY_AGAIN: list,
        _HOOKS: lambda: [keras.callbacks.Callback()],
        _KERAS: lambda: [keras.callbacks.BackupAndRestore(str(directory / "keras"), save_freq=10**9)],
        _OURS: lambda: [kdc.BackupAndRestore(directory / "ours", save_freq=10**9, verbose=0)],
    }
    found: dict[str, list[float]] = {name: [] for name in lists}
    generator = random.Random(seed)  # noqa: S311 - an order
    for number in range(pairs + 1):
        for name in generator.sample(list(lists), len(lists)):
            time_of_step = _per_step(workload, lists[name](), steps, endless)
            if number:  # the first is a warm-up for all
                found[name].append(round(time_of_step, 4))
    return {"us": found}


def _per_step(workload: models.Workload, callbacks: list[Any], steps: int, endless: bool) -> float:
    logs: dict[str, float] = {"loss": 0.0}
    times: list[float] = []
    note, now = times.append, time.perf_counter

    def train(_: Any) -> dict[str, float]:
        note(now())
        return logs

    workload.model.train_function = train
    every = steps + _SKIPPED_STEPS
    length = {"steps_per_epoch": every} if endless else {}
    data = workload.data if endless else workload.data.take(every)
    workload.model.fit(data, **length, verbose=0, callbacks=callbacks)
    return (times[-1] - times[_SKIPPED_STEPS]) / (len(times) - 1 - _SKIPPED_STEPS) * 1e6


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of both inputs."""
    columns = ["Input", "Callbacks", "per step us", "over the empty list us", "n"]
    steps = outcomes[0]["case"]["steps"]
    table = Table("Dispatch on a step without a save", columns, notes=[*NOTES, f"{steps} steps a fit."])
    for outcome in outcomes:
        found = outcome["us"]
        data = "with steps_per_epoch" if outcome["case"]["endless"] else "of known length"
        empty = np.array(found[_EMPTY])
        for name, values in found.items():
            over = median(np.array(values) - empty)
            table.rows.append([data, name, median(values).show(), over.show(2), str(len(values))])
        over, bare = (median(np.array(found[name]) - empty) for name in (_OURS, _HOOKS))
        why = f"a callback without any hook of its own already costs {bare.show()} us"
        table.bounds.append(at_most(f"dispatch over the empty list, input {data}", over, _LIMIT_US, why, " us"))
    return [table]

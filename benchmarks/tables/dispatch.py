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
    """One process."""
    steps = 2000 if config.quick else 20_000
    return [{"pairs": config.rounds(25), "steps": steps, "seed": config.seed}]


def measure(directory: Path, *, pairs: int, steps: int, seed: int) -> Outcome:
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
    for _ in range(pairs):
        for name in generator.sample(list(lists), len(lists)):
            found[name].append(_per_step(workload, lists[name](), steps))
    return {"us": found}


def _per_step(workload: models.Workload, callbacks: list[Any], steps: int) -> float:
    logs: dict[str, float] = {"loss": 0.0}
    times: list[float] = []
    note, now = times.append, time.perf_counter

    def train(_: Any) -> dict[str, float]:
        note(now())
        return logs

    workload.model.train_function = train
    workload.model.fit(workload.data, steps_per_epoch=steps + _SKIPPED_STEPS, verbose=0, callbacks=callbacks)
    return (times[-1] - times[_SKIPPED_STEPS]) / (len(times) - 1 - _SKIPPED_STEPS) * 1e6


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table."""
    found, case = outcomes[0]["us"], outcomes[0]["case"]
    columns = ["Callbacks", "per step us", "over the empty list us", "n"]
    table = Table("Dispatch on a step without a save", columns, notes=[*NOTES, f"{case['steps']} steps a fit."])
    empty = np.array(found[_EMPTY])
    for name, values in found.items():
        over = median(np.array(values) - empty)
        table.rows.append([name, median(values).show(), over.show(2), str(len(values))])
        if name == _OURS:
            bare = median(np.array(found[_HOOKS]) - empty)
            why = f"a callback without any hook of its own already costs {bare.show()} us"
            table.bounds.append(at_most("dispatch over the empty list", over, _LIMIT_US, why, " us"))
    return [table]

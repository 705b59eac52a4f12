"""How much memory a process needs at most while it saves, beyond what training itself needs."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import keras

from benchmarks import arms, models
from benchmarks.config import Case, Config, Outcome
from benchmarks.gate import Arm
from benchmarks.table import Bound, Table

NOTES = [
    "The highest resident size of the process while it trains and saves, less the highest while it trains only; each "
    "arm in a process of its own, the first save included. A save every 4 steps; what is still being written at the "
    "next save is waited for.",
]
_ARMS = (arms.NONE_AGAIN, arms.OURS, arms.OURS_UNSYNCED, arms.KERAS, arms.WHOLE, arms.ORBAX)
_BASELINE_STEPS = 12
_STEPS_BETWEEN = 4
_LIMIT = 1.2


def cases(config: Config) -> list[Case]:
    """Each arm at each size."""
    sizes, saves = config.sizes_or(100, 400, 1000), 2 if config.quick else 4
    return [{"megabytes": size, "arm": arm, "saves": saves} for size in sizes for arm in _ARMS]


class _Watch(keras.callbacks.Callback):
    """Trains without saves, then with; the peak of each."""

    def __init__(self, arm: Arm) -> None:
        super().__init__()
        self._arm = arm
        self.baseline = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        done = batch + 1 - _BASELINE_STEPS
        if done < 0:
            return
        if not done:
            self.baseline = _peak()
            Path("/proc/self/clear_refs").write_text("5")
        if done % _STEPS_BETWEEN == 0:
            self._arm.drain()
            self._arm.save()


def measure(directory: Path, *, megabytes: int, arm: str, saves: int) -> Outcome:
    """One fit: steps without saves, then steps with."""
    workload = models.large(megabytes)
    wanted = [] if arm == arms.NONE_AGAIN else [arm]
    chosen = next(a for a in arms.make(wanted, workload, directory) if a.name == arm)
    model = workload.model
    model.fit(workload.data, steps_per_epoch=2, verbose=0)
    ctypes.CDLL(None).malloc_trim(0)  # what building the model left must not hide what saving takes
    watch = _Watch(chosen)
    callbacks = [watch, *([chosen.callback] if chosen.callback else [])]
    model.fit(workload.data, steps_per_epoch=_BASELINE_STEPS + saves * _STEPS_BETWEEN, verbose=0, callbacks=callbacks)
    chosen.drain()
    return {"extra": _peak() - watch.baseline, "baseline": watch.baseline, "state_bytes": workload.state_bytes}


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError("this system does not tell a process' highest resident size")
    return int(found[1]) * 1024


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of all sizes."""
    table = Table(
        "Peak extra memory while saving", ["State", "Arm", "extra MB", "of the state", "saves"], notes=list(NOTES)
    )
    for outcome in outcomes:
        case = outcome["case"]
        share = outcome["extra"] / outcome["state_bytes"]
        size = f"{case['megabytes']} MB"
        table.rows.append([size, case["arm"], f"{outcome['extra'] / 1e6:.0f}", f"{share:.2f}", str(case["saves"])])
        if case["arm"] in (arms.OURS, arms.OURS_UNSYNCED):
            what = f"peak extra memory, {size}, {case['arm']}"
            table.bounds.append(Bound(what, f"≤ {_LIMIT} x the state", f"{share:.2f}", share <= _LIMIT))
    return [table]

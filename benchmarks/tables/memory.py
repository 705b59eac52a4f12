"""How much memory a process needs at most while it saves, beyond what training itself needs."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
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
    "next save is waited for. Ours in several processes, of which the worst counts; others in one: no interval.",
    'TensorFlow takes memory from a pool of its own, which grows by leaps and returns nothing. The rows "without the '
    'pool" show what is really in use: large tensors come from the system one by one '
    "(`TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1 MALLOC_MMAP_THRESHOLD_=1000000`), which makes steps slower.",
]
_ARMS = (arms.NONE_AGAIN, arms.HOLD, arms.OURS, arms.OURS_UNSYNCED, arms.KERAS, arms.WHOLE, arms.ORBAX)
_OURS = (arms.OURS, arms.OURS_UNSYNCED)
_WITHOUT_POOL = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
_POOLED, _NOT_POOLED = "", ", without the pool"
_PROCESSES_OF_OURS = 3
_FEW_FROM_MB = 1000
_BASELINE_STEPS = 12
_STEPS_BETWEEN = 4
_LIMIT = 1.2


def cases(config: Config) -> list[Case]:
    """Each arm at each size."""
    sizes, saves = config.sizes_or(100, 400, 1000), 2 if config.quick else 4
    found: list[Case] = []
    for size in sizes:
        for arm in _ARMS if size < _FEW_FROM_MB else _OURS:
            case = {"megabytes": size, "arm": arm, "saves": saves}
            times = _PROCESSES_OF_OURS if arm in (arms.HOLD, *_OURS) and not config.quick else 1
            found += [case] * times
            if arm in (arms.HOLD, *_OURS):
                found.append({**case, "environment": _WITHOUT_POOL})
    return found


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


def measure(
    directory: Path, *, megabytes: int, arm: str, saves: int, environment: Mapping[str, str] | None = None
) -> Outcome:
    """One fit: steps without saves, then steps with; `environment` is what the process was started with."""
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
        raise RuntimeError("this system does not report a process' highest resident size")
    return int(found[1]) * 1024


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of all sizes."""
    columns = ["State", "Arm", "extra MB", "of the state", "processes"]
    table = Table("Peak extra memory while saving", columns, notes=list(NOTES))
    shares: dict[tuple[int, str, str], list[float]] = {}
    state = {outcome["case"]["megabytes"]: outcome["state_bytes"] for outcome in outcomes}
    for outcome in outcomes:
        case = outcome["case"]
        key = (case["megabytes"], case["arm"], _NOT_POOLED if "environment" in case else _POOLED)
        shares.setdefault(key, []).append(outcome["extra"] / outcome["state_bytes"])
    for (megabytes, arm, pool), found in shares.items():
        worst, size = max(found), f"{megabytes} MB"
        spread = f" ({min(found):.2f}..{worst:.2f})" if len(found) > 1 else ""
        extra = f"{worst * state[megabytes] / 1e6:.0f}"
        table.rows.append([size, arm + pool, extra, f"{worst:.2f}{spread}", str(len(found))])
        if arm in _OURS and not pool:
            others = {
                "reads held and nothing written": shares.get((megabytes, arms.HOLD, _POOLED)),
                "without TensorFlow's pool": shares.get((megabytes, arm, _NOT_POOLED)),
            }
            why = "; ".join(f"{what}: {_list(values)}" for what, values in others.items() if values)
            why = f"{_list(found)} in {len(found)} processes; {why}"
            met = worst <= _LIMIT
            bound = Bound(f"peak extra memory, {size}, {arm}", f"≤ {_LIMIT} x the state", f"{worst:.2f}", met, why)
            table.bounds.append(bound)
    return [table]


def _list(shares: list[float]) -> str:
    return ", ".join(f"{share:.2f}" for share in shares)

"""Thousands of small variables: where the cost is per variable, not per byte."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import keras_dist_callbacks as kdc
from benchmarks import arms, gate, models
from benchmarks.config import Case, Config, Outcome
from benchmarks.estimates import Blocks, median, number, ratio
from benchmarks.table import Bound, Table, at_most

NOTES = [
    "Measured like blocking. One-off: the first save of the process beyond a later one, and what the process' first "
    "fit() takes longer until its first step because our callback is there (it builds what Keras leaves to that step).",
]
_ARMS = (arms.MEMCPY, arms.OURS, arms.KERAS, arms.WEIGHTS, arms.ORBAX, arms.TENSORFLOW)
_UNSYNCED = (arms.OURS_UNSYNCED, arms.KERAS)
_BLOCK_STEPS = 3
_ONE_OFF_LIMIT_MS = 1000.0


def cases(config: Config) -> list[Case]:
    """With fsync next to all arms, and without."""
    variables = config.small_variables
    common = {"variables": variables, "rounds": config.rounds(6), "seed": config.seed}
    return [*({**common, "fsync": fsync} for fsync in (True, False)), {"variables": variables, "fresh": True}]


def measure(
    directory: Path, *, variables: int, fsync: bool = True, fresh: bool = False, rounds: int = 0, seed: int = 0
) -> Outcome:
    """One gated fit; or the start of the process' first one."""
    workload = models.small(variables)
    if fresh:
        with_ours = _start(workload, [kdc.BackupAndRestore(directory, save_freq=10**9, verbose=0)])
        return {"start_ms": with_ours, "plain_ms": _start(workload, [])}
    chosen = arms.make(_ARMS if fsync else _UNSYNCED, workload, directory)
    return gate.run(workload, chosen, rounds=rounds, length=_BLOCK_STEPS, drain="after_first", seed=seed)


class _StartedError(Exception):
    """Ends fit at its first step."""


def _start(workload: models.Workload, callbacks: list[Any]) -> float:
    """Milliseconds from the call of fit() until it wants to run, and trace, its first step."""
    entered: list[float] = []

    def train(_: Any) -> Any:
        entered.append(time.perf_counter())
        raise _StartedError

    workload.model.train_function = train
    began = time.perf_counter()
    with contextlib.suppress(_StartedError):
        workload.model.fit(workload.data, steps_per_epoch=1, verbose=0, callbacks=callbacks)
    return (entered[0] - began) * 1e3


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of both modes."""
    count = outcomes[0]["case"]["variables"]
    columns = ["Arm", "blocking ms", "with next step ms", "of Keras", "until written ms", "first ms", "n"]
    table = Table(f"{count} small variables", columns, notes=list(NOTES))
    start = sum(o["start_ms"] - o["plain_ms"] for o in outcomes if "plain_ms" in o)
    for outcome in (o for o in outcomes if "blocks" in o):
        blocks, fsync = Blocks(outcome), outcome["case"]["fsync"]
        table.rows += [_row(blocks, arm) for arm in blocks.names]
        table.bounds += _bounds(
            blocks, arms.ours_name(fsync), f"{count} variables, {'' if fsync else 'no '}fsync", start
        )
        table.notes.append(f"{blocks.state_bytes / 1e6:.0f} MB; a step takes {blocks.usual_step:.0f} ms.")
    return [table]


def _row(blocks: Blocks, arm: str) -> list[str]:
    alone = blocks.blocking(arm)
    saves = arm not in (arms.NONE, arms.NONE_AGAIN)
    of_keras = ratio(alone, blocks.blocking(arms.KERAS)).show() if saves else "-"
    written = median(blocks.with_next_step(arm) + blocks.usual_step + blocks.wait(arm))
    shown = [median(alone).show(), median(blocks.with_next_step(arm)).show(), of_keras]
    return [arm, *shown, written.show() if saves else "-", number(blocks.first_blocking(arm)), str(len(alone))]


def _bounds(blocks: Blocks, ours: str, where: str, start: float) -> list[Bound]:
    blocking = blocks.blocking(ours)
    first = max(0.0, blocks.first_blocking(ours) - median(blocking).value)
    one_off = first + max(0.0, start)
    per_variable = f"{median(blocking).show()} ms a save"
    return [
        at_most(f"blocking / Keras', {where}", ratio(blocking, blocks.blocking(arms.KERAS)), 1 / 15, per_variable),
        Bound(
            f"one-off cost, {where}",
            "≤ 1 s",
            f"{number(one_off)} ms",
            one_off <= _ONE_OFF_LIMIT_MS,
            f"{number(start)} ms of it until the first step, {number(first)} ms in the first save",
        ),
    ]

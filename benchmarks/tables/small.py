"""Thousands of small variables: where the cost is per variable, not per byte."""

from __future__ import annotations

from pathlib import Path

from benchmarks import arms, gate, models
from benchmarks.config import Case, Config, Outcome
from benchmarks.estimates import Blocks, median, number, ratio
from benchmarks.table import Bound, Table, at_most

NOTES = [
    "Measured like blocking. One-off: the first save of the process beyond a later one, and what fit() takes longer "
    "until its first step because our callback is there.",
]
_ARMS = (arms.MEMCPY, arms.OURS, arms.KERAS, arms.WEIGHTS, arms.ORBAX, arms.TENSORFLOW)
_UNSYNCED = (arms.OURS_UNSYNCED, arms.KERAS)
_BLOCK_STEPS = 3
_ONE_OFF_LIMIT_MS = 1000.0


def cases(config: Config) -> list[Case]:
    """With fsync beside all arms, and without."""
    common = {"variables": config.small_variables, "rounds": config.rounds(8), "seed": config.seed}
    return [{**common, "fsync": fsync} for fsync in (True, False)]


def measure(directory: Path, *, variables: int, fsync: bool, rounds: int, seed: int) -> Outcome:
    """One gated fit."""
    workload = models.small(variables)
    chosen = arms.make(_ARMS if fsync else _UNSYNCED, workload, directory)
    return gate.run(workload, chosen, rounds=rounds, length=_BLOCK_STEPS, drain="after_first", seed=seed)


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of both modes."""
    count = outcomes[0]["case"]["variables"]
    columns = ["Arm", "blocking ms", "with next step ms", "of Keras", "until written ms", "first ms", "n"]
    table = Table(f"{count} small variables", columns, notes=list(NOTES))
    for outcome in outcomes:
        blocks, fsync = Blocks(outcome), outcome["case"]["fsync"]
        table.rows += [_row(blocks, arm) for arm in blocks.names]
        table.bounds += _bounds(blocks, arms.ours_name(fsync), f"{count} variables, {'' if fsync else 'no '}fsync")
    first = Blocks(outcomes[0])
    table.notes.append(f"{first.state_bytes / 1e6:.0f} MB; a step takes {first.usual_step:.0f} ms.")
    return [table]


def _row(blocks: Blocks, arm: str) -> list[str]:
    alone = blocks.blocking(arm)
    saves = arm not in (arms.NONE, arms.NONE_AGAIN)
    of_keras = ratio(alone, blocks.blocking(arms.KERAS)).show() if saves else "-"
    written = median(blocks.with_next_step(arm) + blocks.usual_step + blocks.wait(arm))
    shown = [median(alone).show(), median(blocks.with_next_step(arm)).show(), of_keras]
    return [arm, *shown, written.show() if saves else "-", number(blocks.first_blocking(arm)), str(len(alone))]


def _bounds(blocks: Blocks, ours: str, where: str) -> list[Bound]:
    blocking = blocks.blocking(ours)
    one_off = max(0.0, blocks.first_blocking(ours) - median(blocking).value) + max(0.0, blocks.start_ms)
    per_variable = f"{median(blocking).value:.1f} ms a save; the cost is that of reading each variable on its own"
    return [
        at_most(f"blocking / Keras', {where}", ratio(blocking, blocks.blocking(arms.KERAS)), 1 / 15, per_variable),
        Bound(
            f"one-off cost, {where}",
            "≤ 1 s",
            f"{number(one_off)} ms ({number(blocks.start_ms)} of them until the first step)",
            one_off <= _ONE_OFF_LIMIT_MS,
        ),
    ]

"""How long a save stops training, and how much slower the step behind it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import arms, gate, models
from benchmarks.config import Case, Config, Outcome
from benchmarks.estimates import Blocks, median, number, ratio
from benchmarks.table import Bound, Table, at_most

_BLOCK_STEPS = 3
_ROUNDS = {10: 14, 100: 12, 400: 6}
_ROUNDS_OF_LARGE = 4
_ALL = (
    arms.MEMCPY, arms.WRITE, arms.WRITE_SYNCED, arms.HOLD, arms.OURS, arms.KERAS, arms.WEIGHTS, arms.WHOLE, arms.ORBAX,
    arms.ORBAX_SYNC, arms.TENSORFLOW,
)  # fmt: skip
_UNSYNCED = (arms.MEMCPY, arms.HOLD, arms.OURS_UNSYNCED, arms.KERAS)
_BOUND_FROM_MB = 100
GENERAL_NOTES = [
    "Between two steps of one fit(): the gap in which an arm saves less the usual gap, and how much longer the next "
    "step takes than a usual one. Rounds of all arms are shuffled; before the next save everything is written and "
    "flushed.",
    "Medians in ms with 95 % bootstrap intervals; ratios are of medians within the run. The first save of each arm in "
    "the process is reported separately.",
]


def cases(config: Config) -> list[Case]:
    """Each size with fsync, with all arms; and without, with the few that matter."""
    found: list[Case] = []
    for size in config.sizes_or(10, 100, 400, 1000):
        rounds = config.rounds(_ROUNDS.get(size, _ROUNDS_OF_LARGE))
        found += [{"megabytes": size, "fsync": fsync, "rounds": rounds, "seed": config.seed} for fsync in (True, False)]
    attempt = {"megabytes": 10, "rounds": config.rounds(4), "seed": config.seed, "attempt": arms.TENSORFLOW_ASYNC}
    return [*found, attempt]


def measure(
    directory: Path, *, megabytes: int, rounds: int, seed: int, fsync: bool = True, attempt: str = ""
) -> Outcome:
    """One gated fit."""
    workload = models.large(megabytes)
    if attempt:
        chosen = [*arms.make([], workload, directory), arms.tensorflow_async(directory / "async", workload.model)]
        return gate.run(workload, chosen, rounds=rounds, length=_BLOCK_STEPS, drain="after_first", seed=seed)
    chosen = arms.make(_ALL if fsync else _UNSYNCED, workload, directory)
    return gate.run(workload, chosen, rounds=rounds, length=_BLOCK_STEPS, drain="after_first", seed=seed)


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """A table per size and mode, and how the attempt ended."""
    tables = [_table(outcome) for outcome in outcomes if "attempt" not in outcome["case"]]
    for outcome in outcomes:
        if "attempt" in outcome["case"]:
            ended = (
                outcome.get("failed") or f"blocks {median(Blocks(outcome).blocking(arms.TENSORFLOW_ASYNC)).show()} ms"
            )
            tables.append(Table("Attempted", ["Arm", "Outcome"], [[outcome["case"]["attempt"], ended]]))
    return tables


def _table(outcome: Outcome) -> Table:
    blocks, case = Blocks(outcome), outcome["case"]
    ours = arms.ours_name(case["fsync"])
    mode = "fsync" if case["fsync"] else "no fsync"
    table = Table(
        f"Blocking per save, {case['megabytes']} MB, {mode}",
        [
            "Arm",
            "blocking ms",
            "with next step ms",
            "of memcpy",
            "of Keras",
            "with next step, of Keras",
            "first ms",
            "n",
        ],
        notes=[f"State: {blocks.state_bytes / 1e6:.0f} MB; a step takes {blocks.usual_step:.0f} ms."],
    )
    table.rows = [_row(blocks, arm) for arm in blocks.names]
    if case["megabytes"] >= _BOUND_FROM_MB:
        table.bounds = list(bounds(blocks, ours, f"{case['megabytes']} MB, {mode}"))
    return table


def _row(blocks: Blocks, arm: str) -> list[str]:
    alone, both = blocks.blocking(arm), blocks.with_next_step(arm)
    saves = arm not in (arms.NONE, arms.NONE_AGAIN)
    return [
        arm,
        median(alone).show(),
        median(both).show(),
        number(ratio(alone, blocks.blocking(arms.MEMCPY)).value) if saves and arms.MEMCPY in blocks.names else "-",
        ratio(alone, blocks.blocking(arms.KERAS)).show() if saves else "-",
        ratio(both, blocks.with_next_step(arms.KERAS)).show() if saves else "-",
        number(blocks.first_blocking(arm)),
        str(len(alone)),
    ]


def bounds(blocks: Blocks, ours: str, where: str) -> Iterator[Bound]:
    """Blocking against memcpy and Keras, alone and with the next step."""
    alone, both = median(blocks.blocking(ours)), median(blocks.with_next_step(ours))
    copy = median(blocks.blocking(arms.MEMCPY)).value
    limit = max(3.0, 0.1 * copy)
    reads = median(blocks.blocking(arms.HOLD))
    why = (
        f"to read every variable takes {reads.show()} ms; the rest is Python's: the look at all objects that training "
        "may have changed, random states, callbacks, the start of the thread"
    )
    yield Bound(
        f"blocking, {where}",
        f"≤ {number(limit)} ms (the larger of 3 ms and 0.1 x memcpy)",
        f"{alone.show()} ms",
        alone.value <= limit,
        why,
        certain=alone.high <= limit,
    )
    compared = ratio(blocks.blocking(ours), blocks.blocking(arms.KERAS))
    yield at_most(f"blocking / Keras' blocking, {where}", compared, 1 / 60, why)
    slower = both.value - alone.value
    held = median(blocks.with_next_step(arms.HOLD))
    why = (
        f"{number(slower)} of the {number(both.value)} ms are in the next step; to hold the reads over that step and "
        f"write nothing costs {held.show()} ms"
    )
    yield Bound(
        f"blocking and next step, {where}",
        f"≤ {number(1.2 * copy)} ms (1.2 x memcpy)",
        f"{both.show()} ms",
        both.value <= 1.2 * copy,
        why,
        certain=both.high <= 1.2 * copy,
    )
    compared = ratio(blocks.with_next_step(ours), blocks.with_next_step(arms.KERAS))
    yield at_most(f"blocking and next step / Keras', {where}", compared, 1 / 10, why)

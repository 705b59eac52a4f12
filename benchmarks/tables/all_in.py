"""What a save costs in all: how much longer the steps up to the next one take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import arms, gate, models
from benchmarks.config import Case, Config, Outcome
from benchmarks.estimates import Blocks, median, number, ratio
from benchmarks.table import Bound, Table, at_most

NOTES = [
    "Blocks of as many steps as lie between two saves, the save at their begin, in one fit(): the whole block less "
    "the block without a save of the same round. The order is shuffled in each round. A second arm without a save "
    "(A/A) shows the noise. What is still being written at the end of a block is waited for outside of the timing, "
    "and the page cache is flushed: that flatters arms that write longer than the interval or do not flush.",
    "At 100 MB the batch makes a step last about 40 ms. At 400 MB Adam alone makes it last longer on two cores.",
]
_EVERY = 20
_BATCHES = {100: 64}
_ROUNDS = {100: 16}
_ROUNDS_OF_LARGE = 8
_ROUNDS_OF_OTHER_INTERVALS = 8
_OTHER_INTERVALS = (10, 40)


def cases(config: Config) -> list[Case]:
    """Each size in both modes, every 20 steps; 100 MB with other intervals too."""
    every = 4 if config.quick else _EVERY
    found: list[Case] = []
    for size in config.sizes_or(100, 400):
        rounds = config.rounds(_ROUNDS.get(size, _ROUNDS_OF_LARGE))
        common = {"megabytes": size, "batch": _BATCHES.get(size, 8), "rounds": rounds, "seed": config.seed}
        found += [{**common, "fsync": fsync, "every": every} for fsync in (True, False)]
        if size == min(_BATCHES) and not config.quick:
            found += [
                {**common, "fsync": True, "every": other, "rounds": config.rounds(_ROUNDS_OF_OTHER_INTERVALS)}
                for other in _OTHER_INTERVALS
            ]
    return found


def measure(directory: Path, *, megabytes: int, batch: int, fsync: bool, every: int, rounds: int, seed: int) -> Outcome:
    """One gated fit."""
    workload = models.large(megabytes, batch)
    names = [arms.ours_name(fsync), arms.KERAS, *([arms.ORBAX] if every <= _EVERY and fsync else [])]
    chosen = arms.make(names, workload, directory)
    return gate.run(workload, chosen, rounds=rounds, length=every, drain="at_end", seed=seed)


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of all sizes, modes and intervals."""
    table = Table(
        "All-in cost per save within fit()",
        ["State, steps between saves", "Arm", "cost ms", "of Keras", "of a block", "unwritten at its end", "n"],
        notes=list(NOTES),
    )
    for outcome in outcomes:
        case, blocks = outcome["case"], Blocks(outcome)
        mode = "fsync" if case["fsync"] else "no fsync"
        where = f"{case['megabytes']} MB, every {case['every']} steps of {blocks.usual_step:.0f} ms, {mode}"
        table.rows += [_row(blocks, arm, where) for arm in blocks.names if arm != arms.NONE]
        if case["every"] == _EVERY:
            table.bounds += _bounds(blocks, arms.ours_name(case["fsync"]), where)
    return [table]


def _row(blocks: Blocks, arm: str, where: str) -> list[str]:
    cost = blocks.cost(arm)
    share = median(cost / median(blocks.total(arms.NONE)).value * 100)
    unwritten = sum(1 for wait in blocks.wait(arm) if wait > 1) / len(cost)
    of_keras = "-" if arm == arms.NONE_AGAIN else ratio(cost, blocks.cost(arms.KERAS)).show()
    return [where, arm, median(cost).show(), of_keras, f"{share.show()} %", f"{unwritten:.0%}", str(len(cost))]


def _bounds(blocks: Blocks, ours: str, where: str) -> Iterator[Bound]:
    cost = blocks.cost(ours)
    noise = median(blocks.cost(arms.NONE_AGAIN))
    why = f"the A/A arm, which saves nothing, is at {noise.show()} ms"
    keras = ratio(cost, blocks.cost(arms.KERAS))
    met = keras.value <= 0.5 and keras.high < 1
    yield Bound(f"all-in / Keras', {where}", "≤ 1/2, its interval below 1", keras.show(), met, why, keras.high <= 0.5)
    yield at_most(f"(aim) all-in / Keras', {where}", keras, 1 / 4, why)
    if arms.ORBAX in blocks.names:
        orbax = ratio(cost, blocks.cost(arms.ORBAX))
        reason = f"Orbax costs {number(median(blocks.cost(arms.ORBAX)).value)} ms a save here; {why}"
        yield at_most(f"all-in / OrbaxCheckpoint's, {where}", orbax, 1 / 8, reason)

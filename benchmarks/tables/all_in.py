"""What a save costs in all: how much longer training takes with saves than without, where no processor is idle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import arms, gate, machine, models
from benchmarks.config import Case, Config, Outcome
from benchmarks.estimates import Blocks, median, number, ratio
from benchmarks.parts import Watch
from benchmarks.table import Bound, Table, at_most

NOTES = [
    "Blocks with several saves in one fit(), so many steps apart, and as many steps after the last one; the complete "
    "block less the block without a save of the same round, for each save that was complete at its end. The order is "
    "shuffled in each round. A second arm without a save (A/A) shows the noise. What is still being written at the "
    "end of a block is waited for outside of the timing, and the page cache is flushed: that flatters arms that write "
    "longer than two intervals or do not flush.",
    '"Hash, copy, write beside training" holds what was read of the variables as ours does. A thread of the priority '
    "of ours hashes as many bytes, copies them into a buffer and writes that around the page cache to one file, "
    "flushed where ours is: the least that a backup can cost that is written so, without anything that makes it one.",
    "Ours as users have it: a backup that is due while the one before is still being written is taken at the first "
    "step after that. At 100 MB the batch makes a step last longer. At 400 MB Adam alone does.",
]
_DURABLE, _NOT = 0.2, 0.25
_BATCHES = {100: 64}
_SAVES = {8: 5, 20: 2}  # in a block, by the steps between them
_ROUNDS = {100: 12}
_ROUNDS_OF_LARGE = 6
_ENOUGH = 0.7


def cases(config: Config) -> list[Case]:
    """Each size in both modes, every 8 and every 20 steps."""
    found: list[Case] = []
    for size in config.sizes_or(100, 400):
        rounds = config.rounds(_ROUNDS.get(size, _ROUNDS_OF_LARGE))
        common = {"megabytes": size, "batch": _BATCHES.get(size, 8), "rounds": rounds, "seed": config.seed}
        for every, saves in ({4: 2} if config.quick else _SAVES).items():
            found += [{**common, "fsync": fsync, "every": every, "saves": saves} for fsync in (True, False)]
    return found


def measure(
    directory: Path, *, megabytes: int, batch: int, fsync: bool, every: int, saves: int, rounds: int, seed: int
) -> Outcome:
    """One gated fit."""
    workload, watch = models.large(megabytes, batch), Watch()
    speed = machine.direct_speed(directory / "raw", workload.state_bytes)
    watch.begin(by_part=False)
    names = [arms.ours_name(fsync), arms.KERAS, arms.MEMCPY, *([arms.ORBAX] if every == 20 and fsync else [])]
    floor, _ = arms.writes_beside(directory / "alone", workload, fsync=fsync)
    chosen = [*arms.make(names, workload, directory, watch), floor]
    length = every * (saves + 1)
    plan = {"length": length, "every": every, "saves": saves, "rounds": rounds}
    found = gate.run(workload, chosen, drain="at_end", seed=seed, **plan)
    return {**found, "raw_bytes_per_second": speed}


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of all sizes, modes and intervals."""
    table = Table(
        "All-in cost per save within fit()",
        ["State, steps between saves", "Arm", "cost ms", "of Keras", "of training", "skipped", "unwritten", "n"],
        notes=list(NOTES),
    )
    for outcome in outcomes:
        case, blocks = outcome["case"], Blocks(outcome)
        mode, ours = "fsync" if case["fsync"] else "no fsync", arms.ours_name(case["fsync"])
        where = f"{case['megabytes']} MB, every {case['every']} steps of {blocks.usual_step:.0f} ms, {mode}"
        interval = median(blocks.total(arms.NONE)).value / (case["saves"] + 1)
        table.rows += [_row(blocks, arm, where, interval) for arm in blocks.names if arm != arms.NONE]
        table.notes.append(f"{where}: {outcome['busy']:.0%} of the processors' time was used.")
        table.bounds += _bounds(blocks, ours, where, durable=case["fsync"])
        if case["every"] == min(_SAVES):
            table.bounds.append(_left_out(outcome, blocks, ours, where))
    return [table]


def _row(blocks: Blocks, arm: str, where: str, interval: float) -> list[str]:
    """Of training, as it would be with saves so many steps apart all the time."""
    cost = blocks.cost_of_save(arm)
    share = median(cost / interval * 100)
    unwritten = sum(1 for wait in blocks.wait(arm) if wait > 1) / len(cost)
    left_out = f"{blocks.asked(arm) - blocks.made_in_all(arm)} of {blocks.asked(arm)}"
    nothing = arm == arms.NONE_AGAIN
    of_keras = "-" if nothing else ratio(cost, blocks.cost_of_save(arms.KERAS)).show()
    shown = [median(cost).show(), of_keras, f"{share.show()} %", "-" if nothing else left_out, f"{unwritten:.0%}"]
    return [where, arm, *shown, str(len(cost))]


def _bounds(blocks: Blocks, ours: str, where: str, *, durable: bool) -> Iterator[Bound]:
    cost = blocks.cost_of_save(ours)
    floor = blocks.cost_of_save(arms.WRITE_BESIDE)
    why = (
        f"to hold, hash, copy and write as many bytes, and no more, costs {median(floor).show()} ms, which is "
        f"{ratio(floor, blocks.cost_of_save(arms.KERAS)).show()} of Keras'; the A/A arm, which saves nothing, is at "
        f"{median(blocks.cost_of_save(arms.NONE_AGAIN)).show()} ms"
    )
    keras = ratio(cost, blocks.cost_of_save(arms.KERAS))
    yield at_most(f"all-in per save / Keras', {where}", keras, _DURABLE if durable else _NOT, why)
    if arms.ORBAX in blocks.names:
        orbax = ratio(cost, blocks.cost_of_save(arms.ORBAX))
        reason = f"Orbax costs {number(median(blocks.cost_of_save(arms.ORBAX)).value)} ms a save here; {why}"
        yield at_most(f"all-in per save / OrbaxCheckpoint's, {where}", orbax, 1 / 8, reason)


def _left_out(outcome: Outcome, blocks: Blocks, ours: str, where: str) -> Bound:
    """How many are left out, where the disk alone would be fast enough."""
    speed, interval = outcome["raw_bytes_per_second"], outcome["case"]["every"] * blocks.usual_step / 1e3
    share = blocks.state_bytes / speed / interval if speed else float("inf")
    missing, asked = blocks.asked(ours) - blocks.made_in_all(ours), blocks.asked(ours)
    limit = "0" if share < _ENOUGH else f"any number: the disk alone needs {share:.0%} of the interval"
    met = missing == 0 or share >= _ENOUGH
    why = f"the disk alone needs {share:.0%} of the interval"
    return Bound(f"skipped, {where}", limit, f"{missing} of {asked}", met, why)

"""Processor time of the background thread per save, by part, next to what a copy within memory takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import arms, gate, models
from benchmarks.config import Case, Config, Outcome
from benchmarks.estimates import Blocks, Estimate, Values, median, number
from benchmarks.parts import PARTS, Watch
from benchmarks.table import Table, at_most

NOTES = [
    "Processor time of the thread that hashes, writes and publishes our backups, a save every 8 steps of one fit(), "
    "and that of a thread of the same priority that copies as many bytes within memory instead while training runs, "
    "which takes caches and bandwidth from both; and of one that only hashes each piece, copies it into a buffer and "
    "writes that around the page cache, to one file, while what was read of the variables is held as ours holds it. A "
    "copy while training stands still is shown as well. Every other save is looked into by part, which itself costs "
    "some of the time; the total is that of the others.",
]
_EVERY, _SAVES = 8, 4
_ROUNDS = 5
_LARGE_MB = 400  # of the bound: below, what does not grow with the state counts too
_COPIES = 2


def cases(config: Config) -> list[Case]:
    """Two sizes in both modes."""
    common = {"rounds": config.rounds(_ROUNDS), "seed": config.seed}
    sizes = config.sizes_or(100, 400)
    return [{**common, "megabytes": size, "fsync": fsync} for size in sizes for fsync in (True, False)]


def measure(directory: Path, *, megabytes: int, fsync: bool, rounds: int, seed: int) -> Outcome:
    """One gated fit."""
    workload, watch = models.large(megabytes), Watch()
    watch.begin()
    copier, copied = arms.copies_beside(workload.state_bytes)
    writer, written = arms.writes_beside(directory / "alone", workload, fsync=fsync)
    ours = arms.ours_name(fsync)
    chosen = [*arms.make([ours, arms.MEMCPY], workload, directory, watch), copier, writer]
    length = _EVERY * _SAVES
    found = gate.run(
        workload, chosen, rounds=rounds, length=length, every=_EVERY, saves=_SAVES, drain="at_end", seed=seed
    )
    return {**found, "thread": watch.made, "copied": copied, "written": written}


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table."""
    columns = [
        "State, mode", "memcpy, still", "memcpy in training", "hash, copy, write", "first ms", "later ms",
        "of memcpy in training", "of hash, copy, write",
    ]  # fmt: skip
    table = Table(
        "Processor time of the background thread per save", [*columns, *PARTS, "rest", "n"], notes=list(NOTES)
    )
    for outcome in outcomes:
        case, blocks = outcome["case"], Blocks(outcome)
        mode = "fsync" if case["fsync"] else "no fsync"
        where = f"{case['megabytes']} MB, every {_EVERY} steps of {blocks.usual_step:.0f} ms, {mode}"
        table.notes.append(f"{where}: {outcome['busy']:.0%} of the processors' time was used.")
        bound = case["fsync"] and case["megabytes"] >= _LARGE_MB
        _add(table, outcome, blocks.processor(arms.MEMCPY), where, bound=bound)
    return [table]


def _add(table: Table, outcome: Outcome, still: Values, where: str, *, bound: bool) -> None:
    made: list[dict[str, float]] = outcome["thread"]
    first, whole = made[0]["whole"], median([m["whole"] for m in made[1:] if "hash" not in m])
    looked = [m for m in made if "hash" in m]
    parts = {name: median([m[name] for m in looked]) for name in PARTS}
    rest = median([m["whole"] - sum(m[name] for name in PARTS) for m in looked])
    beside, floor = median(outcome["copied"][1:]), median(outcome["written"][1:])
    compared = _over(whole, beside)
    shown: list[Any] = [median(still).show(), beside.show(), floor.show(), number(first), whole.show()]
    shown += [
        compared.show(),
        _over(whole, floor).show(),
        *(number(part.value) for part in parts.values()),
        number(rest.value),
    ]
    table.rows.append([where, *shown, str(whole.n)])
    if bound:
        spent = ", ".join(f"{name} {number(part.value)} ms" for name, part in [*parts.items(), ("rest", rest)])
        least = _over(floor, beside)
        why = f"no more than to hash, copy and write it around the page cache takes {least.show()} memcpys; {spent}"
        once = _over(Estimate(first, first, first, 1), beside)
        table.bounds.append(at_most(f"background thread / memcpy during training, {where}", compared, _COPIES, why))
        table.bounds.append(at_most(f"the same of the first save, {where}", once, _COPIES, why))


def _over(one: Estimate, other: Estimate) -> Estimate:
    """The ratio of two medians of different saves, with the widest interval that theirs allow."""
    return Estimate(one.value / other.value, one.low / other.high, one.high / other.low, one.n)

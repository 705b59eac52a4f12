"""How fast the background writes, next to os.write of the same bytes in the same mode."""

from __future__ import annotations

from pathlib import Path

from benchmarks import arms, gate, machine, models
from benchmarks.config import Case, Config, Outcome
from benchmarks.estimates import Blocks, median, ratio
from benchmarks.parts import Watch
from benchmarks.table import Bound, Table

NOTES = [
    "From the begin of the save until it is complete, training stands still meanwhile. Ours hashes every byte, writes "
    "to new names, publishes a manifest and reads it back; os.write writes the same number of bytes to one new file. "
    "Then the backup that is no longer needed is deleted, and that file: how long it takes until that is done too is "
    "reported separately, as a disk may take as long for it as for a part of the write. Each change of all bytes is "
    "one training step.",
]
_ROUNDS = {100: 12}
_ROUNDS_OF_LARGE = 5
_SHARE = 1


def cases(config: Config) -> list[Case]:
    """Each size in both modes."""
    found: list[Case] = []
    for size in config.sizes_or(100, 400, 1000):
        rounds = config.rounds(_ROUNDS.get(size, _ROUNDS_OF_LARGE))
        found += [{"megabytes": size, "fsync": f, "rounds": rounds, "seed": config.seed} for f in (True, False)]
    return found


def measure(directory: Path, *, megabytes: int, fsync: bool, rounds: int, seed: int) -> Outcome:
    """One gated fit in which each step waits for the write before it."""
    workload, watch = models.large(megabytes), Watch()
    watch.begin(by_part=False)
    chosen = arms.make([arms.ours_name(fsync), arms.write_name(fsync)], workload, directory, watch)
    speed = machine.direct_speed(directory / "raw", workload.state_bytes)
    return {
        **gate.run(workload, chosen, rounds=rounds, length=1, drain="before", seed=seed),
        "raw_bytes_per_second": speed,
    }


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of all sizes and modes."""
    columns = [
        "State, mode", "ours ms", "os.write ms", "ours MB/s", "os.write MB/s", "throughput, of os.write",
        "deleted too: ours ms", "os.write ms", "ratio", "n",
    ]  # fmt: skip
    table = Table("Background write to a local disk", columns, notes=list(NOTES))
    for outcome in outcomes:
        case, blocks = outcome["case"], Blocks(outcome)
        mode = "fsync" if case["fsync"] else "no fsync"
        names = arms.ours_name(case["fsync"]), arms.write_name(case["fsync"])
        ours, floor = blocks.until_complete(names[0]), blocks.blocking(names[1])
        ours_deleted, floor_deleted = (blocks.until_written(name) for name in names)
        megabytes = blocks.state_bytes / 1e6
        speed = ratio(floor, ours)
        rates = [f"{megabytes / median(times).value * 1e3:.0f}" for times in (ours, floor)]
        where = f"{case['megabytes']} MB, {mode}"
        deleted = [median(ours_deleted).show(), median(floor_deleted).show(), ratio(floor_deleted, ours_deleted).show()]
        shown = [median(ours).show(), median(floor).show(), *rates, speed.show(), *deleted]
        table.rows.append([where, *shown, str(len(ours))])
        met = speed.value >= _SHARE
        why = f"{median(ours).value - median(floor).value:.0f} ms more than os.write takes"
        if not case["fsync"] and (raw := outcome["raw_bytes_per_second"]):
            only = blocks.state_bytes / raw * 1e3
            why += (
                f", which may leave all in memory; ours has it on the disk, which alone takes {only:.0f} ms for it, "
                "and hashes and copies between the writes"
            )
        bound = Bound(
            f"background write / os.write, {where}", f"≥ {_SHARE}", speed.show(), met, why, speed.low >= _SHARE
        )
        table.bounds.append(bound)
    return [table]

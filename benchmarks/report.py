"""RESULTS.md and the plot, from stored results alone."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import plot
from benchmarks.estimates import Blocks
from benchmarks.table import Bound, Table, bounds_markdown
from benchmarks.tables import TABLES

RESULTS = "results"
_INTRODUCTION = """\
What a backup with `keras_dist_callbacks.BackupAndRestore` costs, next to what others save with. Times depend on the
machine and on what else it does; ratios between arms of one run hold better, so bounds are on ratios. Every arm of a
table runs interleaved with the others in one process, in shuffled rounds. Estimates are medians with 95 % bootstrap
intervals of all values. "No save (A/A)" is a second arm that saves nothing: what it differs by from the first
is noise. All raw values are in `results/`; `python -m benchmarks` measures again, `--only TABLE` one table.

Bounds are judged by the estimate; "met, within noise" means that its interval reaches beyond the limit.

What is written differs. Ours: the complete state of training (weights, optimizer, metrics, seed generators, random
states, callbacks, position in the data), hashed, with a manifest that is read back, flushed to the disk where it says
fsync. The others are measured as they come, with their default settings: weights and optimizer.
`tf.train.Checkpoint` with `enable_async=True` is tried apart, see below.
"""

_SUMMARY = (
    "Saving 400 MB with fsync stops training for {blocking, 400 MB, fsync}: "
    "{blocking / Keras' blocking, 400 MB, fsync} of what Keras' own `BackupAndRestore` takes.",
    "With the slowdown of the next step, that is {blocking and next step, 400 MB, fsync}: "
    "{blocking and next step / Keras', 400 MB, fsync} of Keras'.",
    "With all that happens in the background, a save every 8 steps with fsync costs "
    "{all-in per save / Keras', 100 MB, every 8 steps of * ms, fsync} of Keras' at 100 MB, and "
    "{all-in per save / Keras', 400 MB, every 8 steps of * ms, fsync} at 400 MB, where training keeps the processors "
    "busy.",
    "A resume with 400 MB takes {restore and first step / load_weights, 400 MB, default, warm} of `load_weights` from "
    "the page cache, and {restore and first step / load_weights, 400 MB, default, cold} from the disk.",
    "A save of 400 MB needs up to {peak extra memory, 400 MB, ours, fsync} times that as extra memory; a step without "
    "a save takes {dispatch over the empty list, input of known length} more.",
)
"""Sentences, with the bounds whose measured values they show; `*` is for what differs from run to run."""


def write_report(out: Path, console: Console) -> None:
    """Prints all stored tables; writes RESULTS.md and the plot."""
    stored = _stored(out)
    tables = {name: TABLES[name].summarise(found["outcomes"]) for name, found in stored.items() if found["outcomes"]}
    for table in (t for several in tables.values() for t in several):
        table.show(console)
    out.mkdir(parents=True, exist_ok=True)
    has_plot = "blocking" in tables and plot.blocking(
        [(o["case"], Blocks(o)) for o in stored["blocking"]["outcomes"] if "blocks" in o], out / "blocking.png"
    )
    (out / "RESULTS.md").write_text("\n".join(_lines(stored, tables, has_plot=bool(has_plot))))


def _stored(out: Path) -> dict[str, Any]:
    files = {name: out / RESULTS / f"{name}.json" for name in TABLES}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def _lines(stored: Mapping[str, Any], tables: Mapping[str, list[Table]], *, has_plot: bool) -> Iterator[str]:
    bounds = [bound for several in tables.values() for table in several for bound in table.bounds]
    yield from ("# What backups cost", "")
    yield from _summary(bounds)
    if has_plot:
        yield "![Time that a save takes from training, over the size of the state](blocking.png)\n"
        yield (
            "How long a save with fsync stops training, over the size of the state: alone on the left, with the "
            "slowdown of the next step on the right.\n"
        )
    yield from ("## How it was measured", "", _INTRODUCTION)
    if any(found["quick"] for found in stored.values()):
        yield "**Some of this is from a quick run with small sizes and few rounds, which proves nothing.**\n"
    yield from (f"**Not measured:** {failure}\n" for found in stored.values() for failure in found["failures"])
    yield from _codes(stored)
    yield from _machines(stored)
    yield from ("## Bounds", "")
    met = sum(bound.met for bound in bounds)
    yield f"{met} of {len(bounds)} are met; each holds for the run below, not for every machine.\n"
    yield from bounds_markdown(bounds)
    yield from ("## Tables", "")
    for name, several in tables.items():
        yield from (note + "\n" for note in getattr(TABLES[name], "GENERAL_NOTES", []))
        for table in several:
            yield from table.markdown()


def _summary(bounds: Sequence[Bound]) -> Iterator[str]:
    """What matters to users, in a line each; a line is missing if one of its values was not measured."""
    for line in _SUMMARY:
        found = [_measured(bounds, name) for name in re.findall(r"\{(.+?)\}", line)]
        if all(found):
            yield "- " + re.sub(r"\{.+?\}", "{}", line).format(*found)
    met = sum(bound.met for bound in bounds)
    yield (
        f"\nMedians with 95 % intervals, on the machine below; an interval that includes 0 is within noise. {met} of "
        f"{len(bounds)} bounds are met; the others are listed below, with what is known of the reasons.\n"
    )


def _measured(bounds: Sequence[Bound], pattern: str) -> str:
    return next((bound.measured for bound in bounds if fnmatch.fnmatchcase(bound.what, pattern)), "")


def _codes(stored: Mapping[str, Any]) -> Iterator[str]:
    """A warning where tables were not measured on one and the same code."""
    by_code: dict[str, set[str]] = {}
    for name, found in stored.items():
        for outcome in found["outcomes"]:
            by_code.setdefault(outcome.get("code", ""), set()).add(name)
    by_code.pop("", None)
    if len(by_code) > 1 or "changed meanwhile" in by_code:
        listed = "; ".join(f"{code}: {', '.join(sorted(names))}" for code, names in by_code.items())
        yield f"**Not all of this was measured on the same sources of this package** (by digest: {listed}).\n"


def _machines(stored: Mapping[str, Any]) -> Iterator[str]:
    """The machine, once; or each with its tables, where results are from several."""
    by_machine: dict[str, list[str]] = {}
    for name, found in stored.items():
        by_machine.setdefault(json.dumps(found["machine"]), []).append(name)
    for machine, names in by_machine.items():
        of = f" of {', '.join(names)}" if len(by_machine) > 1 else ""
        yield f"## Machine{of}\n"
        yield from (f"- {key}: {value}" for key, value in json.loads(machine).items())
        yield ""

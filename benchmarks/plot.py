"""Pictures of what saves cost: blocking time over the size of the state, and the whole cost next to others'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import arms
from benchmarks.config import Case
from benchmarks.estimates import Blocks, median, number

_STYLES = {
    arms.MEMCPY: ("0.4", ":"),
    arms.OURS: ("tab:green", "-"),
    arms.KERAS: ("tab:red", "-"),
    arms.WEIGHTS: ("tab:orange", "--"),
    arms.WHOLE: ("tab:brown", "--"),
    arms.ORBAX: ("tab:blue", "-"),
    arms.ORBAX_SYNC: ("tab:blue", "--"),
    arms.TENSORFLOW: ("tab:purple", "--"),
}

_SIZE, _EVERY = 100, 20
_NAMES = {
    arms.OURS: "this package",
    arms.KERAS: "Keras' BackupAndRestore",
    arms.ORBAX: "OrbaxCheckpoint, background",
    arms.NONE_AGAIN: "no save at all: the noise",
}


def blocking(outcomes: Sequence[tuple[Case, Blocks]], target: Path) -> bool:
    """Draws the runs with fsync; whether there were at least two sizes to draw."""
    found = [blocks for case, blocks in outcomes if case.get("fsync")]
    if len(found) < 2:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (alone, both) = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    _draw(alone, found, Blocks.blocking, "blocking alone")
    _draw(both, found, Blocks.with_next_step, "blocking and slowdown of the next step")
    alone.set_ylabel("ms per save")
    both.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(target, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return True


def costs(blocking: Sequence[tuple[Case, Blocks]], all_in: Sequence[tuple[Case, Blocks]], target: Path) -> None:
    """Draws what a save with fsync costs at the size and interval at which each arm was measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    (stopped,) = (blocks for case, blocks in blocking if case["fsync"] and case["megabytes"] == _SIZE)
    (whole,) = (
        blocks for case, blocks in all_in if case["fsync"] and case["megabytes"] == _SIZE and case["every"] == _EVERY
    )
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 2.6), sharey=True, layout="constrained")
    for axes, title, estimates in (
        (left, "training stops, and its next step is slower", [median(stopped.with_next_step(arm)) for arm in _NAMES]),
        (right, "in all, with what is done in the background", [median(whole.cost_of_save(arm)) for arm in _NAMES]),
    ):
        values = [estimate.value for estimate in estimates]
        spread = [[e.value - e.low for e in estimates], [e.high - e.value for e in estimates]]
        colors = [_STYLES.get(arm, ("0.7", ""))[0] for arm in _NAMES]
        axes.barh(list(_NAMES.values()), values, xerr=spread, color=colors, capsize=3, ecolor="0.3")
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel(f"ms per save of {_SIZE} MB: median, 95 % interval")
        axes.grid(axis="x", alpha=0.3)
        for place, estimate in enumerate(estimates):
            text, at = number(estimate.value, 0), (estimate.high, place)
            axes.annotate(text, at, (5, 0), textcoords="offset points", va="center")
        axes.set_xlim(right=1.15 * max(estimate.high for estimate in estimates))
    left.invert_yaxis()
    figure.savefig(target, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def _draw(axes: Any, found: Sequence[Blocks], quantity: Any, title: str) -> None:
    for arm, (color, line) in _STYLES.items():
        points = [(blocks.state_bytes / 1e6, median(quantity(blocks, arm))) for blocks in found if arm in blocks.names]
        points = [(size, estimate) for size, estimate in points if estimate.low > 0]
        sizes, values = [p[0] for p in points], [p[1].value for p in points]
        spread = [[p[1].value - p[1].low for p in points], [p[1].high - p[1].value for p in points]]
        axes.errorbar(sizes, values, yerr=spread, color=color, linestyle=line, marker="o", capsize=2, label=arm)
    axes.set(xscale="log", yscale="log", xlabel="state, MB", title=title)
    axes.grid(visible=True, which="major", alpha=0.3)

"""Blocking time over the size of the state, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import arms
from benchmarks.config import Case
from benchmarks.estimates import Blocks, median

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


def _draw(axes: Any, found: Sequence[Blocks], quantity: Any, title: str) -> None:
    for arm, (color, line) in _STYLES.items():
        points = [(blocks.state_bytes / 1e6, median(quantity(blocks, arm))) for blocks in found if arm in blocks.names]
        points = [(size, estimate) for size, estimate in points if estimate.low > 0]
        sizes, values = [p[0] for p in points], [p[1].value for p in points]
        spread = [[p[1].value - p[1].low for p in points], [p[1].high - p[1].value for p in points]]
        axes.errorbar(sizes, values, yerr=spread, color=color, linestyle=line, marker="o", capsize=2, label=arm)
    axes.set(xscale="log", yscale="log", xlabel="state, MB", title=title)
    axes.grid(visible=True, which="major", alpha=0.3)

"""Medians and ratios of medians with 95 % bootstrap intervals; no value is ever left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.arms import NONE, NONE_AGAIN, ORDER

_RESAMPLES = 4000
_INTERVAL = (2.5, 97.5)
Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Estimate:
    """A median or a ratio of medians.

    Attributes:
        value: The estimate.
        low: Lower end of its 95 % interval.
        high: Upper end.
        n: Of how many values (of each arm).
    """

    value: float
    low: float
    high: float
    n: int

    def show(self, digits: int | None = None) -> str:
        """`1.23 (1.10..1.40)`."""
        return f"{number(self.value, digits)} ({number(self.low, digits)}..{number(self.high, digits)})"


def number(value: float, digits: int | None = None) -> str:
    """Three significant digits and at most three after the point, unless told how many."""
    if digits is None:
        size = abs(value)
        digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{digits}f}".replace("-0.000", "0.000")


def median(values: Sequence[float], seed: int = 0) -> Estimate:
    """The median and its bootstrap interval."""
    array = np.asarray(values, float)
    picks = np.random.default_rng(seed).integers(0, len(array), (_RESAMPLES, len(array)))
    low, high = np.percentile(np.median(array[picks], axis=1), _INTERVAL)
    return Estimate(float(np.median(array)), float(low), float(high), len(array))


def ratio(ours: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Estimate:
    """The ratio of two medians; values of the same round are resampled together."""
    one, other = np.asarray(ours, float), np.asarray(theirs, float)
    picks = np.random.default_rng(seed).integers(0, len(one), (_RESAMPLES, len(one)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.median(one[picks], axis=1) / np.median(other[picks], axis=1)
        low, high = np.nanpercentile(ratios, _INTERVAL)
        value = float(np.median(one) / np.median(other))
    return Estimate(value, float(low), float(high), len(one))


class Blocks:
    """The blocks of one gated fit, arm by arm in the order of rounds; the first round is apart."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.state_bytes: int = found["state_bytes"]
        self._blocks: list[Mapping[str, Any]] = found["blocks"]
        self.names = sorted({b["arm"] for b in self._blocks}, key=ORDER.index)

    def _of(self, arm: str, *, first: bool = False) -> list[Mapping[str, Any]]:
        found = [b for b in self._blocks if b["arm"] == arm and (b["round"] == 0) == first]
        return sorted(found, key=lambda b: b["round"])

    @property
    def usual_gap(self) -> float:
        """The median gap between two steps without a save."""
        return float(np.median([b["gap"] for name in (NONE, NONE_AGAIN) for b in self._of(name)]))

    @property
    def usual_step(self) -> float:
        """The median step after a gap without a save."""
        return float(np.median([b["steps"][0] for name in (NONE, NONE_AGAIN) for b in self._of(name)]))

    def blocking(self, arm: str) -> Values:
        """How long each save stopped training."""
        return np.array([b["gap"] for b in self._of(arm)]) - self.usual_gap

    def first_blocking(self, arm: str) -> float:
        """How long the process' first save stopped training."""
        return float(self._of(arm, first=True)[0]["gap"]) - self.usual_gap

    def with_next_step(self, arm: str) -> Values:
        """Blocking, and what the step behind it took longer than a usual one."""
        return self.blocking(arm) + np.array([b["steps"][0] for b in self._of(arm)]) - self.usual_step

    def total(self, arm: str) -> Values:
        """The whole block, from the save to the end of its last step."""
        return np.array([b["gap"] + sum(b["steps"]) + sum(b["gaps"]) for b in self._of(arm)])

    def cost(self, arm: str) -> Values:
        """What each block took longer than the block without a save of the same round."""
        return self.total(arm) - self.total(NONE)

    def cost_of_save(self, arm: str) -> Values:
        """That for each save that was made in a block."""
        return self.cost(arm) / np.maximum(1, self.made(arm))

    def made(self, arm: str, *, first: bool = False) -> Values:
        """How many saves of each block were complete at its end."""
        return np.array([b["made"][0] for b in self._of(arm, first=first)])

    def made_in_all(self, arm: str) -> int:
        """How many saves were complete in the end, those of the first round too."""
        return sum(b["made"][1] for b in self._blocks if b["arm"] == arm)

    def asked(self, arm: str) -> int:
        """How many saves were due, those of the first round too."""
        return sum(len(b["cpu"]) for b in self._blocks if b["arm"] == arm)

    def processor(self, arm: str) -> Values:
        """Processor time of each save in the thread that trains, those of the first round too."""
        return np.array([c for b in self._blocks if b["arm"] == arm for c in b["cpu"]])

    def wait(self, arm: str) -> Values:
        """How long was waited for each write to end."""
        return np.array([b["wait"] for b in self._of(arm)])

    def until_written(self, arm: str) -> Values:
        """From the begin of the save until everything was written, where nothing was trained meanwhile."""
        return self.blocking(arm) + self.wait(arm)

    def until_complete(self, arm: str) -> Values:
        """From the begin of the save until it was complete, whatever the arm did after that."""
        return np.array([b["complete"] for b in self._of(arm)]) - self.usual_gap

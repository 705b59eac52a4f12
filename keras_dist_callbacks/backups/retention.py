"""Which of the states that were saved stay: those that a rule names.

Pure functions of the records: whatever a process remembers may be older than what is stored.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from keras_dist_callbacks.base.validation import Some

Mode = Literal["min", "max"]
"""Which of two values of a monitored quantity is better."""

Rule = Literal["all", "max_to_keep", "keep_best", "keep_every", "finite"]
"""Why something stays; `"all"` where no rule is given, `"finite"` where all newer ones hold NaN or infinity."""


class Listed(Protocol):
    """What the rules look at."""

    @property
    def order(self) -> tuple[int, int]:
        """Generation and sequence; the larger one is newer."""

    @property
    def place(self) -> tuple[int, ...]:
        """Where it is in training; of several at one epoch or time, the smallest is the first."""

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""

    @property
    def seconds(self) -> float:
        """Since the first one of its training."""

    @property
    def is_finite(self) -> bool:
        """Whether it holds no NaN and no infinity, as far as is known."""

    @property
    def monitor(self) -> str | None:
        """Name of the monitored quantity."""

    @property
    def value(self) -> float | None:
        """Its value."""


@dataclass(frozen=True)
class Rules:
    """What stays; each rule that is None names nothing.

    Attributes:
        max_to_keep: So many of the newest.
        keep_best: So many with the best values of `monitor`; of equal ones the earlier. None without a finite value.
        keep_every: The first one at or after the ends of the epochs `keep_every`, `2 * keep_every`, ...; or at or after
            these times since the first one of the training.
        monitor: Name of the monitored quantity.
        mode: Which of its values is better.
    """

    max_to_keep: Some | None = None
    keep_best: Some | None = None
    keep_every: Some | datetime.timedelta | None = None
    monitor: str | None = None
    mode: Mode = "min"

    @property
    def keep_all(self) -> bool:
        """Whether there is no rule."""
        return self.max_to_keep is None and self.keep_best is None and self.keep_every is None

    @property
    def keep_newest(self) -> bool:
        """Whether whatever is saved stays at first."""
        return self.keep_all or self.max_to_keep is not None

    @property
    def keep_best_only(self) -> bool:
        """Whether nothing stays without a value of the monitored quantity."""
        return self.keep_best is not None and self.max_to_keep is None and self.keep_every is None

    @property
    def keep_several(self) -> bool:
        """Whether more than one may stay, by a rule."""
        return self.keep_every is not None or (self.max_to_keep or 0) + (self.keep_best or 0) > 1


@dataclass(frozen=True)
class ListedBackup:
    """What the rules look at of a backup."""

    order: tuple[int, int]
    place: tuple[int, ...]
    epoch: int
    seconds: float
    is_finite: bool = True
    monitor: str | None = None
    value: float | None = None


def to_json(rules: Rules) -> dict[str, Any]:
    """Returns the rules for backups as a manifest holds them."""
    every = rules.keep_every
    seconds = every.total_seconds() if isinstance(every, datetime.timedelta) else None
    found = {"max_to_keep": rules.max_to_keep, "keep_every": None if seconds else every, "keep_every_seconds": seconds}
    return {name: value for name, value in found.items() if value is not None}


def from_json(found: Mapping[str, Any]) -> Rules:
    """Returns the rules that a manifest holds."""
    seconds = found.get("keep_every_seconds")
    every = found.get("keep_every") if seconds is None else datetime.timedelta(seconds=seconds)
    return Rules(found.get("max_to_keep"), keep_every=every)


def kept(records: Sequence[Listed], rules: Rules) -> list[tuple[Rule, ...]]:
    """Returns for each record the rules that keep it; none for what may be deleted."""
    newest = sorted(range(len(records)), key=lambda place: records[place].order, reverse=True)
    finite = [place for place in newest if records[place].is_finite][:1]  # the newest one to which training can go back
    named: dict[Rule, Collection[int]] = {
        "all": range(len(records)) if rules.keep_all else (),
        "max_to_keep": newest[: rules.max_to_keep or 0],
        "keep_best": ranked(records, rules.monitor, rules.mode)[: rules.keep_best or 0],
        "keep_every": _first_of_each(records, rules.keep_every) if rules.keep_every else (),
        "finite": finite if finite != newest[:1] else (),
    }
    return [tuple(rule for rule, places in named.items() if place in places) for place in range(len(records))]


def ranked(records: Sequence[Listed], monitor: str | None, mode: Mode) -> list[int]:
    """Returns where the records with a value of the monitored quantity are, the best first; of equal ones the older."""
    sign = 1 if mode == "min" else -1
    values = {
        place: sign * record.value
        for place, record in enumerate(records)
        if record.monitor == monitor and record.value is not None and math.isfinite(record.value)
    }
    return sorted(values, key=lambda place: (values[place], records[place].order))


def _first_of_each(records: Sequence[Listed], every: int | datetime.timedelta) -> list[int]:
    """Where the first record at or after each multiple of so many epochs, or of a time, is."""

    def multiples(record: Listed) -> int:
        if isinstance(every, datetime.timedelta):
            return int(record.seconds // every.total_seconds())
        return record.epoch // every

    found: list[int] = []
    passed = 0
    for number in sorted(range(len(records)), key=lambda number: records[number].place):
        if multiples(records[number]) > passed:
            passed = multiples(records[number])
            found.append(number)
    return found

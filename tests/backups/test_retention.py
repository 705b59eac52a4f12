"""Which of several saved states stay: a table of the rules and of twelve epochs."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import pytest

from keras_dist_callbacks.backups.retention import Rules, kept, ranked
from tests.support.retention_table import TABLE, VALUES, Given


@dataclass(frozen=True)
class Listed:
    epoch: int
    value: float | None = None
    generation: int = 1
    sequence: int = 0
    monitor: str = "loss"
    seconds: float = 0.0
    is_finite: bool = True

    @property
    def place(self) -> tuple[int, ...]:
        return self.epoch, -self.generation, self.sequence

    @property
    def order(self) -> tuple[int, int]:
        return self.generation, self.sequence or self.epoch


EPOCHS = [Listed(epoch, value) for epoch, value in enumerate(VALUES, 1)]


def epochs(records: list[Listed], rules: Rules) -> list[int]:
    return [one.epoch for one, why in zip(records, kept(records, rules), strict=True) if why]


@pytest.mark.parametrize("given", list(TABLE))
def test_what_stays_of_twelve_epochs(given: Given) -> None:
    rules = Rules(*given, monitor="loss")
    assert epochs(EPOCHS, rules) == TABLE[given][1]
    assert epochs(EPOCHS[::-1], rules) == TABLE[given][1][::-1], "whatever the order in which they are listed"


def test_the_rules_that_keep_a_record_are_named() -> None:
    reasons = kept(EPOCHS, Rules(2, 3, 5, "loss"))
    assert reasons[10] == ("max_to_keep", "keep_best")
    assert reasons[9] == ("keep_every",)
    assert reasons[0] == ()
    assert kept(EPOCHS, Rules())[0] == ("all",)


def test_the_mode_decides_and_of_equal_values_the_earlier_is_better() -> None:
    assert epochs(EPOCHS, Rules(keep_best=1, monitor="loss", mode="max")) == [1]
    assert epochs(EPOCHS, Rules(keep_best=2, monitor="loss")) == [6, 11]
    assert [EPOCHS[place].epoch for place in ranked(EPOCHS, "loss", "min")] == [11, 6, 9, 8, 2, 4, 12, 5, 10, 1]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_has_no_finite_value_is_never_among_the_best(value: float | None) -> None:
    assert epochs([Listed(1, value)], Rules(keep_best=5, monitor="loss")) == []


def test_the_values_of_another_quantity_do_not_count() -> None:
    records = [Listed(1, 0.1, monitor="accuracy"), Listed(2, 0.5)]
    assert epochs(records, Rules(keep_best=2, monitor="loss")) == [2]


@pytest.mark.parametrize(
    ("saved", "stay"),
    [
        ([3, 6, 7, 9, 12], [6, 12]),  # the first at or after 5 and 10
        ([4, 17, 18, 20], [17, 20]),  # the first after 5, 10 and 15 at once
        ([1, 2], []),
    ],
)
def test_the_first_record_at_or_after_each_multiple_stays(saved: list[int], stay: list[int]) -> None:
    assert epochs([Listed(epoch) for epoch in saved], Rules(keep_every=5)) == stay


def test_within_an_epoch_the_first_record_stays_and_a_restarted_run_takes_its_place() -> None:
    records = [Listed(5, sequence=8), Listed(5, sequence=9), Listed(6, sequence=10)]
    assert [bool(why) for why in kept(records, Rules(keep_every=5))] == [True, False, False]
    again = [*records, dataclasses.replace(records[1], generation=2)]
    assert [bool(why) for why in kept(again, Rules(keep_every=5))] == [False, False, False, True]


def test_a_run_that_starts_again_at_an_early_epoch_keeps_its_own_milestones() -> None:
    earlier = [Listed(5), Listed(10)]
    assert epochs([*earlier, Listed(6, generation=2)], Rules(keep_every=5)) == [5, 10]
    assert epochs([earlier[1], Listed(5, generation=2)], Rules(keep_every=5)) == [10, 5]

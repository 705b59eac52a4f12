"""What must not change between two runs, and codes of findings in the table of facts."""

from __future__ import annotations

import pytest

from keras_dist_callbacks.backups.findings import CATALOG, Finding
from keras_dist_callbacks.state.facts import table
from keras_dist_callbacks.state.facts.script_facts import changes_of_run

RUN = {"seed": 7, "replicas": 1, "workers": 1, "strategy": "Strategy", "steps_per_epoch": 5, "steps_per_execution": 2}
RUN |= {"keras": "3.8", "tensorflow": "2.18"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.finds(name)) for name in RUN])
def test_what_must_not_change_is_named_with_both_values(name: str) -> None:
    (found,) = changes_of_run(RUN, {**RUN, name: 70})
    assert found == Finding(name, detail=(str(RUN[name]), "70"))
    assert f"changed from {RUN[name]} to 70; " in found.message
    assert changes_of_run(RUN, RUN) == []


def test_what_only_one_run_says_is_compared_where_it_is_the_interrupted_one() -> None:
    assert changes_of_run({**RUN, "seed": None}, RUN) == []
    (found,) = changes_of_run(RUN, {**RUN, "seed": None})
    assert found == Finding("seed", detail=("7", "None"))


def test_the_changes_of_all_facts_are_rows_of_the_catalog() -> None:
    facts = [*table.INPUT, *table.PASSES, *table.COMPILE, table.RATE, *table.MODEL]
    codes = {fact.change for fact in facts if isinstance(fact.change, str)}
    assert codes <= CATALOG.keys()
    assert {fact.name for fact in (*table.RUN, *table.FIT) if fact.change} <= CATALOG.keys()
    assert len({fact.name for fact in facts}) == len(facts)


def test_of_a_stage_that_only_one_run_has_only_the_stage_is_named() -> None:
    stage = {"input/Dataset.take": "after Dataset.shuffle", "input/Dataset.take/count": "3"}
    found = [finding for _, finding in table.changes(table.INPUT, {"stages": stage}, {"seeds": {}})]
    assert found == [Finding("setting", detail=("input's Dataset.take", "after Dataset.shuffle", "absent"))]


def test_a_value_that_only_ends_like_another_fact_is_a_setting_of_its_layer() -> None:
    """A layer of the user's may have options that are called as parts of other facts are."""
    options = ("values", "names", "sizes", "samples", "times", "unread", "seed")
    for option in options:
        before, now = ({"layers": {f"model/layers/0/config/{option}": value}} for value in ("1", "2"))
        found = [finding for _, finding in table.changes(table.MODEL, before, now)]
        assert found == [Finding("setting", detail=(f"model/layers/0/config/{option}", "1", "2"))]

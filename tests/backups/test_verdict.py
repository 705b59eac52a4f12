"""The three answers, what leads to each, and how findings are said."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import pytest

from keras_dist_callbacks.backups import findings, verdict
from keras_dist_callbacks.backups.findings import CATALOG, FINISHED, Finding
from keras_dist_callbacks.backups.snapshot import Position, WorkerState
from keras_dist_callbacks.backups.verdict import Verdict

LOST, UNKNOWN = Finding("loop-twice"), Finding("step-opaque")


def saved(**parts: list[Finding]) -> WorkerState:
    state = {f"{part}/{findings.FINDINGS}": findings.to_json(found) for part, found in parts.items()}
    return WorkerState(Position("within", 1, 2, 7), {}, state, {})


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        ([], "exact"),
        ([UNKNOWN], f"exact if {UNKNOWN.message}"),
        ([UNKNOWN, Finding("loop")], f"exact if {UNKNOWN.message}; and if {Finding('loop').message}"),
        ([LOST], "not exact"),
        ([LOST, UNKNOWN], "not exact"),
        ([replace(LOST, carried_from=FINISHED)], f"exact if {replace(LOST, carried_from=FINISHED).message}"),
    ],
)
def test_there_are_three_answers(found: list[Finding], answer: str) -> None:
    assert str(Verdict(tuple(found))) == answer
    assert answer.startswith(Verdict(tuple(found)).word)


def test_what_is_saved_is_read_back_by_its_part() -> None:
    state = saved(input=[LOST, LOST], earlier=[replace(LOST, carried_from="epoch 1"), UNKNOWN])
    assert verdict.found_in(state) == [LOST, replace(LOST, carried_from="epoch 1"), UNKNOWN]
    assert verdict.found_in(state, ["input"]) == [LOST]
    assert verdict.found_in(saved()) == []


@pytest.mark.parametrize("code", CATALOG)
def test_each_row_makes_a_sentence_of_its_detail(code: str) -> None:
    row = CATALOG[code]
    texts = (row.sentence, row.advice, row.item)
    fields = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
    assert fields <= {"subject", "items", "0", "1", "2", "3", "4", "5"}
    assert ("items" in fields) == bool(row.item)
    text = Finding(code, "SUBJECT", tuple(f"D{number}" for number in range(6))).message
    assert "{" not in text
    assert "}" not in text
    assert text[0] != " "
    assert not text.endswith((".", " ", ";"))
    assert ("SUBJECT" in text) == ("subject" in fields)


def test_many_of_one_kind_are_one_sentence() -> None:
    many = [Finding("step-random", detail=(f"RandomUniform (dropout_{number})",)) for number in range(7)]
    (reason,) = findings.sentences(many)
    assert "RandomUniform (dropout_3), and 3 more, whose state" in reason


def test_of_many_sentences_of_one_kind_the_first_four_are_said() -> None:
    many = [Finding("setting", detail=(f"rate_{number}", "1", "2")) for number in range(7)]
    said = findings.sentences([UNKNOWN, *many])
    assert said == [UNKNOWN.message, *(one.message for one in many[:4]), "and 3 more"]


def test_what_two_objects_have_is_said_of_each() -> None:
    found = [Finding("callback-state", f"the callback {name}", (place, "why")) for name in "AB" for place in "xy"]
    first, second = findings.sentences(found)
    assert first.startswith("the state of the callback A is not restored: x (why), y (why); ")
    assert second.startswith("the state of the callback B is not restored: x (why), y (why); ")


@pytest.mark.parametrize(
    "found",
    [
        ["a code that is not known", "", [], ""],
        ["environment", "", [], ""],  # fewer than the sentence has places
        ["environment", "\x1b[31m", ["\x07" * 9, "{0}", "{subject}", "4", "5", "6", "7"], "\n"],
        ["environment", "", ["x" * 10**6], ""],
        ["set-otherwise", "x" * 10**6, ["x" * 10**6], "x" * 10**6],
        ["x" * 10**6, "", [], ""],
    ],
)
def test_a_sentence_of_what_another_version_has_written_is_bounded_and_printable(found: list[Any]) -> None:
    (text,) = findings.sentences(findings.from_json([found]))
    assert text.isprintable()
    assert len(text) < 2000

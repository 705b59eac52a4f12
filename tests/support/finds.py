"""`@pytest.mark.finds("code", ...)`: this test makes the package find what the rows of the catalog say.

A mark is not taken at its word: the test fails if the package has not made these findings while it ran. Findings that
the test itself makes, or that are read from a backup, do not count.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest

from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.findings import Finding
from tests.support import ROOT
from tests.support.stress_selection import gate_places


@pytest.fixture(autouse=True)
def the_package_finds_what_a_mark_says(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    wanted = {code for mark in request.node.iter_markers("finds") for code in mark.args}
    if not wanted:
        yield
        return
    found: set[str] = set()
    original = Finding.__init__

    def note(self: Finding, *values: Any, **named: Any) -> None:
        original(self, *values, **named)
        if _is_made_by_the_package(sys._getframe(1)):
            found.add(self.code)

    monkeypatch.setattr(Finding, "__init__", note)
    yield
    assert found >= wanted, f"the package has not found {', '.join(sorted(wanted - found))}"


def _is_made_by_the_package(frame: FrameType | None) -> bool:
    """Whether code of the package has made it, and not read it; `findings.made` stands for its caller."""
    while frame is not None and frame.f_globals["__name__"] == findings.__name__:
        if "from_json" in frame.f_code.co_qualname:
            return False
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"].startswith("keras_dist_callbacks.")


def marked() -> set[str]:
    """The codes that a test of the gate finds by its mark."""
    paths = (path for path in ROOT.glob("tests/**/test_*.py") if "mark.finds(" in path.read_text(encoding="utf-8"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return {code for name in names for code in _marked_in(importlib.import_module(name))}


def _marked_in(module: ModuleType) -> Iterator[str]:
    everywhere = _names(_marks(getattr(module, "pytestmark", ())))
    for name, function in vars(module).items():
        marks = _marks(getattr(function, "pytestmark", ()))
        if not name.startswith("test_") or "chaos" in everywhere | _names(marks):
            continue
        tables = [list(mark.args[1]) for mark in marks if mark.name == "parametrize"]
        kept = [mark.args[0] for mark in marks if mark.name == "in_gate"]
        if kept:  # of one table, it is known which cases the gate runs
            tables = [[t[place] for place in gate_places(len(t), kept[0])] for t in tables if len(tables) == 1]
        of_cases = [_marks(case.marks) for table in tables for case in table if hasattr(case, "marks")]
        for found in [marks, *(of_case for of_case in of_cases if "chaos" not in _names(of_case))]:
            yield from (code for mark in found if mark.name == "finds" for code in mark.args)


def _marks(given: Any) -> list[pytest.Mark]:
    many = given if isinstance(given, Iterable) else [given]
    return [getattr(mark, "mark", mark) for mark in many]


def _names(marks: Iterable[pytest.Mark]) -> set[str]:
    return {mark.name for mark in marks}

"""Stress tests say how much they tried: `count(...)` in a test becomes a line at the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_KEY = "campaign count"


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Notes a sentence with figures for the end of the run."""
    return lambda sentence: record_property(_KEY, sentence)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [r for group in ("passed", "failed") for r in terminalreporter.stats.get(group, [])]
    lines = [(r.nodeid, value) for r in reports for key, value in getattr(r, "user_properties", ()) if key == _KEY]
    if lines:
        terminalreporter.section("counts")
        for name, value in sorted(set(lines)):
            terminalreporter.line(f"{name.rpartition('::')[2]}: {value}")

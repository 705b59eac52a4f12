"""Which cases of a test the gate runs, and which of the stress tests: a seeded share, or all that have not passed yet.

@pytest.mark.in_gate(6)            the gate runs six cases of this test, evenly spread; the others are a stress test
--chaos-share 0.2 --chaos-seed 7   of each stress test function a fifth of its cases, at least one
--chaos-log FILE                   cases that passed on this commit are skipped, and new ones are noted
"""

from __future__ import annotations

import collections
import math
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

_LOG = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("campaigns")
    group.addoption("--chaos-share", type=float, default=1.0, help="share of the cases of each campaign function")
    group.addoption("--chaos-seed", type=int, default=0, help="which of them")
    group.addoption("--chaos-log", type=Path, help="file with what passed on this commit; that is skipped")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    mark_campaigns(items)
    yield  # `-m` deselects
    chosen = sample(items, config.getoption("--chaos-share"), config.getoption("--chaos-seed"))
    log = config.getoption("--chaos-log")
    if log is not None:
        passed = set(read_log(log, revision()))
        chosen = [item for item in chosen if item.nodeid not in passed]
    left_out = [item for item in items if item not in set(chosen)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def mark_campaigns(items: list[pytest.Item]) -> None:
    """Marks as `chaos` what a test with `in_gate` has beyond that number of cases."""
    cases: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("in_gate") is not None and item.get_closest_marker("chaos") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        kept = int(found[0].get_closest_marker("in_gate").args[0])  # type: ignore[union-attr]
        in_gate = gate_places(len(found), kept)
        for index, item in enumerate(found):
            if kept < len(found) and index not in in_gate:
                item.add_marker(pytest.mark.chaos)


def gate_places(cases: int, kept: int) -> set[int]:
    """Which of a test's cases the gate runs."""
    return {index * cases // kept for index in range(kept)}


def sample(items: list[pytest.Item], share: float, seed: int) -> list[pytest.Item]:
    """Of each function's chaos cases the given share, at least one; of other tests all."""
    cases: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("chaos") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for function, found in cases.items():
        kept = max(1, math.ceil(len(found) * share))
        left_out.update(random.Random(f"{seed} {function}").sample(found, len(found) - kept))  # noqa: S311
    return [item for item in items if item not in left_out]


def pytest_configure(config: pytest.Config) -> None:
    log = config.getoption("--chaos-log")
    if log is not None and not hasattr(config, "workerinput"):  # of several processes, the one that hears of all tests
        config.pluginmanager.register(_Log(log, revision()))


class _Log:
    """Notes what passed, at once, so that a run that is terminated loses nothing."""

    def __init__(self, path: Path, commit: str) -> None:
        self._path, self._commit = path, commit
        path.parent.mkdir(parents=True, exist_ok=True)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{self._commit} {report.duration:.1f} {report.nodeid}\n")


def read_log(path: Path, commit: str) -> list[str]:
    """The ids of the tests that passed on a commit."""
    if not path.exists() or commit.endswith("-dirty"):  # then it may be another tree than the one that passed
        return []
    rows = [line.split(" ", 2) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row[2] for row in rows if row[0] == commit]


def revision() -> str:
    """The commit; `-dirty` after it if files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return described.stdout.strip()

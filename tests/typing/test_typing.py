"""What mypy finds in wrong uses of the public names, and that it finds nothing in right ones."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support import ROOT

WRONG, RIGHT = (Path(__file__).with_name(f"{name}_uses.py") for name in ("wrong", "right"))


def expected(page: Path) -> dict[int, set[str]]:
    """The codes of each line that says what is found there."""
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    said = {number: line.split("  # mypy: ")[1].split(", ") for number, line in lines if "  # mypy: " in line}
    return {number: set(codes) for number, codes in said.items() if codes != ["nothing"]}


@pytest.mark.process
@pytest.mark.slow
def test_mypy_finds_what_each_wrong_use_says_and_nothing_in_right_ones() -> None:
    pages = [str(page.relative_to(ROOT)) for page in (WRONG, RIGHT)]
    command = [sys.executable, "-m", "mypy", "--hide-error-context", "--no-pretty", "--no-color-output", *pages]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for page, line, code in re.findall(r"^(.+?):(\d+): error: .*\[([\w-]+)\]$", result.stdout, re.MULTILINE):
        found[page][int(line)].add(code)
    assert found == {pages[0]: expected(WRONG)}, result.stdout + result.stderr

"""What examples say that they print, next to what they print."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT

NUMBER = r"\d+\.\d+\b"


def docstring(name: str) -> str:
    """What an example says that it prints."""
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").split('"""')[1]
    return "\n".join(line.strip() for line in text.splitlines())


def assert_said(name: str, printed: str) -> None:
    """Each line is in the docstring, but for what another processor computes in another way."""
    said, lines = docstring(name).splitlines(), printed.splitlines()
    assert lines
    for line in lines:
        (same,) = [known for known in said if re.sub(NUMBER, "", known) == re.sub(NUMBER, "", line)]
        found, expected = ([float(x) for x in re.findall(NUMBER, text)] for text in (line, same))
        assert found == pytest.approx(expected, abs=0.05)

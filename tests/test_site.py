"""The documentation site: what its API page names, and what fails its build."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks import advanced, testing
from tests.support import ROOT


def test_the_api_page_has_each_public_name_once() -> None:
    named: dict[str, list[str]] = {}
    module = ""
    for kind, name in re.findall(r"^\.\. (\w+):: ([\w.]+)$", (ROOT / "docs/api.md").read_text("utf-8"), re.MULTILINE):
        if kind == "currentmodule":
            module = name
        else:
            named.setdefault(module, []).append(name)
    for public in (kdc, advanced, testing):
        names = {name for name in public.__all__ if name not in {"__version__", "advanced"}}
        assert sorted(named[public.__name__]) == sorted(names)


@pytest.mark.process
@pytest.mark.slow
def test_the_build_fails_if_a_page_would_ask_another_host(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")  # the environments of `make versions` do not have it
    pages, out = tmp_path / "pages", tmp_path / "out"
    pages.mkdir()
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", str(ROOT / "docs"), str(pages), str(out)]
    page = "# Title\n\n[a link](https://example.org) and `https://example.org`\n"
    for text, code in ((page, 0), (f"{page}\n![a badge](https://example.org/badge.svg)\n", 2)):
        (pages / "index.md").write_text(text, encoding="utf-8")
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == code, built.stderr
    assert "index.html asks other hosts: <img src=https://example.org/badge.svg>" in built.stderr

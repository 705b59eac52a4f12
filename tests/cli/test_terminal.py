"""Whatever a store holds, a terminal gets nothing to interpret: names and texts are shown as they are spelled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import hostile
from tests.support.cli_backups import kdc
from tests.support.hostile import HOSTILE, MARKUP, READABLE, obeyed_in

COMMANDS = {
    "ls": [],
    "show": ["--all"],
    "show-oldest": ["--commit", "1-1"],
    "show-unknown": ["--commit", "9-9"],
    "verify": [],
    "verify-one": ["--commit", "1-3"],
    "doctor": [],
    "prune-dry": ["--keep", "1", "--dry-run", "--force"],
    "prune": ["--keep", "1", "--yes", "--force"],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "sources").mkdir()
    place = tmp_path / f"dir{HOSTILE}"
    hostile.make(place, tmp_path / "sources")
    return place


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_hostile_directory_reaches_the_terminal_as_escapes(directory: Path, name: str) -> None:
    result = kdc(name.partition("-")[0], directory, *COMMANDS[name])
    assert obeyed_in(result.stdout + result.stderr) == []
    assert "Traceback" not in result.stderr
    assert "\\x1b]0;owned\\x07" in result.output
    assert not any(line.startswith(HOSTILE[-3:]) for line in result.output.splitlines())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_json_of_a_hostile_directory_is_json_and_printable(directory: Path, name: str) -> None:
    result = kdc(name.partition("-")[0], directory, *COMMANDS[name], "--json")
    assert obeyed_in(result.stdout + result.stderr) == []
    if name == "show-unknown":
        assert (result.exit_code, result.stdout) == (2, "")
    else:
        assert json.loads(result.stdout)["url"].startswith(str(directory.parent))


def test_ordinary_letters_and_markup_stay_readable(directory: Path) -> None:
    listed = kdc("ls", directory).stdout
    shown = kdc("show", directory, "--all").stdout
    for text in (listed, shown):
        assert READABLE in text
        assert "[red]x[" in text
    assert MARKUP in shown


def test_names_in_json_are_those_in_the_store(directory: Path) -> None:
    names = {row["name"] for row in json.loads(kdc("ls", directory, "--json").stdout)["checkpoints"]}
    assert names
    assert names <= {path.name for path in directory.iterdir()}

"""The reader that docs/file_format.md shows, on backups of real fits: it needs numpy alone."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.manifest import PARTS
from keras_dist_callbacks.backups.packing import hash_array
from tests.support import ROOT, cli_backups, tiny

PAGE = (ROOT / "docs/file_format.md").read_text(encoding="utf-8")
(READER,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def reader(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the page's block, which has read the backup in `directory/runs/backup`."""
    monkeypatch.chdir(directory)
    names: dict[str, Any] = {}
    exec(compile(READER, "file_format.md", "exec"), names)  # noqa: S102 - our own page
    return names


def test_the_reader_is_short_and_needs_numpy_alone() -> None:
    assert len(READER.splitlines()) <= 60
    imports = [node for node in ast.walk(ast.parse(READER)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {ast.unparse(node) for node in imports} == {"import json", "from pathlib import Path", "import numpy as np"}


@pytest.mark.slow
def test_the_reader_reads_what_load_backup_reads_of_an_interrupted_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.interrupt(tmp_path / "runs/backup", 1, 3)
    names = reader(tmp_path, monkeypatch)
    ours, theirs = kdc.load_backup(tmp_path / "runs/backup"), names["weights"](names["tensors"])
    assert ours.keys() == theirs.keys()
    assert len(ours) > 5
    for path, value in ours.items():
        np.testing.assert_array_equal(value, theirs[path])
    places = names["manifest"]["workers"][0]["tensors"]
    assert {name: hash_array(value) for name, value in names["tensors"].items()} == {
        name: place["hash"] for name, place in places.items()
    }
    assert names["manifest"]["position"]["kind"] == "within"
    assert "loss" in names["state"]["progress/logs"]


def test_the_reader_reads_backups_of_earlier_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "tests/golden/backup-v1", tmp_path / "runs/backup")
    names = reader(tmp_path, monkeypatch)
    assert names["manifest"]["id"]["sequence"] == 2
    ours = kdc.load_backup(tmp_path / "runs/backup")
    theirs = names["weights"](names["tensors"])
    assert {path: value.tolist() for path, value in ours.items()} == {p: v.tolist() for p, v in theirs.items()}


def test_the_reader_gives_each_worker_its_own_state_and_the_newest_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cli_backups.begin(tmp_path / "runs/backup")
    half = np.arange(3).astype(ml_dtypes.bfloat16)
    for sequence in (1, 2):
        cli_backups.commit(
            store,
            sequence,
            [
                {"variables/shared@0": np.full((2, 3), sequence), "variables/own@0": half, "input/gone": np.ones(2)},
                {"variables/own@0": half * 2},
            ],
            states=({"input/by_count": [[1, 2]]}, {"input/by_count": None, "input/gone": None}),
        )
    names = reader(tmp_path, monkeypatch)
    _, chief, chiefs_state = names["read_backup"]("runs/backup")
    manifest, other, others_state = names["read_backup"]("runs/backup", worker=1)
    assert manifest["id"]["sequence"] == 2
    assert chief["variables/shared@0"].tolist() == other["variables/shared@0"].tolist() == [[2, 2, 2]] * 2
    assert (chief["variables/own@0"].dtype, chief["variables/own@0"].tolist()) == (half.dtype, [0, 1, 2])
    assert other["variables/own@0"].tolist() == [0, 2, 4]
    assert chief.keys() - other.keys() == {"input/gone"}
    assert chiefs_state.keys() - others_state.keys() == {"input/by_count"}


def test_the_page_names_each_part_of_a_manifest() -> None:
    table = PAGE.partition("Names of tensors and topics begin")[2].partition("Each part has")[0]
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(PARTS)

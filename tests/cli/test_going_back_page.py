"""Every command of the page "Going back" does what the page says, one after the other."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from keras_dist_callbacks.backups.snapshot import Position
from tests.support.cli_backups import begin, commands_of, commit, kdc, kdc_json

COMMANDS = commands_of("going_back.md")
NEWEST = {
    "kdc rollback runs/backup --before-step 40 --dry-run": "1-6",
    "kdc rollback runs/backup --to 1-3": "1-3",
    "kdc rollback runs/backup --undo": "1-6",
    "kdc rollback runs/backup --before-epoch 2": "1-1",
}


def test_every_command_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = begin(Path("runs/backup"))
    for epoch in range(1, 7):
        values = {"variables/w@0": np.full(9, epoch, "float32")}
        commit(store, epoch, values, position=Position("between", epoch, 0, epoch * 10), kept={"max_to_keep": 6})
    assert len(COMMANDS) == 7
    for command in COMMANDS:
        result = kdc(*shlex.split(command)[1:])
        assert result.exit_code == 0, (command, result.output)
        if command in NEWEST:
            assert kdc_json("ls", "runs/backup")["commits"][0]["commit"] == NEWEST[command]
    assert "training was rolled back to its start" in kdc("ls", "runs/backup").stdout

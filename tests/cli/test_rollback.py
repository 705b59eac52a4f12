"""`kdc rollback`: each way to name a backup leads to it."""

from __future__ import annotations

from pathlib import Path

from keras_dist_callbacks.backups.snapshot import Position
from tests.support.cli_backups import begin, commit, kdc, kdc_json


def test_each_way_to_name_a_backup_leads_to_it(tmp_path: Path) -> None:
    store = begin(tmp_path)
    for epoch in range(1, 7):
        commit(store, epoch, position=Position("between", epoch, 0, epoch * 10), kept={"max_to_keep": 6})
    for options, newest in (
        ("--before-step 40 --dry-run", "1-6"),
        ("--to 1-3", "1-3"),
        ("--undo", "1-6"),
        ("--before-epoch 2", "1-1"),
    ):
        result = kdc("rollback", tmp_path, *options.split())
        assert result.exit_code == 0, (options, result.output)
        assert kdc_json("ls", tmp_path)["commits"][0]["commit"] == newest
    assert kdc("rollback", tmp_path, "--to", "start").exit_code == 0
    assert "training was rolled back to its start" in kdc("ls", tmp_path).stdout

"""`kdc verify`: every kind of damage is named, and nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.cli import inventory, upkeep
from keras_dist_callbacks.storage.storage import Storage
from tests.support import cli_backups
from tests.support.cli_backups import begin, commit, everything, flip, kdc, kdc_json, publish, rewrite

url = cli_backups.url


def test_intact_backups_and_checkpoints_are_exit_code_0(url: str, tmp_path: Path) -> None:
    store = begin(url)
    commit(store, 1, [{"variables/w@0": np.zeros(9)}, {"variables/w@0": np.ones(9)}])
    commit(store, 2)
    publish(url, "a.keras", 1, tmp_path)
    found = kdc_json("verify", url)
    assert found["all_intact"] is True
    assert [(v["kind"], v["state"]) for v in found["verdicts"]] == [
        ("backup", "intact"),
        ("backup", "intact"),
        ("checkpoint", "intact"),
    ]
    result = kdc("verify", url)
    assert "3 intact" in result.stdout
    assert result.stderr == ""  # no progress bar where there is no terminal


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_blob_is_named_and_the_other_backups_are_intact(url: str, damage: str) -> None:
    store = begin(url)
    bad, good = commit(store, 1), commit(store, 2)
    path = bad.blobs[0].path
    if damage == "flipped":
        flip(url, path)
    else:
        rewrite(url, path, None if damage == "missing" else store.storage.read(path)[:-1])
    before = everything(url)
    found = kdc_json("verify", url, code=1)
    assert found["all_intact"] is False
    assert [(v["name"], v["state"]) for v in found["verdicts"]] == [
        (good.id.name, "intact"),
        (bad.id.name, "damaged"),
    ]
    assert path in found["verdicts"][1]["problem"]
    assert everything(url) == before
    assert kdc("verify", url).stdout.splitlines()[-1].strip() == "1 intact, 1 damaged"


def test_damage_that_only_one_worker_has_is_found(tmp_path: Path) -> None:
    store = begin(tmp_path)
    manifest = commit(store, 1, [{"variables/w@0": np.zeros(9)}, {"variables/w@0": np.ones(9)}])
    own = manifest.workers[1].tensors["variables/w@0"].blob
    assert own not in {info.blob for info in manifest.workers[0].tensors.values()}
    flip(tmp_path, own)
    assert own in kdc_json("verify", tmp_path, code=1)["verdicts"][0]["problem"]


def test_what_one_worker_does_not_need_of_a_shared_blob_is_verified_for_the_others(tmp_path: Path) -> None:
    store = begin(tmp_path)
    ones = {"variables/a@0": np.ones(9)}  # of worker 1; the same as another tensor of the chief
    manifest = commit(store, 1, [{"variables/a@0": np.zeros(9), "variables/b@0": np.ones(9)}, ones])
    (blob,) = manifest.blobs
    content = bytearray(store.storage.read(blob.path))
    content[manifest.workers[0].tensors["variables/a@0"].start] ^= 1
    rewrite(tmp_path, blob.path, bytes(content))
    assert kdc_json("verify", tmp_path, code=1)["verdicts"][0]["state"] == "damaged"


def test_a_damaged_manifest_is_named_and_left_where_it_is(url: str) -> None:
    store = begin(url)
    manifest = commit(store, 1)
    commit(store, 2)
    flip(url, manifest.id.name)
    before = everything(url)
    intact, damaged = kdc_json("verify", url, code=1)["verdicts"]
    assert (intact["state"], damaged["state"], damaged["name"]) == ("intact", "damaged", manifest.id.name)
    assert everything(url) == before


def test_damaged_checkpoints_are_named(url: str, tmp_path: Path) -> None:
    for epoch, name in enumerate(["good.keras", "bad one.keras", "record.keras", "gone.keras"], start=1):
        publish(url, name, epoch, tmp_path)
    flip(url, "bad one.keras", 40)
    flip(url, "record.keras", -100)
    rewrite(url, "gone.keras", None)
    before = everything(url)
    states = {v["name"]: v["state"] for v in kdc_json("verify", url, code=1)["verdicts"]}
    assert states == {
        "good.keras": "intact",
        "bad one.keras": "damaged",
        "record.keras": "damaged",
    }
    assert everything(url) == before


def test_one_backup_alone_can_be_verified(tmp_path: Path) -> None:
    store = begin(tmp_path)
    bad, good = commit(store, 1), commit(store, 2)
    flip(tmp_path, bad.blobs[0].path)
    assert [v["name"] for v in kdc_json("verify", tmp_path, "--commit", "latest")["verdicts"]] == [good.id.name]
    assert [v["name"] for v in kdc_json("verify", tmp_path, "--commit", "1-1", code=1)["verdicts"]] == [bad.id.name]


def test_a_blob_that_backups_share_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = begin(tmp_path)
    same = {"variables/w@0": np.arange(50)}
    commit(store, 2, same, known=commit(store, 1, same))
    real, calls = upkeep.verify_tensors, []

    def note(storage: Storage, tensors: Any, blobs: Any) -> None:
        calls.append(blobs)
        real(storage, tensors, blobs)

    monkeypatch.setattr(upkeep, "verify_tensors", note)
    assert len(kdc_json("verify", tmp_path)["verdicts"]) == 2
    assert len(calls) == 1


def test_a_shared_blob_that_is_damaged_damages_every_backup_that_needs_it(tmp_path: Path) -> None:
    store = begin(tmp_path)
    same = {"variables/w@0": np.arange(50)}
    first = commit(store, 1, same)
    commit(store, 2, same, known=first)
    flip(tmp_path, first.blobs[0].path)
    assert [v["state"] for v in kdc_json("verify", tmp_path, code=1)["verdicts"]] == ["damaged", "damaged"]


def test_what_a_running_fit_deletes_meanwhile_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = begin(tmp_path)
    old, new = commit(store, 1), commit(store, 2)
    real = upkeep.verify_tensors

    def while_a_run_prunes(*arguments: Any) -> None:
        for name in (old.id.name, old.blobs[0].path):
            Storage.open(tmp_path).delete(name)
        real(*arguments)

    monkeypatch.setattr(upkeep, "verify_tensors", while_a_run_prunes)
    assert [v["name"] for v in kdc_json("verify", tmp_path)["verdicts"]] == [new.id.name]


def test_a_first_backup_that_was_never_finished_is_not_damage(url: str) -> None:
    commit(begin(url), 1)
    crashed = begin(url)
    torn = commit(crashed, 1)
    rewrite(url, torn.id.name, b"{")
    rewrite(url, "owners/000002.committed", None)
    assert [v["state"] for v in kdc_json("verify", url)["verdicts"]] == ["unfinished", "intact"]
    assert [row["state"] for row in kdc_json("ls", url)["commits"]] == ["unfinished", "ok"]
    rewrite(url, "owners/000002.committed", b"{}")
    assert [v["state"] for v in kdc_json("verify", url, code=1)["verdicts"]] == ["damaged", "intact"]


def test_a_manifest_that_is_deleted_after_it_was_listed_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = begin(tmp_path)
    old, new = commit(store, 1), commit(store, 2)
    real = BackupStore.manifest

    def while_a_run_prunes(self: BackupStore, wanted: Any) -> Any:
        Storage.open(tmp_path).delete(old.id.name)
        return real(self, wanted)

    monkeypatch.setattr(BackupStore, "manifest", while_a_run_prunes)
    monkeypatch.setattr(inventory, "_READERS", 1)
    assert [row["name"] for row in kdc_json("ls", tmp_path)["commits"]] == [new.id.name]
    assert [v["name"] for v in kdc_json("verify", tmp_path)["verdicts"]] == [new.id.name]


def test_manifests_that_a_run_has_quarantined_are_mentioned_and_no_new_problem(tmp_path: Path) -> None:
    store = begin(tmp_path)
    bad = commit(store, 1)
    commit(store, 2)
    store.quarantine(bad.id)
    result = kdc("verify", tmp_path)
    assert result.exit_code == 0
    assert "1 damaged manifest in damaged/" in result.stdout

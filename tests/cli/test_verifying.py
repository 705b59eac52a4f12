"""`kdc verify`: every kind of damage is named, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
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


Damage = Callable[[bytes], bytes | None]
CHANGES: dict[str, Damage] = {
    "flipped at the end": lambda content: content[:-50] + bytes([content[-50] ^ 1]) + content[-49:],
    "flipped": lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
    "cut": lambda content: content[:-1],
    "missing": lambda content: None,
}
DAMAGE = [
    *(("manifest", how) for how in ("flipped at the end", "cut")),
    *(("blob", how) for how in ("flipped", "cut", "missing")),
    *(("checkpoint", how) for how in ("flipped", "flipped at the end", "cut")),
]
NOT_WITHOUT_READING = {("blob", "flipped"), ("checkpoint", "flipped")}


@pytest.mark.parametrize(("what", "how"), DAMAGE)
def test_every_command_names_damage_in_the_same_words_and_changes_nothing(
    url: str, tmp_path: Path, what: str, how: str
) -> None:
    store = begin(url)
    bad, good = commit(store, 1), commit(store, 2)
    for epoch in (1, 2):
        publish(url, f"{epoch}.keras", epoch, tmp_path, template="{epoch}.keras")
    name = "1.keras" if what == "checkpoint" else bad.id.name
    path = bad.blobs[0].path if what == "blob" else name
    rewrite(url, path, CHANGES[how](Storage.open(url).read(path)))
    before = everything(url)
    found = kdc_json("verify", url, code=1)
    assert found["all_intact"] is False
    (problem,) = [v["problem"] for v in found["verdicts"] if (v["name"], v["state"]) == (name, "damaged")]
    assert [v["state"] for v in found["verdicts"] if v["name"] != name] == ["intact"] * 3
    assert path in problem

    is_seen, kind = (what, how) not in NOT_WITHOUT_READING, "checkpoints" if what == "checkpoint" else "backups"
    listed, diagnosis = kdc("ls", url), kdc_json("doctor", url, code=int(is_seen))
    assert (listed.exit_code, problem in listed.stdout) == (int(is_seen), is_seen)
    failed = [(check["name"], problem in check["detail"]) for check in diagnosis["checks"] if check["status"] == "fail"]
    assert failed == [(kind, True)] * is_seen
    if is_seen or what == "checkpoint":
        shown = kdc("show", url, "--commit", name if what == "checkpoint" else "1-1")
        assert (shown.exit_code, problem in shown.stdout + shown.stderr) == (1, True)
    assert everything(url) == before
    assert kdc_json("verify", url, "--commit", "latest")["verdicts"][0]["name"] == good.id.name


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

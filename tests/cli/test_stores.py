"""`kdc` on real object stores: the options reach the client, and every command works."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keras_dist_callbacks.storage.storage import Storage
from tests.support.cli_backups import DAY, begin, commit, kdc, kdc_json
from tests.support.stores import fixtures

stores, remote = fixtures.stores, fixtures.remote


@pytest.mark.in_gate(2)
def test_every_command_works_on_an_object_store(remote: fixtures.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--storage-options", json.dumps(remote.options)]

    def run(command: str, *arguments: object, code: int = 0) -> Any:
        return kdc_json(command, remote.url, *arguments, *options, code=code)

    crashed = begin(remote.url, options=remote.options)
    lost = commit(crashed, 1)
    crashed.storage.delete(lost.id.name)
    store = begin(remote.url, options=remote.options)
    manifests = [commit(store, sequence) for sequence in (1, 2, 3)]
    assert [row["commit"] for row in run("ls")["commits"]] == ["2-3", "2-2", "2-1"]
    assert run("show")["tensors"][0]["shape"] == [1000]
    assert run("verify")["all_intact"] is True
    store.storage.delete(manifests[1].blobs[0].path)
    assert [v["state"] for v in run("verify", code=1)["verdicts"]] == ["intact", "damaged", "intact"]
    refused = kdc("prune", remote.url, "--keep", 1, "--yes", *options)
    assert (refused.exit_code, "by the store's clock" in " ".join(refused.stderr.split())) == (1, True)
    real = Storage.now
    monkeypatch.setattr(Storage, "now", lambda self: real(self) + DAY)
    found = {check["name"]: check["status"] for check in run("doctor", code=1)["checks"]}
    assert found.pop("backups") == "fail"
    assert found.pop("leftovers") == "warn"
    assert set(found.values()) == {"ok"}
    pruned = run("prune", "--keep", 1, "--yes")
    assert (len(pruned["commits"]), pruned["owners"], next(iter(pruned["blobs"]))) == (2, [1], lost.blobs[0].path)
    assert [row["commit"] for row in run("ls")["commits"]] == ["2-3"]
    assert run("verify")["all_intact"] is True
    assert [f.name for f in store.storage.files()] == []

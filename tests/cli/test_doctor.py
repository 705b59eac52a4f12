"""`kdc doctor`: what a store must do is tried out, leftovers are found, and nothing of it stays."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.cli import doctor, inventory
from keras_dist_callbacks.storage.local_files import temporary_name
from keras_dist_callbacks.storage.storage import Storage
from tests.support import cli_backups
from tests.support.cli_backups import begin, commit, everything, flip, kdc, kdc_json, publish, rewrite
from tests.support.states import HASH, TOKEN

url = cli_backups.url
STORE_CHECKS = ["access", "latency", "exclusive create", "replace", "listings"]


@pytest.fixture(autouse=True)
def threads_switch_only_where_they_wait() -> Iterator[None]:
    """`memory://` looks whether a name is taken and writes it in two steps; Python may switch in between."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5)
    yield
    sys.setswitchinterval(interval)


def checks(url: str | Path, code: int = 0) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in kdc_json("doctor", url, code=code)["checks"]}


def test_a_good_store_passes_every_check_and_nothing_is_left_in_it(url: str) -> None:
    found = kdc_json("doctor", url)
    assert found["usable"] is True
    assert [check["name"] for check in found["checks"]][: len(STORE_CHECKS)] == STORE_CHECKS
    assert {check["status"] for check in found["checks"]} == {"ok"}
    assert everything(url) == {}
    result = kdc("doctor", url)
    assert "backups work here" in result.stdout
    assert "8 at once and a late one, one succeeded" in result.stdout


def test_directories_that_it_had_to_make_are_gone_afterwards_and_others_stay(tmp_path: Path) -> None:
    kdc_json("doctor", tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    kdc_json("doctor", tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_backup_directory_is_as_it_was(url: str) -> None:
    commit(begin(url), 1)
    before = everything(url)
    assert checks(url)["backups"]["detail"] == "1 backup, none damaged; `kdc verify` reads their contents"
    assert everything(url) == before


def test_without_access_the_reason_alone_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = checks(tmp_path / "file" / "d", code=1)
    assert [*found] == ["access"]
    assert "cannot" in found["access"]["detail"]
    assert kdc("doctor", tmp_path / "file" / "d").stdout.splitlines()[-1] == "1 check failed"


def test_secrets_in_a_clients_message_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Storage) -> None:
        raise StorageError("the key AKIA-secret-1 is not known")

    monkeypatch.setattr(Storage, "probe", refuse)
    result = kdc("doctor", "memory://x", "--storage-options", '{"key": "AKIA-secret-1"}')
    assert "the key *** is not known" in result.stdout
    assert "AKIA-secret-1" not in result.output


def test_a_store_whose_create_overwrites_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrite(self: Storage, name: str, parts: Sequence[Any]) -> None:
        Path(self.root, name).write_bytes(b"".join(parts))

    monkeypatch.setattr(Storage, "create", overwrite)
    with doctor.bench(Storage.open(tmp_path)) as tools:
        found = doctor.check_create(tools)
    assert (found.status, found.detail) == ("fail", "8 at once and a late one, 9 succeeded")
    assert "only one job" in found.advice
    assert everything(tmp_path) == {}


def test_a_store_that_refuses_to_delete_can_be_used_with_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Storage.probe

    def remark(self: Storage) -> None:
        warnings.warn("old files cannot be deleted: forbidden", RuntimeWarning, stacklevel=2)
        real(self)

    monkeypatch.setattr(Storage, "probe", remark)
    access = checks(tmp_path)["access"]
    assert (access["status"], access["detail"]) == ("warn", "old files cannot be deleted: forbidden")


@pytest.mark.slow
def test_a_listing_that_lags_is_a_remark_and_one_that_never_shows_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LISTING_SECONDS", 1.0)
    real, stale = Storage.files, [1]

    def lag(self: Storage, directory: str = "") -> list[Any]:
        stale[0] -= 1
        return [] if stale[0] >= 0 else real(self, directory)

    monkeypatch.setattr(Storage, "files", lag)
    with doctor.bench(Storage.open(tmp_path / "x")) as tools:
        assert doctor.check_listing(tools).status == "warn"
        stale[0] = 1000
        found = doctor.check_listing(tools)
    assert (found.status, found.detail) == ("fail", "a new object is not listed after 1 s")


def test_a_store_that_reads_stale_content_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "read", lambda *_: b"before")
    with doctor.bench(Storage.open(tmp_path)) as tools:
        assert doctor.check_replace(tools).status == "fail"


def test_a_slow_store_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SLOW_SECONDS", 0.01)
    real = Storage.read

    def slow(self: Storage, *arguments: Any) -> bytes:
        time.sleep(0.02)
        return real(self, *arguments)

    monkeypatch.setattr(Storage, "read", slow)
    with doctor.bench(Storage.open(tmp_path)) as tools:
        assert doctor.check_latency(tools).status == "warn"


def test_a_store_that_fails_halfway_fails_that_check_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Storage, *_: Any) -> None:
        raise StorageError("no overwriting here")

    monkeypatch.setattr(Storage, "replace", refuse)
    found = checks(tmp_path, code=1)
    assert found["replace"]["detail"] == "no overwriting here"
    assert found["listings"]["status"] == "ok"
    assert everything(tmp_path) == {}


def test_leftovers_are_found_and_prune_takes_them_away(url: str) -> None:
    crashed = begin(url)
    lost = commit(crashed, 1)
    crashed.storage.delete(lost.id.name)
    begin(url)
    store = begin(url)
    commit(store, 1)
    store.storage.create(f"commits/.000003-00000002-{TOKEN}.json.tmp-{HASH}", [b"half"])
    found = checks(url)
    warned = {name: check["detail"] for name, check in found.items() if check["status"] == "warn"}
    size = f"{lost.blobs[0].size / 1024:.1f} KiB"
    assert warned == {"leftovers": f"1 blob, {size}; 1 unfinished file, 4 B; 2 idle owner records"}
    assert "kdc prune" in found["leftovers"]["advice"]
    assert "1 remark" in kdc("doctor", url).stdout
    kdc_json("prune", url, "--keep", 1, "--yes")
    assert {check["status"] for check in checks(url).values()} == {"ok"}


def test_what_a_running_fit_is_writing_is_not_a_leftover(tmp_path: Path) -> None:
    running = begin(tmp_path, age=30)
    staged = commit(running, 1)
    commit(running, 2, age=10)
    running.storage.delete(staged.id.name)
    running.storage.create(f"commits/.000001-00000003-{TOKEN}.json.tmp-{HASH}", [b"half"])
    found = checks(tmp_path)
    assert {check["status"] for check in found.values()} == {"ok"}
    assert "generation 1 may still be writing" in found["run"]["detail"]


def test_lost_and_quarantined_manifests_are_remarks(tmp_path: Path) -> None:
    store = begin(tmp_path)
    bad, good = commit(store, 1), commit(store, 2)
    flip(tmp_path, bad.id.name)
    store.quarantine(bad.id)
    assert "quarantined by a run" in checks(tmp_path)["backups"]["detail"]
    for name in everything(tmp_path):
        if name.startswith("damaged/") or name == good.id.name:
            rewrite(tmp_path, name, None)
    assert "no manifest is left" in checks(tmp_path)["backups"]["detail"]


@pytest.mark.parametrize("command", [["ls"], ["doctor"], ["prune", "--keep", "1", "--yes", "--force"]])
def test_a_backup_that_a_run_deletes_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    store = begin(tmp_path)
    old = commit(store, 1)
    commit(store, 2)
    real = inventory.stored_sizes

    def after_a_run_has_deleted(*arguments: Any) -> dict[str, int]:
        for name in (old.id.name, old.blobs[0].path):
            store.storage.delete(name)
        return real(*arguments)

    monkeypatch.setattr(inventory, "stored_sizes", after_a_run_has_deleted)
    result = kdc(*command[:1], tmp_path, *command[1:])
    assert (result.exit_code, "damaged," in result.stdout) == (0, False), result.output


def test_too_little_space_for_the_next_backups_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(begin(tmp_path), 1)
    assert checks(tmp_path)["disk space"]["status"] == "ok"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 5000}))
    found = checks(tmp_path)["disk space"]
    assert (found["status"], found["detail"]) == ("warn", "4.9 KiB free")


def test_checkpoints_whose_writes_were_killed_are_reported(tmp_path: Path) -> None:
    assert checks(tmp_path / "d")["unfinished checkpoints"]["detail"] == "none"
    publish(tmp_path / "d", "1.keras", 1, tmp_path)
    (tmp_path / "d" / temporary_name("2.keras")).write_bytes(bytes(5000))
    found = checks(tmp_path / "d")["unfinished checkpoints"]
    assert found["status"] == "warn"
    assert found["detail"] == "1 file, 4.9 KiB"

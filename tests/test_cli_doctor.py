"""`kdc doctor`: what a store must do is tried out, leftovers are found, and nothing of it stays."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_dist_callbacks.cli import doctor, leftovers
from keras_dist_callbacks.cli.inventory import Inventory
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage import Storage
from tests import cli_backups
from tests.cli_backups import begin, commit, everything, flip, kdc, kdc_json, rewrite

url = cli_backups.url
STORE_CHECKS = ["access", "latency", "exclusive create", "racing creates", "replace", "listings"]


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
    assert [check["name"] for check in found["checks"]][:6] == STORE_CHECKS
    assert {check["status"] for check in found["checks"]} == {"ok"}
    assert everything(url) == {}
    result = kdc("doctor", url)
    assert "backups work here" in result.stdout
    assert "8 at once, one winner" in result.stdout


def test_directories_that_it_had_to_make_are_gone_afterwards_and_others_stay(tmp_path: Path) -> None:
    kdc_json("doctor", tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    kdc_json("doctor", tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_backup_directory_is_as_it_was(url: str) -> None:
    commit(begin(url), 1)
    before = everything(url)
    assert checks(url)["backups"]["detail"] == "1 manifest, readable"
    assert everything(url) == before


def test_without_access_the_reason_is_told_and_the_rest_skipped(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = checks(tmp_path / "file" / "d", code=1)
    assert found["access"]["status"] == "fail"
    assert "cannot" in found["access"]["detail"]
    assert {found[name]["status"] for name in STORE_CHECKS[1:]} == {"skipped"}
    assert "backups" not in found
    assert "1 check failed" in kdc("doctor", tmp_path / "file" / "d").stdout


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
    found = checks(tmp_path, code=1)
    assert [found[name]["status"] for name in ("exclusive create", "racing creates")] == ["fail", "fail"]
    assert found["racing creates"]["detail"] == "8 at once, 8 believe that they have won"
    assert "only one job" in found["exclusive create"]["advice"]
    assert everything(tmp_path) == {}


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
    store.storage.create("commits/000003-00000002-x.json.tmp-1", [b"half"])
    found = checks(url)
    warned = {name: check["detail"] for name, check in found.items() if check["status"] == "warn"}
    assert warned == {
        "unfinished files": "1, 4 B",
        "dangling blobs": f"1, {lost.blobs[0].size / 1024:.1f} KiB",
        "idle owner records": "1 earlier run without any backup left",
    }
    assert "kdc prune" in found["dangling blobs"]["advice"]
    assert "3 remarks" in kdc("doctor", url).stdout
    kdc_json("prune", url, "--keep", 1, "--yes")
    assert {check["status"] for check in checks(url).values()} == {"ok"}


def test_what_a_running_fit_is_writing_is_no_leftover(tmp_path: Path) -> None:
    running = begin(tmp_path, age=30)
    staged = commit(running, 1)
    commit(running, 2, age=10)
    running.storage.delete(staged.id.name)
    running.storage.create("commits/000001-00000003-x.json.tmp-1", [b"half"])
    found = checks(tmp_path)
    assert {check["status"] for check in found.values()} == {"ok"}
    assert "generation 1 seems to be writing" in found["run"]["detail"]


def test_damaged_lost_and_set_aside_manifests_are_remarks(tmp_path: Path) -> None:
    store = begin(tmp_path)
    bad, good = commit(store, 1), commit(store, 2)
    flip(tmp_path, bad.id.name)
    assert checks(tmp_path)["backups"]["detail"] == "1 of 2 manifests cannot be read"
    store.quarantine(bad.id)
    assert "set aside by a run" in checks(tmp_path)["backups"]["detail"]
    for name in everything(tmp_path):
        if name.startswith("damaged/") or name == good.id.name:
            rewrite(tmp_path, name, None)
    assert "no manifest is left" in checks(tmp_path)["backups"]["detail"]


def test_too_little_space_for_the_next_backups_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(begin(tmp_path), 1)
    assert checks(tmp_path)["disk space"]["status"] == "ok"
    monkeypatch.setattr(leftovers.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 5000}))
    found = checks(tmp_path)["disk space"]
    assert (found["status"], found["detail"]) == ("warn", "4.9 KiB free")


def test_unfinished_uploads_are_reported_where_the_store_tells_of_them() -> None:
    class Uploads:
        def __init__(self, found: list[str] | Exception) -> None:
            self.found = found

        def unfinished_uploads(self) -> list[str]:
            if isinstance(self.found, Exception):
                raise self.found
            return self.found

    def status(found: list[str] | Exception) -> str | None:
        check = leftovers.check_uploads(Uploads(found))  # type: ignore[arg-type]
        return check and check.status

    assert status([]) == "ok"
    assert status(["a", "b"]) == "warn"
    assert status(StorageError("forbidden")) == "warn"


def test_an_empty_directory_has_no_leftovers() -> None:
    life = leftovers.Liveness(False, 0, "")
    assert {check.status for check in leftovers.check_leftovers(Inventory(), life)} == {"ok"}

"""The place beside a directory of checkpoints where accounts, stores, neighbours and crashes are in its way."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory

from keras_dist_callbacks.backups import artifacts, checkpoint_directory, end_marker
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage.local_files import temporary_name
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from tests.support.callback_helpers import memory_url
from tests.support.checkpoints import SERIES, beside, checkpoints, may_change_accounts, newest, notes, old, save
from tests.support.stores.fixtures import Place
from tests.support.stores.proxy import FaultProxy, Request


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    return CheckpointDirectory.to_write(Storage.open(tmp_path / "d"))


def hidden(request: Request) -> bool:
    return ".kdc" in request.path


@pytest.mark.parametrize("remote", ["s3"], indirect=True)
@pytest.mark.process
def test_an_account_that_must_not_write_beside_the_directory_keeps_everything_inside(
    remote: Place, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.arm("status", hidden, times=10**6, status=403)
    place = remote.sub("d").through(proxy)
    found = CheckpointDirectory.to_write(place.open())
    assert not found.writes_aside
    save(found, 1, tmp_path)
    save(found, 1, tmp_path, generation=2)
    end_marker.publish(found, SERIES, 2, "1.keras")
    assert newest(CheckpointDirectory.at(place.open())) == "1.keras"
    assert end_marker.read_all(CheckpointDirectory.at(place.open()))[0][0].ended
    proxy.heal()
    assert notes(found.files) == ["1.keras.json", end_marker.name_of(SERIES)]
    assert CheckpointDirectory.to_write(place.open()).writes_aside


@pytest.mark.parametrize("remote", ["s3"], indirect=True)
@pytest.mark.process
def test_a_store_that_is_down_for_a_while_decides_nothing(remote: Place, proxy: FaultProxy) -> None:
    proxy.arm("status", hidden, times=10**6)
    patience = RetryPolicy(total_seconds=1.0, max_wait=0.1, request_seconds=5.0)
    with pytest.raises(StorageError, match=r"cannot (create|list) .*\.d\.kdc") as raised:
        CheckpointDirectory.to_write(remote.sub("d").through(proxy).open(patience))
    assert raised.value.unavailable


@pytest.mark.parametrize(
    "url", ["memory://ckpt?sig=SECRET", "s3://bucket/ckpt?code=SECRET", "file:///tmp/ckpt?token=SECRET"]
)
def test_what_is_hidden_of_a_url_is_hidden_of_the_place_beside_it(url: str) -> None:
    for place in checkpoints(url).places:
        assert "SECRET" not in place.display() + repr(place)


@pytest.mark.parametrize("remote", ["s3"], indirect=True)
@pytest.mark.process
def test_an_account_that_must_not_list_beside_the_directory_keeps_everything_inside(
    remote: Place, proxy: FaultProxy, tmp_path: Path
) -> None:
    def listing(request: Request) -> bool:
        return request.method == "GET" and "list-type" in request.path and ".kdc" in request.path

    struck = proxy.arm("status", listing, times=10**6, status=403)
    found = CheckpointDirectory.to_write(remote.sub("d").through(proxy).open())
    assert not found.writes_aside
    save(found, 1, tmp_path)
    assert newest(found) == "1.keras"
    assert struck.struck


def test_a_store_that_lets_nobody_delete_is_written_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a probe has left is old by then, and a run has ended without a checkpoint."""
    files = Storage.open(memory_url())

    def delete(self: Storage, name: str) -> None:
        error = StorageError(f"cannot delete {name}: forbidden")
        error.forbidden = True
        raise error

    monkeypatch.setattr(Storage, "delete", delete)
    monkeypatch.setattr(checkpoint_directory, "_LONGEST_WRITE_SECONDS", -1.0)
    with pytest.warns(RuntimeWarning, match="old files will stay"):
        first = CheckpointDirectory.to_write(files)
    end_marker.publish(first, SERIES, 1, None)
    save(old(first), 1, tmp_path)
    with pytest.warns(RuntimeWarning, match="old files will stay"):
        again = CheckpointDirectory.to_write(files)
    assert again.writes_aside
    end_marker.take_back(again, SERIES, 2)
    published = save(again, 1, tmp_path, generation=2)
    assert artifacts.newest_verified(again) == published


def test_many_may_begin_at_once(tmp_path: Path) -> None:
    place = Storage.open(tmp_path / "d")
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            found = list(pool.map(lambda _: CheckpointDirectory.to_write(place).writes_aside, range(8)))
            assert found == [True] * 8
    assert not list(beside(tmp_path / "d").iterdir())


def test_a_sidecar_that_moves_while_somebody_looks_is_found(
    directory: CheckpointDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(old(directory), 1, tmp_path)
    original = CheckpointDirectory.names
    for when in ("between the listings", "behind them"):
        moved = dataclasses.replace(directory)

        def names(self: CheckpointDirectory, when: str = when, moved: CheckpointDirectory = moved) -> set[str]:
            if when == "behind them":
                listed = original(self)
            save(directory, 1, tmp_path, generation=2)
            return listed if when == "behind them" else original(self)

        with monkeypatch.context() as patch:
            patch.setattr(CheckpointDirectory, "names", names)
            assert newest(moved) == "1.keras"
        artifacts.delete(directory, "1.keras", generation=2)
        save(old(directory), 1, tmp_path)


_AS_NOBODY = """
import os, sys
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage.storage import Storage
os.setgid(65534), os.setuid(65534)
try:
    print("aside" if CheckpointDirectory.to_write(Storage.open(sys.argv[1])).writes_aside else "inside")
except StorageError as error:
    print(error)
"""


def written_by_nobody(directory: Path) -> str:
    """Where an account without rights of its own writes notes, or what it is told."""
    command = [sys.executable, "-c", _AS_NOBODY, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.fixture
def of_all() -> Iterator[Path]:
    """A directory that every account may write into, in a place where every account may go."""
    if not may_change_accounts():
        pytest.skip("this account must not become another one")
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        directory = Path(above) / "d"
        directory.mkdir()
        directory.chmod(0o777)
        directory.parent.chmod(0o777)
        yield directory


@pytest.mark.process
def test_a_parent_that_must_not_be_written_keeps_everything_inside(of_all: Path) -> None:
    of_all.parent.chmod(0o755)
    assert written_by_nobody(of_all) == "inside"
    of_all.parent.chmod(0o777)
    assert written_by_nobody(of_all) == "aside"
    assert list(of_all.iterdir()) == []


@pytest.mark.process
def test_notes_that_must_not_be_seen_are_an_error_and_not_taken_for_none(of_all: Path) -> None:
    """What newer runs have noted there would be lost: two runs would write into one directory and not know."""
    beside(of_all).mkdir(mode=0o700)
    said = written_by_nobody(of_all)
    assert said.startswith(f"cannot list {beside(of_all)}: ")
    assert "check the permissions" in said


@pytest.mark.process
class TestOtherAccounts:
    """A directory of one account in a place that all may write into, and one of a group."""

    @pytest.fixture(autouse=True)
    def changes(self) -> None:
        if not may_change_accounts():
            pytest.skip("this account must not give files away")

    def test_the_place_beside_is_for_the_same_accounts(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        os.chown(tmp_path / "d", 1001, 1234)
        for mode in (0o700, 0o755, 0o2775):
            (tmp_path / "d").chmod(mode)
            shutil.rmtree(beside(tmp_path / "d"), ignore_errors=True)
            assert CheckpointDirectory.to_write(Storage.open(tmp_path / "d")).writes_aside
            made = beside(tmp_path / "d").stat()
            assert (stat.S_IMODE(made.st_mode), made.st_gid) == (mode, 1234)
        save(checkpoints(tmp_path / "d"), 1, tmp_path)
        assert (tmp_path / "d" / "1.keras").stat().st_gid == 1234

    @pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
    def test_one_that_a_stranger_has_made_is_passed_over(self, tmp_path: Path, mode: int) -> None:
        (tmp_path / "d").mkdir(mode=0o755)
        beside(tmp_path / "d").mkdir()
        beside(tmp_path / "d").chmod(mode)
        os.chown(beside(tmp_path / "d"), 2002, 2002)
        found = CheckpointDirectory.to_write(Storage.open(tmp_path / "d"))
        assert (found.writes_aside, found.places) == (False, (found.files,))
        save(found, 1, tmp_path)
        (beside(tmp_path / "d") / "1.keras.json").write_bytes((tmp_path / "d" / "1.keras.json").read_bytes()[:-9])
        assert newest(checkpoints(tmp_path / "d")) == "1.keras"
        assert artifacts.find(checkpoints(tmp_path / "d")).problems == ()

    def test_one_that_more_accounts_may_write_into_is_passed_over(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir(mode=0o755)
        beside(tmp_path / "d").mkdir()
        beside(tmp_path / "d").chmod(0o777)
        assert not CheckpointDirectory.to_write(Storage.open(tmp_path / "d")).writes_aside

    def test_rights_that_files_get_by_being_made_in_a_directory_keep_everything_inside(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        entries = [(1, 7), (4, 5), (0x20, 5)]  # of the owner, the group and the others
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, rights, 2**32 - 1) for tag, rights in entries)
        try:
            os.setxattr(tmp_path / "d", "system.posix_acl_default", acl)
        except OSError:
            pytest.skip("the file system here has no such rights")
        assert not CheckpointDirectory.to_write(Storage.open(tmp_path / "d")).writes_aside


def test_a_planted_link_beside_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".d.kdc").symlink_to(tmp_path / "elsewhere")
    found = CheckpointDirectory.to_write(Storage.open(tmp_path / "d"))
    assert not found.writes_aside
    with pytest.raises(StorageError, match=r"\.d\.kdc is a symbolic link"):
        artifacts.find(found)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_killed_writes_left_is_deleted_once_no_write_can_be_at_work(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    place = beside(tmp_path / "d")
    dead, live, strange = place / temporary_name("1.keras"), place / temporary_name("2.keras"), place / "theirs"
    for path in (dead, live, strange):
        path.write_bytes(b"part")
    for path in (dead, strange):
        os.utime(path, (time.time() - 7200,) * 2)
    CheckpointDirectory.to_write(Storage.open(tmp_path / "d"))
    assert sorted(place.iterdir()) == sorted([live, strange])

"""Where sidecars, notes and unfinished files lie: beside the directory of checkpoints, or else among them."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_dist_callbacks.backups import artifacts, end_marker, foreign
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.backups.sidecar import Artifact
from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage.local_directories import Directory
from keras_dist_callbacks.storage.local_files import temporary_name
from keras_dist_callbacks.storage.retry import RetryPolicy
from keras_dist_callbacks.storage.storage import Storage
from tests.support.checkpoints import beside, checkpoints
from tests.support.stores.fixtures import Place
from tests.support.stores.proxy import FaultProxy, Request

SERIES = "{epoch}.keras"


def save(directory: CheckpointDirectory, epoch: int, tmp_path: Path, generation: int = 1) -> Artifact:
    source = tmp_path / "source"
    source.write_bytes(b"model %d of run %d" % (epoch, generation))
    what = Artifact(f"{epoch}.keras", "model", SERIES, generation, epoch, epoch=epoch, step=10 * epoch)
    return artifacts.publish(directory, source, what)


def old(directory: CheckpointDirectory) -> CheckpointDirectory:
    """The same, written as older versions of this package did."""
    return dataclasses.replace(directory, writes_aside=False)


def newest(directory: CheckpointDirectory) -> str | None:
    found = artifacts.newest_verified(directory)
    return None if found is None else found.name


def notes(place: Storage) -> list[str]:
    return [info.name for info in place.files() if info.name.endswith(".json")]


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    return CheckpointDirectory.to_write(Storage.open(tmp_path / "d"))


@pytest.mark.parametrize("name", ["d", "d/", "deep/er"])
def test_the_directory_itself_holds_checkpoints_only(place: Place, name: str, tmp_path: Path) -> None:
    written = CheckpointDirectory.to_write(place.sub(name).open())
    for epoch in (1, 2):
        save(written, epoch, tmp_path)
    end_marker.publish(written, SERIES, 1, "2.keras")
    assert [info.name for info in written.files.files()] == ["1.keras", "2.keras"]
    assert notes(written.written) == ["1.keras.json", "2.keras.json", end_marker.name_of(SERIES)]
    above, _, own = name.rstrip("/").rpartition("/")
    shown = place.sub(f"{above}/.{own}.kdc" if above else f".{own}.kdc")
    assert notes(shown.open()) == notes(written.written)
    assert written.written.display() == shown.open().display()


def test_what_older_versions_wrote_is_read_and_comes_along_as_it_is_replaced(place: Place, tmp_path: Path) -> None:
    written = CheckpointDirectory.to_write(place.sub("d").open())
    save(old(written), 1, tmp_path)
    save(old(written), 2, tmp_path)
    end_marker.publish(old(written), SERIES, 1, "2.keras")
    assert notes(written.files) == ["1.keras.json", "2.keras.json", end_marker.name_of(SERIES)]
    assert newest(written) == "2.keras"
    assert [marker.ended for marker in end_marker.read_all(written)[0]] == [True]
    end_marker.take_back(written, SERIES, 2)
    assert [(m.ended, m.generation) for m in end_marker.read_all(written)[0]] == [(False, 2)]
    again = save(written, 2, tmp_path, generation=2)
    assert notes(written.files) == ["1.keras.json"]
    assert artifacts.newest_verified(written) == again
    assert artifacts.keep_newest(written, ["1.keras", "2.keras"], 1, generation=2) == ["2.keras"]
    assert [info.name for info in written.files.files()] == ["2.keras"]
    assert foreign.names(written) == []


def test_an_older_version_that_writes_again_is_believed_where_its_file_is(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    save(directory, 1, tmp_path)
    assert directory.aside is not None
    unseen = CheckpointDirectory(directory.files, None, writes_aside=False)  # all that an older version knows of
    again = save(unseen, 1, tmp_path, generation=2)
    assert notes(directory.aside) == ["1.keras.json"]
    assert artifacts.newest_verified(directory) == again


class CrashError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("republished", [True, False])
def test_a_crash_while_a_sidecar_moves_loses_nothing(
    directory: CheckpointDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, republished: bool
) -> None:
    before = save(old(directory), 1, tmp_path)
    calls = []

    def counted(original: str) -> None:
        real = getattr(Storage, original)

        def call(*given: object) -> object:
            calls.append(original)
            if len(calls) > number:
                raise CrashError
            return real(*given)

        patch.setattr(Storage, original, call)

    with monkeypatch.context() as patch:
        counted("replace")
        counted("delete")
        with contextlib.suppress(CrashError):
            save(directory, 1, tmp_path, generation=2) if republished else artifacts.delete(directory, "1.keras", 1)
    if republished:
        found = artifacts.newest_verified(directory)
        assert found is not None
        assert directory.files.read("1.keras") == b"model 1 of run %d" % found.generation
        assert calls == ["replace", "delete", "replace", "replace"][: number + 1]
    else:
        assert newest(directory) == ("1.keras" if number == 0 else None)
        assert calls == ["delete", "delete"][: number + 1]
    again = save(directory, 1, tmp_path, generation=3)
    assert artifacts.newest_verified(directory) == again != before


def test_who_deletes_the_directory_begins_anew(directory: CheckpointDirectory, tmp_path: Path) -> None:
    for epoch in (1, 2):
        save(directory, epoch, tmp_path, generation=4)
    end_marker.publish(directory, SERIES, 4, "2.keras")
    shutil.rmtree(tmp_path / "d")
    assert newest(directory) is None
    assert artifacts.find(directory) == artifacts.Listing(generation=4)
    again = CheckpointDirectory.to_write(Storage.open(tmp_path / "d"))
    artifacts.forget_deleted(again)
    assert notes(again.written) == []
    save(again, 1, tmp_path)  # of generation 1: no run is newer
    assert newest(again) == "1.keras"


def test_one_file_that_is_missing_is_still_a_loss(directory: CheckpointDirectory, tmp_path: Path) -> None:
    for epoch in (1, 2):
        save(directory, epoch, tmp_path)
    (tmp_path / "d" / "2.keras").unlink()
    artifacts.forget_deleted(directory)
    with pytest.warns(UserWarning, match=r"2\.keras is missing, although its sidecar is there"):
        assert newest(directory) == "1.keras"


def test_a_copy_without_its_notes_is_known_as_such_and_whole_with_them(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    save(directory, 1, tmp_path)
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    assert newest(checkpoints(tmp_path / "copy")) is None
    assert foreign.names(checkpoints(tmp_path / "copy")) == ["1.keras"]
    shutil.copytree(tmp_path / ".d.kdc", tmp_path / ".copy.kdc")
    assert newest(checkpoints(tmp_path / "copy")) == "1.keras"


def test_a_link_a_working_directory_and_what_is_above_it_keep_everything_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk" / "work").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    monkeypatch.chdir(tmp_path / "disk" / "work")
    for place in (tmp_path / "link", Path(), tmp_path / "disk" / "work", tmp_path / "disk"):
        found = CheckpointDirectory.to_write(Storage.open(place))
        assert not found.writes_aside
        assert found.way is None
        save(found, 1, tmp_path)
        assert newest(checkpoints(place)) == "1.keras"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link", "source"]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "mount").mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "mount"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this account must not mount")
    yield tmp_path / "mount"
    subprocess.run(["umount", tmp_path / "mount"], check=True)


@pytest.mark.process
def test_a_mount_point_keeps_everything_on_its_volume(mounted: Path, tmp_path: Path) -> None:
    found = CheckpointDirectory.to_write(Storage.open(mounted))
    save(found, 1, tmp_path)
    assert sorted(path.name for path in mounted.iterdir()) == ["1.keras", "1.keras.json"]
    assert not beside(mounted).exists()


def test_a_volume_that_no_look_tells_from_its_parent_gets_its_files_directly(
    directory: CheckpointDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Directory.rename

    def rename(self: Directory, name: str, target: Directory, other: str) -> None:
        if self.path != target.path:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))  # between two mounts of one file system
        original(self, name, target, other)

    monkeypatch.setattr(Directory, "rename", rename)
    save(directory, 1, tmp_path)
    assert newest(directory) == "1.keras"
    assert sorted(path.name for path in tmp_path.rglob("*.tmp-*")) == []


_AS_NOBODY = """
import os, sys
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.storage.storage import Storage
os.setgid(65534), os.setuid(65534)
print(CheckpointDirectory.to_write(Storage.open(sys.argv[1])).writes_aside)
"""


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another account")
def test_a_parent_that_must_not_be_written_keeps_everything_inside() -> None:
    above = Path(tempfile.mkdtemp(dir="/tmp"))  # where another account may go
    (above / "d").mkdir()
    try:
        above.chmod(0o755)
        (above / "d").chmod(0o777)
        command = [sys.executable, "-c", _AS_NOBODY, str(above / "d")]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (said.stdout.strip(), said.stderr) == ("False", "")
        above.chmod(0o777)
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (said.stdout.strip(), said.stderr) == ("True", "")
        assert list((above / "d").iterdir()) == []
    finally:
        shutil.rmtree(above)


def test_a_bucket_and_a_store_of_unknown_ways_have_no_place_beside(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("d/e/1.keras", b"model")
    for url in ("memory://", "s3://bucket", "s3://bucket/", f"zip://d/e::{tmp_path}/some.zip", "file:///"):
        assert checkpoints(url).places == (checkpoints(url).files,)
    for url in ("memory://d", "s3://bucket/d/", "file:///d"):
        assert [place.display() for place in checkpoints(url).places[:1]] == [url.rstrip("/")[:-1] + ".d.kdc"]


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
    with pytest.raises(StorageError, match=r"cannot create .*\.d\.kdc") as raised:
        CheckpointDirectory.to_write(remote.sub("d").through(proxy).open(patience))
    assert raised.value.unavailable


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

"""Where sidecars, notes and unfinished files lie: beside the directory of checkpoints, or else among them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory

from keras_dist_callbacks.backups import artifacts, end_marker, foreign
from keras_dist_callbacks.storage.local_directories import Directory
from keras_dist_callbacks.storage.storage import Storage
from tests.support.checkpoints import SERIES, beside, checkpoints, newest, notes, old, save
from tests.support.stores.fixtures import Place


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
    assert artifacts.find(directory) == artifacts.Listing(generation=4)  # from which a new run counts on
    assert end_marker.end_of(end_marker.read_all(directory)[0], ()) is None
    again = CheckpointDirectory.to_write(Storage.open(tmp_path / "d"))
    save(again, 1, tmp_path, generation=5)
    assert newest(again) == "1.keras"


def test_who_moves_the_directory_away_can_move_its_notes_later(directory: CheckpointDirectory, tmp_path: Path) -> None:
    for epoch in (1, 2):
        save(directory, epoch, tmp_path)
    (tmp_path / "d").rename(tmp_path / "kept")
    save(CheckpointDirectory.to_write(Storage.open(tmp_path / "d")), 3, tmp_path, generation=2)
    shutil.copytree(tmp_path / ".d.kdc", tmp_path / ".kept.kdc")
    with pytest.warns(UserWarning, match=r"3\.keras is missing"):
        assert newest(checkpoints(tmp_path / "kept")) == "2.keras"


@pytest.mark.parametrize(("deleted", "told"), [((1,), False), ((1, 2), False), ((3,), True), ((2, 3), True)])
def test_the_newest_file_is_missed_and_not_those_before_it(
    directory: CheckpointDirectory, tmp_path: Path, deleted: tuple[int, ...], *, told: bool
) -> None:
    for epoch in (1, 2, 3):
        save(directory, epoch, tmp_path)
    for epoch in deleted:
        (tmp_path / "d" / f"{epoch}.keras").unlink()
    found = artifacts.find(directory)
    missed = [text.partition(" is missing")[0].rpartition("/")[2] for text in found.problems]
    assert missed == [f"{epoch}.keras" for epoch in deleted if told]
    assert [artifact.epoch for artifact in found.artifacts] == [e for e in (3, 2, 1) if e not in deleted]


def test_a_copy_without_its_notes_is_known_as_such_and_whole_with_them(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    save(directory, 1, tmp_path)
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    assert newest(checkpoints(tmp_path / "copy")) is None
    assert foreign.names(checkpoints(tmp_path / "copy")) == ["1.keras"]
    shutil.copytree(tmp_path / ".d.kdc", tmp_path / ".copy.kdc")
    assert newest(checkpoints(tmp_path / "copy")) == "1.keras"


def test_whatever_links_lead_to_a_directory_its_notes_are_in_one_place(tmp_path: Path) -> None:
    (tmp_path / "disk" / "run1").mkdir(parents=True)
    (tmp_path / "latest").symlink_to(tmp_path / "disk" / "run1")
    (tmp_path / "volume").symlink_to(tmp_path / "disk")
    places = [
        tmp_path / "latest",
        tmp_path / "disk" / "run1",
        tmp_path / "volume" / "run1",
        tmp_path / "disk/x/../run1",
    ]
    (tmp_path / "disk" / "x").mkdir()
    for number, place in enumerate(places, start=1):
        written = CheckpointDirectory.to_write(Storage.open(place))
        assert written.writes_aside
        save(written, number, tmp_path)
        for other in places:
            assert newest(checkpoints(other)) == f"{number}.keras"
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == [".run1.kdc", "run1", "x"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "latest", "source", "volume"]


def test_a_working_directory_and_what_is_above_it_keep_everything_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk" / "work").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "disk" / "work")
    for place in (Path(), tmp_path / "disk" / "work", tmp_path / "disk", Path("..")):
        found = CheckpointDirectory.to_write(Storage.open(place))
        assert not found.writes_aside
        assert found.way is None
        save(found, 1, tmp_path)
        assert newest(checkpoints(place)) == "1.keras"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "source"]


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


def test_a_bucket_and_a_store_of_unknown_ways_have_no_place_beside(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("d/e/1.keras", b"model")
    for url in ("memory://", "s3://bucket", "s3://bucket/", f"zip://d/e::{tmp_path}/some.zip", "file:///"):
        assert checkpoints(url).places == (checkpoints(url).files,)
    arn = "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/name"
    long = f"file:///{'n' * 251}"
    for url in (arn, f"{arn}/d", long):
        assert checkpoints(url).aside is None
    for url in ("memory://d", "s3://bucket/d/", "file:///d"):
        assert [place.display() for place in checkpoints(url).places[:1]] == [url.rstrip("/")[:-1] + ".d.kdc"]

"""What a neighbour plants in a shared directory leads nowhere; the directory itself may be a link."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.storage.storage import Storage

SECRET = {"a.txt": b"theirs", ".b.safetensors.tmp-" + "0" * 32: b"theirs too", "000001.json": b"{}"}
OPERATIONS: dict[str, Callable[[Storage, str, Path], object]] = {
    "create": lambda storage, place, source: storage.create(f"{place}/new", [b"ours"]),
    "replace": lambda storage, place, source: storage.replace(f"{place}/a.txt", source),
    "read": lambda storage, place, source: storage.read(f"{place}/a.txt"),
    "read_into": lambda storage, place, source: storage.read_into(f"{place}/a.txt", 0, memoryview(bytearray(3))),
    "download": lambda storage, place, source: storage.download(f"{place}/a.txt", source.with_name("copy")),
    "size": lambda storage, place, source: storage.size(f"{place}/a.txt"),
    "delete": lambda storage, place, source: storage.delete(f"{place}/a.txt"),
    "files": lambda storage, place, source: storage.files(place),
    "refuse_links": lambda storage, place, source: storage.refuse_links([place]),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Someone's directory."""
    directory = tmp_path / "outside"
    directory.mkdir()
    for name, content in SECRET.items():
        (directory / name).write_bytes(content)
    return directory


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "root").mkdir()
    return Storage.open(tmp_path / "root")


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("place", ["linked", "deep/linked", "linked/deep"])
def test_a_linked_directory_is_refused_by_name_and_stays_untouched(
    operation: str, place: str, storage: Storage, outside: Path, tmp_path: Path
) -> None:
    (tmp_path / "root/deep").mkdir()
    link = tmp_path / "root" / place.removesuffix("/deep")
    target = outside.parent if place.endswith("/deep") else outside
    link.symlink_to(target)
    if place.endswith("/deep"):
        place = f"linked/{outside.name}"
    source = tmp_path / "source"
    source.write_bytes(b"ours")
    with pytest.raises(StorageError) as caught:
        OPERATIONS[operation](storage, place, source)
    assert f"{link} is a symbolic link" in str(caught.value)
    assert "remove it, or replace it by what it points to" in str(caught.value)
    assert content(outside) == SECRET
    assert not (tmp_path / "copy").exists()
    assert not caught.value.unavailable, "waiting does not help"


@pytest.mark.parametrize("operation", ["read", "read_into", "download", "size", "refuse_links"])
def test_a_linked_file_is_not_read(operation: str, storage: Storage, outside: Path, tmp_path: Path) -> None:
    (tmp_path / "root/commits").mkdir()
    (tmp_path / "root/commits/a.txt").symlink_to(outside / "a.txt")
    with pytest.raises(StorageError, match=r"root/commits/a\.txt is a symbolic link"):
        OPERATIONS[operation](storage, "commits", tmp_path / "source")


def test_a_link_that_is_listed_can_be_deleted_and_its_name_is_taken(
    storage: Storage, outside: Path, tmp_path: Path
) -> None:
    for name, target in {"file": outside / "a.txt", "dangling": outside / "none", "directory": outside}.items():
        (tmp_path / "root" / name).symlink_to(target)
    assert [f.name for f in storage.files()] == ["dangling", "directory", "file"]
    for name in ("file", "dangling", "directory"):
        with pytest.raises(FileExistsError):
            storage.create(name, [b"ours"])
        storage.delete(name)
    assert storage.files() == []
    assert content(outside) == SECRET


def test_a_file_that_is_a_link_is_replaced_and_never_written_through(
    storage: Storage, outside: Path, tmp_path: Path
) -> None:
    latest = tmp_path / "root/latest.keras"
    latest.symlink_to(outside / "a.txt")
    (tmp_path / "source").write_bytes(b"ours")
    storage.replace("latest.keras", tmp_path / "source")
    assert not latest.is_symlink()
    assert storage.read("latest.keras") == b"ours"
    assert content(outside) == SECRET


@pytest.mark.timeout(60)
def test_a_pipe_does_not_hold_up_a_reader(storage: Storage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "root/x.json")
    with pytest.raises(StorageError, match=r"root/x\.json is not a regular file"):
        storage.read("x.json")
    (tmp_path / "root/d").mkdir()
    with pytest.raises(StorageError, match="Is a directory"):
        storage.read("d")


def test_what_has_the_name_of_a_new_file_and_is_in_no_listing_is_an_error(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "root/000001.json").mkdir()
    os.mkfifo(tmp_path / "root/000002.json")
    assert storage.files() == []
    for name, reason in {"000001.json": "Is a directory", "000002.json": "is not a regular file"}.items():
        with pytest.raises(StorageError, match=reason):
            storage.create(name, [b"claim"])


# --- what users do


def exercise(storage: Storage, source: Path) -> None:
    storage.probe()
    source.write_bytes(b"model")
    storage.create("blobs/000001/x", [b"con", b"tent"])
    storage.create("blobs/000001/y", [b"other"])
    storage.replace("run1/model.keras", source)
    storage.replace("run1/model.keras", source)
    storage.download("run1/model.keras", source)
    assert [(f.name, f.size) for f in storage.files("blobs/000001")] == [("x", 7), ("y", 5)]
    assert (storage.size("run1/model.keras"), storage.read("run1/model.keras", 1, 3)) == (5, b"od")
    storage.refuse_links(["blobs", "run1", "none"])
    for name in ("blobs/000001/x", "blobs/000001/y", "blobs/000001/none", "run1/model.keras"):
        storage.delete(name)
    storage.remove_empty_directories(["blobs/000001", "blobs", "run1", "none"])
    assert list(Path(storage.root).iterdir()) == []


@pytest.mark.parametrize("way", ["plain", "a link", "behind a link", "a relative link", "missing", "with a slash"])
def test_the_directory_itself_may_be_a_link_or_lie_below_one(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "relative").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    ways = {
        "plain": "real",
        "a link": str(tmp_path / "link"),
        "behind a link": str(tmp_path / "link/deep"),
        "a relative link": "relative",
        "missing": "link/not/yet/there",
        "with a slash": f"{tmp_path}/link/",
    }
    (tmp_path / "real/deep").rmdir()
    exercise(Storage.open(ways[way]), tmp_path / "source")
    exercise(Storage.open(ways[way]).child("below"), tmp_path / "source")


def test_a_child_of_a_storage_is_below_its_directory(storage: Storage, outside: Path, tmp_path: Path) -> None:
    (tmp_path / "root/evaluator").symlink_to(outside)
    with pytest.raises(StorageError, match="root/evaluator is a symbolic link"):
        storage.child("evaluator").files()


def every_operation(storage: Storage, place: str, source: Path) -> None:
    operations: list[Callable[[], object]] = [
        lambda: storage.create(f"{place}/x", [b"content"]),
        lambda: storage.create(f"{place}/x", [b"content"]),
        lambda: storage.create(f"{place}/z", [b"other"]),
        lambda: storage.replace(f"{place}/z", source),
        lambda: storage.replace(f"{place}/z", source.with_name("missing")),
        lambda: storage.read(f"{place}/z"),
        lambda: storage.read(f"{place}/none"),
        lambda: storage.read_into(f"{place}/z", 0, memoryview(bytearray(2))),
        lambda: storage.read_into(f"{place}/z", 0, memoryview(bytearray(200))),
        lambda: storage.download(f"{place}/z", source.with_name("copy")),
        lambda: storage.download(f"{place}/z", source / "below a file"),
        lambda: storage.size(f"{place}/z"),
        lambda: storage.files(place),
        lambda: storage.files(f"{place}/z"),
        lambda: storage.refuse_links([place, f"{place}/z"]),
        lambda: storage.create(f"{place}/z/inside/a/file", [b"x"]),
        lambda: storage.remove_empty_directories([place, ""]),
        lambda: storage.delete(f"{place}/z"),
        lambda: storage.delete(f"{place}/y"),
        lambda: storage.remove_empty_directories([place]),
    ]
    for operation in operations:
        with contextlib.suppress(OSError):
            operation()


def open_files() -> list[str]:
    """What the descriptors of this process lead to; those that other tests left may close at any time."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed on Linux only")
def test_no_operation_leaves_a_descriptor_open_whether_it_succeeds_or_fails(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path / "root")
    (tmp_path / "source").write_bytes(b"source")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/linked").symlink_to(tmp_path)
    (tmp_path / "root/file").symlink_to(tmp_path / "source")
    os.mkfifo(tmp_path / "root/pipe")
    for _ in range(3):
        for place in ("a/b", "linked", "a/b/c", "pipe", "file"):
            every_operation(storage, place, tmp_path / "source")
        for name in ("linked", "file", "pipe"):
            with contextlib.suppress(OSError):
                storage.read(name)
    assert [path for path in open_files() if path.startswith(str(tmp_path))] == []
    with (tmp_path / "source").open():  # or nothing is looked at
        assert str(tmp_path / "source") in open_files()


# --- empty directories


def test_the_working_directory_stays_and_other_empty_directories_go(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("root/work", "root/empty", "root/full/inside", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    monkeypatch.chdir(tmp_path / "root/work")
    storage.remove_empty_directories(["work", "empty", "full", "link", "none"])
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["full", "link", "work"]
    assert (tmp_path / "outside").is_dir()
    Storage.open(".").remove_empty_directories([""])
    assert Path.cwd().is_dir()
    monkeypatch.chdir(tmp_path)
    Storage.open("root/work").remove_empty_directories([""])
    assert not (tmp_path / "root/work").exists()


@pytest.mark.process
def test_a_mount_may_be_the_directory_or_lie_in_it_and_stays(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let its users mount anything")
    (tmp_path / "root").mkdir()
    script = """
import sys
from pathlib import Path
from keras_dist_callbacks.storage.storage import Storage
storage = Storage.open(sys.argv[1])
storage.probe()
storage.create("blobs/x", [b"content"])
storage.refuse_links(["blobs"])
assert storage.read("blobs/x") == b"content"
storage.delete("blobs/x")
storage.remove_empty_directories(["blobs", ""])
assert Path(storage.root, "blobs").is_dir(), "a mount"
"""
    mounts = 'mount -t tmpfs none "$1" && mkdir "$1/blobs" && mount -t tmpfs none "$1/blobs" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", mounts, "sh", str(tmp_path / "root"), sys.executable, script]
    subprocess.run(command, check=True, timeout=120)

"""A directory that is exchanged for a link at any moment leads nowhere, and no descriptor is left open."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keras_dist_callbacks.errors import StorageError
from keras_dist_callbacks.storage.local_files import final_name
from keras_dist_callbacks.storage.open_directory import opened
from keras_dist_callbacks.storage.storage import Storage

ROUNDS = 400
PLACE = "blobs/000001"
_EXCHANGE, _HERE = 2, -100

linux = pytest.mark.skipif(sys.platform != "linux", reason="names are exchanged, and descriptors listed, on Linux only")


def exchange(first: Path, second: Path) -> None:
    """What had one name has the other, and at no moment does either name have nothing."""
    if ctypes.CDLL(None, use_errno=True).renameat2(_HERE, bytes(first), _HERE, bytes(second), _EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def swapping(directory: Path, link: Path) -> Iterator[None]:
    """Exchanges them again and again; in the end everything is where it was."""
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            exchange(directory, link)
            exchange(directory, link)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Run:
    """One that writes, lists and deletes below `blobs/000001`, and knows what must be there."""

    def __init__(self, storage: Storage, foreign: list[str]) -> None:
        self.storage, self.foreign = storage, foreign
        self.written: dict[str, bytes] = {}
        self.refusals: list[str] = []
        self.succeeded = 0
        self._dice = random.Random(3)  # noqa: S311 - a reproducible choice

    def round(self, number: int) -> None:
        victim, source = f"{PLACE}/{self._dice.choice(self.foreign)}", Path(__file__)
        for step in (
            lambda: self.create(f"ours-{number}"),
            lambda: self.storage.delete(victim),
            self.look,
            lambda: self.storage.replace(f"{victim}.new", source),
            lambda: self.storage.remove_empty_directories([PLACE, "blobs"]),
            lambda: self.storage.size(victim),
        ):
            try:
                step()
                self.succeeded += 1
            except StorageError as error:
                self.refusals.append(str(error))

    def create(self, name: str) -> None:
        spare = self._dice.choice([*self.written, "none", self._dice.choice(self.foreign)])
        content = f"content of {name}".encode()
        self.storage.create(f"{PLACE}/{name}", [content], spare=f"{PLACE}/{spare}")
        self.written[name] = content
        if spare in self.written and not self.is_there(spare):
            del self.written[spare]

    def is_there(self, name: str) -> bool:
        while True:
            with contextlib.suppress(StorageError):  # a link is in the way just now
                return self.storage.exists(f"{PLACE}/{name}")

    def look(self) -> None:
        names = {f.name for f in self.storage.files(PLACE)}
        assert not names & set(self.foreign)
        assert self.written.keys() <= names


@linux
@pytest.mark.parametrize("level", ["blobs", PLACE])
def test_while_a_directory_is_exchanged_for_a_link_nothing_outside_is_touched(tmp_path: Path, level: str) -> None:
    victims = {f"{number}.safetensors": os.urandom(20) for number in range(30)}
    outside, root = tmp_path / "outside", tmp_path / "root"
    inner = outside / "000001" if level == "blobs" else outside
    inner.mkdir(parents=True)
    for name, content in victims.items():
        (inner / name).write_bytes(content)
    (root / PLACE).mkdir(parents=True)
    (root / PLACE / "stays").touch()
    (root / "link").symlink_to(outside)
    run = Run(Storage.open(root, fsync=False), list(victims))
    with swapping(root / level, root / "link"):
        for number in range(20 * ROUNDS):
            run.round(number)
            if number > ROUNDS and min(len(run.refusals), run.succeeded) > 50:
                break
    assert min(len(run.refusals), run.succeeded) > 50, "both were met with"
    # The latter if it is a directory again when the reason is looked for.
    assert all(re.search("is a symbolic link|Not a directory", refusal) for refusal in run.refusals)
    assert {path.name: path.read_bytes() for path in inner.iterdir()} == victims
    assert [f.name for f in run.storage.files(PLACE) if final_name(f.name)] == []
    for name, content in run.written.items():
        assert run.storage.read(f"{PLACE}/{name}") == content


def every_operation(storage: Storage, place: str, source: Path) -> None:
    operations: list[Callable[[], object]] = [
        lambda: storage.create(f"{place}/x", [b"content"]),
        lambda: storage.create(f"{place}/x", [b"content"]),
        lambda: storage.create(f"{place}/y", [b"other"], spare=f"{place}/x"),
        lambda: storage.create(f"{place}/z", [b"other"], spare=f"{place}/none"),
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


@linux
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


def test_no_child_inherits_a_descriptor(tmp_path: Path) -> None:
    with opened(str(tmp_path), ["a", "b"], make=True) as directory:
        assert directory.descriptor is not None
        assert not os.get_inheritable(directory.descriptor)
        file = directory.open_file("x", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            assert not os.get_inheritable(file)
        finally:
            os.close(file)

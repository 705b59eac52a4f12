"""One bad read of good files: it is repeated, and neither a backup nor a checkpoint is lost to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_dist_callbacks.backups import packing
from keras_dist_callbacks.backups.select_backup import find_backup, latest_intact
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.checkpoints import end_note, files
from keras_dist_callbacks.storage.local_files import LocalFiles
from keras_dist_callbacks.storage.storage import Storage
from tests.backups.test_store import commit, new_store
from tests.support.checkpoints import TEMPLATE, opened, save
from tests.support.cli_backups import kdc_json

FLIPPED = "two reads returned different content; the second one is intact and is used"


class Flips:
    """Turns a bit in what the n-th read returns."""

    def __init__(self, number: int) -> None:
        self.left, self.struck = number, False

    def flip(self, content: bytearray | memoryview) -> None:
        self.left -= 1
        if self.left == 0 and len(content):
            content[len(content) // 2] ^= 4
            self.struck = True


@contextmanager
def one_bad_read(number: int) -> Iterator[Flips]:
    flips, real_read, real_into, real_download = (
        Flips(number),
        LocalFiles.read,
        LocalFiles.read_into,
        LocalFiles.download,
    )

    def read(self: LocalFiles, *given: Any) -> bytes:
        content = bytearray(real_read(self, *given))
        flips.flip(content)
        return bytes(content)

    def read_into(self: LocalFiles, path: str, start: int, view: memoryview) -> int:
        filled = real_into(self, path, start, view)
        flips.flip(view)
        return filled

    def download(self: LocalFiles, path: str, target: Path, size: int) -> None:
        real_download(self, path, target, size)
        content = bytearray(target.read_bytes())
        flips.flip(content)
        target.write_bytes(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFiles, "read", read)
        patch.setattr(LocalFiles, "read_into", read_into)
        patch.setattr(LocalFiles, "download", download)
        yield flips


def at_every_read(act: Callable[[], Any], expected: Any, silent: int = 0) -> int:
    """Does it with a bad read at each place; how many places there are.

    Args:
        act: What is done.
        expected: What it returns.
        silent: Reads that are repeated without a warning: those of the last bytes of a listed checkpoint.
    """
    silently = 0
    for number in range(1, 100):
        with warnings.catch_warnings(record=True) as told, one_bad_read(number) as flips:
            warnings.simplefilter("always")
            assert act() == expected, f"read {number}"
        if not flips.struck:
            return number - 1
        silently += not told
        assert all(FLIPPED in str(one.message) for one in told), f"read {number}: {[str(o.message) for o in told]}"
        assert len(told) == 1 or silently <= silent
    raise AssertionError("it reads without end")


@pytest.fixture
def backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two backups of several blobs."""
    monkeypatch.setattr(packing, "BLOB_BYTES", 20)
    store = new_store(tmp_path / "backup")
    for sequence in (1, 2):
        commit(store, sequence, {"a": np.arange(9.0) + sequence, "b": np.arange(5), "c": np.zeros(3)})
    return tmp_path / "backup"


@pytest.mark.parametrize(
    "find", [lambda s: latest_intact(s, 1), lambda s: find_backup(s, None, 1)], ids=["pick", "look_up"]
)
def test_the_newest_backup_is_taken_and_stays_whichever_read_was_bad(backup: Path, find: Any) -> None:
    before = sorted(backup.rglob("*"))

    def act() -> int:
        found = find(BackupStore(Storage.open(backup)))
        np.testing.assert_array_equal(found[1].tensors["a"], np.arange(9.0) + 2)
        return int(found[0].sequence)

    assert at_every_read(act, 2) >= 7  # a manifest, three headers, three blobs
    assert sorted(backup.rglob("*")) == before


def test_kdc_verify_finds_every_backup_and_checkpoint_intact_whichever_read_was_bad(backup: Path) -> None:
    save(opened(backup), 1)

    def act() -> list[str]:
        return [verdict["state"] for verdict in kdc_json("verify", backup)["verdicts"]]

    assert at_every_read(act, ["intact"] * 3, silent=1) >= 10


@pytest.mark.parametrize("copies", [False, True])
def test_the_newest_checkpoint_is_used_whichever_read_was_bad(tmp_path: Path, copies: bool) -> None:
    storage = opened(tmp_path / "models")
    for epoch in (1, 2):
        save(storage, epoch, name=f"{epoch}.weights.h5", content=b"content")
    into = tmp_path / "into" if copies else None
    if into is not None:
        into.mkdir()
    for number in range(1, 10):
        with warnings.catch_warnings(record=True) as caught, one_bad_read(number) as flips:
            warnings.simplefilter("always")
            found = files.latest_verified(storage, into=into)
        assert found is not None
        assert found.name == "2.weights.h5", f"read {number}"
        if not flips.struck:
            break
        # a bad read of a listing's 8 KiB is repeated silently, one of a file with a warning
        assert [FLIPPED in str(one.message) for one in caught] == [True][: number > 2]
    assert number == (4 if copies else 5)  # two tails; then a copy, or a tail and the content
    if into is not None:
        assert (into / "2.weights.h5").read_bytes().startswith(b"content")


def test_the_note_of_a_training_end_is_read_whichever_read_was_bad(tmp_path: Path) -> None:
    storage = opened(tmp_path / "models")
    save(storage, 1)
    end_note.write(storage, TEMPLATE, 1, is_ended=True, last="1.keras")

    def act() -> tuple[bool, list[str]]:
        (note,), problems = end_note.read_all(storage, [TEMPLATE])
        return note.is_ended, problems

    assert at_every_read(act, (True, [])) == 1


def test_a_backup_that_is_really_damaged_is_quarantined_without_a_word_of_bad_reads(backup: Path) -> None:
    newest = BackupStore(Storage.open(backup)).manifest(BackupStore(Storage.open(backup)).commits()[-1])
    blob = backup / newest.workers[0].tensors["a"].blob
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="a damaged backup was quarantined") as told:
        found = latest_intact(BackupStore(Storage.open(backup)), 1)
    assert found is not None
    assert found[0].sequence == 1
    assert len(told) == 1

"""Checkpoints in a directory: what is listed, verified, taken, published and deleted, and what never is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from keras_dist_callbacks.base.errors import BackupMismatchError, DamagedBackupError, FencedError, StorageError
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.files import split_filepath
from keras_dist_callbacks.checkpoints.foreign import ForeignCheckpoint
from keras_dist_callbacks.storage import plain_files
from keras_dist_callbacks.storage.local_files import temporary_name
from keras_dist_callbacks.storage.storage import Storage
from tests.support.callback_helpers import memory_url
from tests.support.checkpoints import TEMPLATE, TOKEN, newest, opened, read_model, save

OTHER_TOKEN = "f" * 12


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return opened(tmp_path / "store" if request.param == "local" else memory_url())


def copy(storage: Storage, tmp_path: Path, name: str, other: str) -> None:
    """As `cp` does."""
    storage.download(name, tmp_path / "copy")
    storage.replace(other, tmp_path / "copy")


def put(storage: Storage, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "content").write_bytes(content)
    storage.replace(name, tmp_path / "content")


def test_a_published_file_is_found_with_everything_in_its_record(storage: Storage) -> None:
    published = save(storage, 1, monitor="loss", value=0.5)
    assert files.find(storage) == files.Listing((published,), (), (), 1)
    assert files.latest_verified(storage) == published


def test_newest_is_the_largest_generation_and_sequence_whatever_the_name(storage: Storage) -> None:
    for name, generation, sequence in [
        ("z.keras", 1, 9),
        ("a.keras", 2, 1),
        ("m.weights.h5", 2, 2),
        ("b.keras", 1, 10),
    ]:
        save(storage, 1, generation, name, sequence=sequence)
    assert [one.name for one in files.find(storage).checkpoints] == ["m.weights.h5", "a.keras", "b.keras", "z.keras"]


def test_a_directory_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    assert files.latest_verified(opened(tmp_path / "nowhere")) is None


def test_only_the_files_of_a_template_or_name_are_listed_when_asked(storage: Storage) -> None:
    save(storage, 1)
    save(storage, 2, name="best.keras", template="best.keras")
    for wanted, name in [(TEMPLATE, "1.keras"), ("best.keras", "best.keras"), ("1.keras", "1.keras")]:
        assert [one.name for one in files.find(storage, wanted).checkpoints] == [name]


@pytest.mark.parametrize("damage", [lambda c: b"", lambda c: c[:-1], lambda c: b"x" + c[1:], lambda c: c + b"x"])
def test_a_damaged_or_incomplete_newest_file_is_named_and_the_one_before_it_used(
    storage: Storage, tmp_path: Path, damage: object
) -> None:
    older = save(storage, 1)
    save(storage, 2)
    put(storage, tmp_path, "2.keras", damage(storage.read("2.keras")))  # type: ignore[operator]
    with pytest.warns(UserWarning, match=r"2\.keras.*1\.keras is used"):
        assert files.latest_verified(storage) == older


def test_a_newest_file_that_was_deleted_is_not_missed(storage: Storage) -> None:
    older = save(storage, 1)
    save(storage, 2)
    storage.delete("2.keras")
    assert files.latest_verified(storage) == older


def test_a_file_that_another_program_rewrote_is_named_and_not_used(storage: Storage, tmp_path: Path) -> None:
    older = save(storage, 1)
    save(storage, 2, name="best.weights.h5", template="best.weights.h5")
    put(storage, tmp_path, "best.weights.h5", b"rewritten")
    with pytest.warns(UserWarning, match=r"best\.weights\.h5 without a record: another program wrote or rewrote it"):
        assert files.latest_verified(storage) == older
    assert [one.name for one in files.find(storage).foreign] == ["best.weights.h5"]


@pytest.mark.parametrize(
    ("template", "name", "matches"),
    [
        ("ckpt-{epoch:04d}.keras", "ckpt-0012.keras", True),
        ("ckpt-{epoch}-{val_loss:.3f}.keras", "ckpt-3-0.125.keras", True),
        ("{val_loss}.keras", "1.5e-05.keras", True),
        ("{loss:.1%}.keras", "-12.5%.keras", True),
        ("{loss}.keras", "nan.keras", True),
        ("best.keras", "best.keras", True),
        ("model-{epoch}.keras", "model-final.keras", False),
        ("best.keras", "bestxkeras", False),
        ("{epoch}.keras", "1.keras.bak", False),
    ],
)
def test_names_of_a_template_have_numbers_in_the_place_of_its_fields(template: str, name: str, matches: bool) -> None:
    assert bool(files.pattern_of(template).fullmatch(name)) == matches


def test_a_directory_with_damaged_checkpoints_only_is_an_error_and_not_a_fresh_start(
    storage: Storage, tmp_path: Path
) -> None:
    save(storage, 1)
    content = storage.read("1.keras")
    put(storage, tmp_path, "1.keras", b"x" + content[1:])
    with pytest.raises(DamagedBackupError, match=r"no checkpoint in .* is intact: .*1\.keras: its content differs"):
        files.latest_verified(storage)


def test_files_of_other_tools_are_left_alone(storage: Storage, tmp_path: Path) -> None:
    for name in ("theirs.keras", "theirs.keras.json", "notes.txt"):
        put(storage, tmp_path, name, b"content")
    found = ForeignCheckpoint("theirs.keras", "model", ("theirs.keras",))
    assert files.find(storage) == files.Listing(foreign=(found,))
    assert files.find(storage, "other-{epoch}.keras") == files.Listing()
    assert files.latest_verified(storage) is None


def test_a_newer_format_is_refused_by_its_number(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from keras_dist_callbacks.checkpoints import record

    with monkeypatch.context() as patch:
        patch.setattr(record, "CHECKPOINT", dataclasses.replace(record.CHECKPOINT, version=7))
        save(storage, 1)
    with pytest.raises(BackupMismatchError, match="format version 7"):
        files.find(storage)


def test_a_copied_renamed_or_uploaded_file_is_found_like_the_original(storage: Storage, tmp_path: Path) -> None:
    published = save(storage, 3)
    copy(storage, tmp_path, "3.keras", "release.keras")
    found = files.find(storage)
    assert [(one.name, one.record) for one in found.checkpoints] == [
        ("3.keras", published.record),  # of equal ones the file with the published name comes first
        ("release.keras", published.record),
    ]
    storage.delete("3.keras")
    assert newest(storage) == "release.keras"
    elsewhere = opened(tmp_path / "elsewhere")
    storage.download("release.keras", tmp_path / "copy")
    elsewhere.replace("again.keras", tmp_path / "copy")
    assert files.latest_verified(elsewhere).record == published.record  # type: ignore[union-attr]


def test_a_run_continues_the_token_of_the_files_that_are_there(storage: Storage, tmp_path: Path) -> None:
    assert files.run_token(files.find(storage), TEMPLATE) != files.run_token(files.find(storage), TEMPLATE)
    save(storage, 1)
    save(storage, 2)
    save(storage, 7, run_token=OTHER_TOKEN)  # copied from another run, and newer
    copy(storage, tmp_path, "1.keras", "mine.keras")
    listing = files.find(storage)
    assert files.run_token(listing, TEMPLATE) == TOKEN
    assert [one.name for one in files.own(listing, TEMPLATE, TOKEN)] == ["1.keras", "2.keras"]


def test_a_name_that_a_newer_run_published_is_not_replaced(storage: Storage) -> None:
    save(storage, 1, name="best.keras")
    newer = save(storage, 1, generation=3, name="best.keras")
    with pytest.raises(FencedError, match="generation 3, this run has 2"):
        save(storage, 9, generation=2, name="best.keras")
    assert files.latest_verified(storage) == newer


def test_a_file_that_is_replaced_while_it_is_fetched_is_used_as_what_it_became(
    storage: Storage, tmp_path: Path
) -> None:
    save(storage, 1, name="best.keras", content=b"old")
    after = save(storage, 2, name="best.keras", content=b"new")
    assert files.fetch(storage, "best.keras", tmp_path) == files.verify(storage, "best.keras") == after
    assert read_model(tmp_path / "best.keras") == b"new"


def test_a_file_that_grew_since_it_was_listed_is_read_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    save(storage, 1, name="best.keras", content=b"old")
    listed = storage.files()
    after = save(storage, 2, name="best.keras", content=b"new" * 100)
    monkeypatch.setattr(Storage, "files", lambda self, directory="": listed)
    assert files.find(storage).checkpoints == (after,)


def test_a_file_that_is_deleted_while_it_is_read_is_skipped(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    older = save(storage, 1)
    save(storage, 2)
    listed = storage.files()
    storage.delete("2.keras")
    monkeypatch.setattr(Storage, "files", lambda self, directory="": listed)
    assert files.find(storage) == files.Listing((older,), (), (), 1)


def test_a_store_that_holds_fewer_bytes_than_were_written_is_an_error(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "size", lambda self, name: 3)
        with pytest.raises(StorageError, match=r"\d+ bytes were written, but the store holds 3"):
            save(storage, 1)


def test_what_an_interrupted_write_left_is_ignored_and_deleted_at_the_next_start(
    storage: Storage, tmp_path: Path
) -> None:
    save(storage, 1)
    mine, theirs = temporary_name("2.keras"), temporary_name("other.weights.h5")
    for name in (mine, theirs):
        assert name.startswith(".")
        put(storage, tmp_path, name, b"half")
    assert [one.name for one in files.find(storage).checkpoints] == ["1.keras"]
    assert set(files.unfinished(storage.files())) == {mine, theirs}
    files.remove_unfinished(storage, TEMPLATE)
    assert {info.name for info in storage.files()} == {"1.keras", theirs}


@pytest.mark.parametrize("has_unnamed_files", [True, False])
def test_a_local_file_is_complete_whenever_its_name_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_unnamed_files: bool
) -> None:
    storage = opened(tmp_path / "d")
    if not has_unnamed_files:
        monkeypatch.setattr(plain_files, "unnamed_file", lambda directory: None)
    seen: list[set[str]] = []
    monkeypatch.setattr(os, "replace", _noting(os.replace, storage, seen))
    monkeypatch.setattr(plain_files, "give_name", _noting(plain_files.give_name, storage, seen))
    for content in (b"first", b"second"):
        save(storage, 1, content=content)
    visible = [{name for name in names if not name.startswith(".")} for names in seen]
    assert visible
    assert all(names <= {"1.keras"} for names in visible)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["1.keras"]
    if has_unnamed_files:
        assert seen[0] == set()  # no name at all until the file is complete


def _noting(function: Callable[..., Any], storage: Storage, seen: list[set[str]]) -> Callable[..., Any]:
    def call(*given: Any, **options: Any) -> Any:
        seen.append({info.name for info in storage.files()})
        return function(*given, **options)

    return call


def test_a_store_without_ranged_reads_is_read_completely_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = opened(memory_url())
    for epoch in (1, 2, 3):
        save(storage, epoch, content=b"x" * 20_000)
    whole = MemoryFileSystem.cat_file
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda fs, path, start=None, end=None, **_: whole(fs, path))
    with pytest.warns(RuntimeWarning, match="does not support ranged reads") as caught:
        assert newest(storage) == "3.keras"
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.keras", (".", "a.keras")),
        ("d/a.keras", ("d", "a.keras")),
        ("/a.keras", ("/", "a.keras")),
        ("gs://bucket/d/a.keras", ("gs://bucket/d", "a.keras")),
        ("memory://a.keras", ("memory://", "a.keras")),
    ],
)
def test_paths_split_into_directory_and_name(path: str, expected: tuple[str, str]) -> None:
    assert split_filepath(path) == expected


def test_a_directory_that_is_copied_or_moved_continues(tmp_path: Path) -> None:
    save(opened(tmp_path / "a"), 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.move(tmp_path / "a", tmp_path / "c")
    for place in ("b", "c"):
        storage = opened(tmp_path / place)
        assert newest(storage) == "1.keras"
        listing = files.find(storage)
        assert (files.run_token(listing, TEMPLATE), listing.generation) == (TOKEN, 1)

"""Unfinished files are those with the names that this package gives them; users' files are not."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from keras_dist_callbacks.storage.local_files import final_name, temporary_name
from keras_dist_callbacks.storage.storage import Storage

HEX = uuid.UUID(int=0xABCDEF0123456789).hex
USERS = [
    ".notes.tmp-backup",
    ".notes.tmp-1",
    f".notes.tmp-{HEX[:-1]}",
    f".notes.tmp-{HEX}0",
    f".notes.tmp-{HEX.upper()}",
    f".notes.tmp-{HEX}.txt",
    f"notes.tmp-{HEX}",
    f".tmp-{HEX}",
    f".notes.tmp-{HEX}\n",
    ".notes.tmp-",
]


@pytest.mark.parametrize("name", USERS)
def test_a_name_that_only_resembles_a_mark_is_a_users(name: str) -> None:
    assert final_name(name) is None


@pytest.mark.parametrize("final", ["x.json", "000001.committed", "ckpt-1.keras", "two\nlines", "a.tmp-b"])
def test_the_names_that_are_given_are_reported_with_what_they_were_for(final: str) -> None:
    name = temporary_name(final)
    assert final_name(name) == final
    assert final_name(temporary_name(name)) == final, "of a file whose own name is temporary, such as the probe's"


def test_an_interrupted_write_leaves_a_file_that_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.open(tmp_path)

    class Killed(BaseException):
        pass

    def die(*arguments: object, **options: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("os.link", die)
        patch.setattr("os.unlink", lambda *arguments, **options: None)
        with pytest.raises(Killed):
            storage.create("commits/000001-00000001-ab.json", [b"half"])
    assert [final_name(f.name) for f in storage.files("commits")] == ["000001-00000001-ab.json"]

"""What is deleted, what is not written, and what is the best, by the records of the files that are there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.base.errors import StorageError
from keras_dist_callbacks.checkpoints import files, retention
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.storage.storage import Storage
from tests.support.checkpoints import TEMPLATE, TOKEN, opened, record, save

OTHER_TOKEN = "ba9876543210"  # noqa: S105 - not a secret
NEWEST = Rules(max_to_keep=1)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return opened(tmp_path / "ckpt")


def own(storage: Storage) -> list[Checkpoint]:
    return files.own(files.find(storage), TEMPLATE, TOKEN)


def delete(storage: Storage, rules: Rules, published: Checkpoint | None = None) -> set[str]:
    """Deletes, and returns what is left."""
    retention.delete_others(storage, own(storage), rules, published=published.record if published else None)
    return {info.name for info in storage.files()}


def test_only_files_of_the_template_and_the_run_under_their_own_names_are_deleted(
    storage: Storage, tmp_path: Path
) -> None:
    for epoch in (1, 2, 3):
        save(storage, epoch)
    storage.download("1.keras", tmp_path / "copy")
    storage.replace("release.keras", tmp_path / "copy")
    save(storage, 4, name="best.keras", template="best.keras")
    save(storage, 9, run_token=OTHER_TOKEN)
    assert delete(storage, NEWEST) == {"3.keras", "release.keras", "best.keras", "9.keras"}
    assert delete(storage, NEWEST) == {"3.keras", "release.keras", "best.keras", "9.keras"}


def test_what_the_user_put_in_the_place_of_an_old_file_is_not_deleted(storage: Storage, tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        save(storage, epoch)
    storage.download("2.keras", tmp_path / "copy")
    storage.replace("1.keras", tmp_path / "copy")  # another published name in it
    assert delete(storage, NEWEST) == {"1.keras", "3.keras"}


def damage(storage: Storage, name: str) -> None:
    path = Path(storage.root) / name
    content = bytearray(path.read_bytes())
    content[40] ^= 1  # within the content, which its digest covers
    path.write_bytes(bytes(content))


def test_the_newest_intact_file_stays_though_no_rule_names_it(storage: Storage) -> None:
    for epoch in (1, 2, 3):
        save(storage, epoch, monitor="loss", value=float(epoch))
    assert delete(storage, Rules(keep_best=1, monitor="loss")) == {"1.keras", "3.keras"}
    published = save(storage, 4, monitor="loss", value=9.0)
    assert delete(storage, Rules(keep_best=1, monitor="loss"), published) == {"1.keras", "4.keras"}


def test_where_the_newest_is_damaged_the_one_before_it_stays_too(storage: Storage) -> None:
    for epoch in (1, 2, 3):
        save(storage, epoch)
    damage(storage, "3.keras")
    assert delete(storage, NEWEST) == {"2.keras", "3.keras"}


def test_without_any_intact_file_nothing_is_deleted(storage: Storage) -> None:
    for epoch in (1, 2):
        save(storage, epoch)
        damage(storage, f"{epoch}.keras")
    assert delete(storage, NEWEST) == {"1.keras", "2.keras"}


def test_one_file_that_cannot_be_deleted_does_not_keep_the_others(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch in (1, 2, 3):
        save(storage, epoch)
    original = Storage.delete

    def refuse(self: Storage, name: str) -> None:
        if name == "1.keras":
            raise StorageError("it is locked")
        original(self, name)

    monkeypatch.setattr(Storage, "delete", refuse)
    with pytest.raises(StorageError, match="it is locked"):
        delete(storage, NEWEST)
    assert [one.name for one in own(storage)] == ["1.keras", "3.keras"]


def test_a_file_is_worth_writing_if_a_rule_would_keep_it() -> None:
    present = [record(f"{n}.keras", n, monitor="loss", value=float(n)) for n in (2, 4)]
    best, every = Rules(keep_best=2, monitor="loss"), Rules(keep_every=5)

    def is_worth_writing(epoch: int, value: float | None, rules: Rules, name: str = "") -> bool:
        new = record(name or f"{epoch}.keras", epoch, sequence=epoch + 10, monitor="loss", value=value)
        return retention.is_worth_writing(new, present, rules)

    assert [is_worth_writing(7, value, best) for value in (3.0, 4.0, None)] == [True, False, False]
    assert [is_worth_writing(epoch, 9.0, every) for epoch in (3, 5, 7)] == [False, True, True]
    assert [is_worth_writing(4, value, best, "4.keras") for value in (3.0, 5.0)] == [True, False], "trained again"


def test_of_files_with_one_name_the_better_one_stays() -> None:
    (present,) = [record("best.keras", 2, template="best.keras", monitor="loss", value=2.0)]
    for value, is_better in ((1.0, True), (2.0, False), (3.0, False)):
        new = dataclasses.replace(present, sequence=9, epoch=3, value=value)
        assert retention.is_worth_writing(new, [present], Rules(keep_best=1, monitor="loss")) == is_better


def test_the_newest_rules_of_each_run_say_why_its_files_stay(storage: Storage, tmp_path: Path) -> None:
    rules = {"monitor": "loss", "mode": "max", "max_to_keep": 1, "keep_best": 1, "keep_every": 2}
    for epoch, value in ((1, 5.0), (2, 3.0), (3, 4.0)):
        save(storage, epoch, value=value, **rules)
    storage.download("1.keras", tmp_path / "copy")
    storage.replace("copy.keras", tmp_path / "copy")
    save(storage, 4, name="other.keras", template="other.keras")
    found = retention.standings(files.find(storage))
    assert {name: (one.kept_by, one.is_best) for name, one in found.items()} == {
        "1.keras": (("keep_best",), True),
        "2.keras": (("keep_every",), False),
        "3.keras": (("max_to_keep",), False),
        "other.keras": (("all",), False),
    }

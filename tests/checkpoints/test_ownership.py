"""Two jobs that write the same checkpoints: the one that began last goes on, and the other one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_dist_callbacks.base.errors import FencedError, StorageError
from keras_dist_callbacks.checkpoints import end_note, ownership
from keras_dist_callbacks.checkpoints.files import Listing, find
from keras_dist_callbacks.storage.storage import Storage
from tests.support.checkpoints import TEMPLATE, another_process, opened, save


@pytest.fixture(params=["local", "memory", "bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    (tmp_path / "d").mkdir()
    return opened(
        {"local": tmp_path / "d", "memory": f"memory://{tmp_path.name}/d", "bucket": "memory://"}[request.param]
    )


def places(storage: Storage) -> list[tuple[Storage, str]]:
    return list(end_note.hidden_places(storage, "checkpoint-owner", TEMPLATE))


@pytest.fixture(autouse=True)
def nothing_left(storage: Storage) -> None:
    """Stores in memory outlive a test."""
    for place, name in places(storage):
        place.delete(name)


def test_the_older_run_is_told_who_the_newer_one_is_and_that_one_goes_on(storage: Storage) -> None:
    ownership.claim(storage, TEMPLATE)
    ownership.check(storage, TEMPLATE)
    with another_process():
        ownership.claim(storage, TEMPLATE)
        ownership.check(storage, TEMPLATE)
    with pytest.raises(FencedError, match=r"The newer run: ModelCheckpoint, .*process [0-9]+, on .*, since 2") as told:
        ownership.check(storage, TEMPLATE)
    assert f"a newer run writes {storage.display(TEMPLATE)} now" in str(told.value)


def test_a_restart_and_each_later_fit_of_a_process_owns_what_it_claims_again(storage: Storage) -> None:
    with another_process():
        ownership.claim(storage, TEMPLATE)
    for _ in range(2):
        ownership.claim(storage, TEMPLATE)
        ownership.check(storage, TEMPLATE)


def test_other_names_and_other_directories_are_nobodys_business(storage: Storage) -> None:
    ownership.claim(storage, TEMPLATE)
    with another_process():
        ownership.claim(storage, f"other-{TEMPLATE}")
        ownership.claim(storage.child("below"), TEMPLATE)
    ownership.check(storage, TEMPLATE)


def test_listings_do_not_show_it(storage: Storage) -> None:
    published = save(storage, 1)
    ownership.claim(storage, TEMPLATE)
    assert find(storage) == Listing((published,), (), (), 1)
    storage.delete(published.name)


@pytest.mark.parametrize("newer_sees_all", [True, False])
def test_runs_that_see_the_directory_under_other_names_know_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer_sees_all: bool
) -> None:
    """Where it is mounted, what is next to the directory is not there."""
    storage, parent = opened(tmp_path / "d"), end_note._parent
    (tmp_path / "d").mkdir(exist_ok=True)

    def see(all_of_it: bool) -> None:
        monkeypatch.setattr(end_note, "_parent", parent if all_of_it else lambda storage: None)

    see(not newer_sees_all)
    ownership.claim(storage, TEMPLATE)
    with another_process():
        see(newer_sees_all)
        ownership.claim(storage, TEMPLATE)
        ownership.check(storage, TEMPLATE)
    see(not newer_sees_all)
    with pytest.raises(FencedError):
        ownership.check(storage, TEMPLATE)


@pytest.mark.parametrize("spoiled", [slice(0), slice(-9), slice(9, None)])
def test_a_damaged_or_missing_record_fences_nobody(storage: Storage, spoiled: slice, tmp_path: Path) -> None:
    ownership.claim(storage, TEMPLATE)
    place, name = places(storage)[0]
    (tmp_path / "spoiled").write_bytes(place.read(name)[spoiled])
    place.replace(name, tmp_path / "spoiled")
    ownership.check(storage, TEMPLATE)
    place.delete(name)
    ownership.check(storage, TEMPLATE)
    with another_process():
        ownership.claim(storage, TEMPLATE)
    with pytest.raises(FencedError):
        ownership.check(storage, TEMPLATE)


def test_what_the_store_forbids_is_a_warning_and_what_it_cannot_read_now_an_error(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Storage, *given: object) -> bytes:
        failure = StorageError("not here")
        failure.forbidden = forbidden
        raise failure

    forbidden = True
    monkeypatch.setattr(Storage, "replace", fail)
    monkeypatch.setattr(Storage, "read", fail)
    with pytest.warns(RuntimeWarning, match="cannot record that this run writes .* now.*not here"):
        ownership.claim(storage, TEMPLATE)
    ownership.check(storage, TEMPLATE)
    forbidden = False
    with pytest.raises(StorageError, match="not here"):
        ownership.check(storage, TEMPLATE)

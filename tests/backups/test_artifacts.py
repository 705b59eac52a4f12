import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from keras_dist_callbacks.backups.artifacts import split_filepath
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.backups.sidecar import Artifact, read_sidecar

from keras_dist_callbacks.backups import artifacts, foreign
from keras_dist_callbacks.errors import BackupMismatchError, DamagedBackupError, FencedError, StorageError
from keras_dist_callbacks.storage.storage import Storage
from tests.support.callback_helpers import memory_url


@pytest.fixture(params=["local", "memory", "local, inside", "memory, inside"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointDirectory:
    place, _, inside = request.param.partition(", ")
    found = CheckpointDirectory.at(Storage.open(tmp_path / "store" if place == "local" else memory_url()))
    return dataclasses.replace(found, writes_aside=not inside)


def publish(
    directory: CheckpointDirectory, tmp_path: Path, name: str, content: bytes, order: tuple[int, int] = (1, 1)
) -> Artifact:
    source = tmp_path / "source"
    source.write_bytes(content)
    return artifacts.publish(directory, source, artifact(name, order))


def artifact(name: str, order: tuple[int, int] = (1, 1)) -> Artifact:
    return Artifact(
        name, "model", "{epoch}.keras", *order, epoch=order[1], step=10 * order[1], monitor="loss", value=0.5
    )


def damage(directory: CheckpointDirectory, tmp_path: Path, name: str, content: bytes) -> None:
    source = tmp_path / "damage"
    source.write_bytes(content)
    directory.files.replace(name, source)


class CrashError(Exception):
    """Stands for the end of the process."""


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Lets the first `number` replacements of any object happen, and no more."""
    original, calls = Storage.replace, []

    def replace(self: Storage, name: str, source: Path, by: Storage | None = None) -> None:
        calls.append(name)
        if len(calls) > number:
            raise CrashError
        original(self, name, source, by)

    monkeypatch.setattr(Storage, "replace", replace)


@contextlib.contextmanager
def crashing_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    with monkeypatch.context() as patch:
        crash_at(patch, number)
        with pytest.raises(CrashError):
            yield


def test_a_published_file_is_found_with_everything_its_sidecar_says(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    published = publish(directory, tmp_path, "a.keras", b"content")
    assert artifacts.find(directory).artifacts == (published,)
    assert published.size == 7
    assert len(published.digest) == 32
    assert artifacts.newest_verified(directory) == published


def test_newest_is_the_largest_generation_and_sequence_whatever_the_name(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    for name, order in [("z.keras", (1, 9)), ("a.keras", (2, 1)), ("m.weights.h5", (2, 2)), ("b.keras", (1, 10))]:
        publish(directory, tmp_path, name, name.encode(), order)
    names = [a.name for a in artifacts.find(directory).artifacts]
    assert names == ["m.weights.h5", "a.keras", "b.keras", "z.keras"]


def test_a_directory_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    assert artifacts.newest_verified(CheckpointDirectory.at(Storage.open(tmp_path / "nowhere"))) is None


def test_only_the_files_of_a_series_or_name_are_listed_when_asked(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    publish(directory, tmp_path, "1.keras", b"1", (1, 1))
    source = tmp_path / "source"
    artifacts.publish(directory, source, dataclasses.replace(artifact("best.keras", (1, 2)), series="best.keras"))
    assert [a.name for a in artifacts.find(directory, "{epoch}.keras").artifacts] == ["1.keras"]
    assert [a.name for a in artifacts.find(directory, "best.keras").artifacts] == ["best.keras"]
    assert [a.name for a in artifacts.find(directory, "1.keras").artifacts] == ["1.keras"]


@pytest.mark.parametrize("content", [b"", b"conten", b"Content", b"content and more"])
def test_a_damaged_newest_file_is_reported_and_the_one_before_it_taken(
    directory: CheckpointDirectory, tmp_path: Path, content: bytes
) -> None:
    older = publish(directory, tmp_path, "1.keras", b"older", (1, 1))
    publish(directory, tmp_path, "2.keras", b"content", (1, 2))
    damage(directory, tmp_path, "2.keras", content)
    with pytest.warns(UserWarning, match=r"2\.keras.* (bytes|digest)"):
        assert artifacts.newest_verified(directory) == older


def test_a_missing_newest_file_is_reported_and_the_one_before_it_taken(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    older = publish(directory, tmp_path, "1.keras", b"older", (1, 1))
    publish(directory, tmp_path, "2.keras", b"newer", (1, 2))
    directory.files.delete("2.keras")
    with pytest.warns(UserWarning, match=r"2\.keras is missing"):
        assert artifacts.newest_verified(directory) == older


@pytest.mark.slow
def test_a_sidecar_with_any_byte_changed_is_never_believed(tmp_path: Path) -> None:
    directory = CheckpointDirectory.at(Storage.open(tmp_path / "store"))
    published = publish(directory, tmp_path, "1.keras", b"content")
    sidecar = tmp_path / ".store.kdc" / "1.keras.json"
    whole = sidecar.read_bytes()
    for position in range(len(whole)):
        sidecar.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        listing = artifacts.find(directory)
        assert all(a == published for a in listing.artifacts)
        changed_meaning = json_or_none(sidecar.read_bytes()) != json.loads(whole)
        assert not (changed_meaning and listing.artifacts)
    for end in range(len(whole) - 1):
        sidecar.write_bytes(whole[:end])
        assert artifacts.find(directory).artifacts == ()


def json_or_none(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_directory_with_nothing_whole_is_an_error_and_not_a_fresh_start(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    publish(directory, tmp_path, "1.keras", b"content")
    damage(directory, tmp_path, "1.keras", b"damaged")
    with pytest.raises(DamagedBackupError, match=r"no checkpoint.*1\.keras"):
        artifacts.newest_verified(directory)


def test_a_newer_sidecar_format_is_refused_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = CheckpointDirectory.at(Storage.open(tmp_path / "store"))
    with monkeypatch.context() as patch:
        patch.setattr("keras_dist_callbacks.backups.sidecar._VERSION", 7)
        publish(directory, tmp_path, "1.keras", b"content")
    with pytest.raises(BackupMismatchError, match="format version 7"):
        artifacts.find(directory)


def test_json_files_of_others_and_files_without_sidecar_are_left_alone(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    damage(directory, tmp_path, "theirs.keras", b"model")
    damage(directory, tmp_path, "theirs.keras.json", b'{"accuracy": 0.9}')
    damage(directory, tmp_path, "alone.keras", b"model")
    assert artifacts.find(directory) == artifacts.Listing()
    assert foreign.names(directory) == ["alone.keras"]


def test_crash_between_file_and_sidecar_of_a_new_name_leaves_the_file_before(
    directory: CheckpointDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = publish(directory, tmp_path, "1.keras", b"older", (1, 1))
    with crashing_at(monkeypatch, 1):
        publish(directory, tmp_path, "2.keras", b"newer", (1, 2))
    assert directory.files.exists("2.keras")
    assert artifacts.newest_verified(directory) == older


@pytest.mark.parametrize(("operations", "expected"), [(0, b"old"), (1, b"old"), (2, b"new!"), (3, b"new!")])
def test_crash_at_any_point_of_republishing_a_fixed_name_leaves_a_good_file_with_its_own_digest(
    directory: CheckpointDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operations: int, expected: bytes
) -> None:
    publish(directory, tmp_path, "best.keras", b"old", (1, 1))
    with monkeypatch.context() as patch:
        crash_at(patch, operations)
        try:
            publish(directory, tmp_path, "best.keras", b"new!", (1, 2))
        except CrashError:
            assert operations < 3
    found = artifacts.newest_verified(directory)
    assert found is not None
    assert directory.files.read("best.keras") == expected
    assert (found.size, found.sequence) == (len(expected), 1 if expected == b"old" else 2)
    again = publish(directory, tmp_path, "best.keras", b"newest", (2, 1))
    assert artifacts.newest_verified(directory) == again
    assert read_sidecar(directory, "best.keras") == [again]


def test_an_unfinished_republication_is_ordered_by_the_version_that_is_there(
    directory: CheckpointDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(directory, tmp_path, "best.keras", b"old", (1, 1))
    between = publish(directory, tmp_path, "2.keras", b"between", (1, 2))
    with crashing_at(monkeypatch, 1):
        publish(directory, tmp_path, "best.keras", b"new", (1, 3))
    assert artifacts.newest_verified(directory) == between


def test_two_crashes_in_a_row_while_republishing_lose_nothing(
    directory: CheckpointDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(directory, tmp_path, "best.keras", b"first", (1, 1))
    for number, content in enumerate([b"second", b"third"]):
        with crashing_at(monkeypatch, 1):
            publish(directory, tmp_path, "best.keras", content, (2 + number, 1))
    found = artifacts.newest_verified(directory)
    assert found is not None
    assert found.order == (1, 1)


def test_a_file_replaced_while_it_is_fetched_is_taken_as_what_it_became(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    before = publish(directory, tmp_path, "best.keras", b"old", (1, 1))
    after = publish(directory, tmp_path, "best.keras", b"new", (1, 2))
    assert artifacts.fetch(directory, before, tmp_path) == after
    assert artifacts.verify(directory, before) == after
    assert (tmp_path / "best.keras").read_bytes() == b"new"


def test_a_name_that_a_newer_run_published_is_neither_replaced_nor_deleted(
    directory: CheckpointDirectory, tmp_path: Path
) -> None:
    newer = publish(directory, tmp_path, "best.keras", b"newer", (3, 1))
    with pytest.raises(FencedError, match="generation 3"):
        publish(directory, tmp_path, "best.keras", b"zombie", (2, 9))
    artifacts.delete(directory, "best.keras", generation=2)
    assert artifacts.newest_verified(directory) == newer


def test_deleting_takes_the_sidecar_first_and_forgives_what_is_gone(
    directory: CheckpointDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(directory, tmp_path, "1.keras", b"content")
    deleted: list[str] = []
    original = Storage.delete
    monkeypatch.setattr(Storage, "delete", lambda self, name: deleted.append(name) or original(self, name))
    artifacts.delete(directory, "1.keras", generation=1)
    artifacts.delete(directory, "1.keras", generation=1)
    assert deleted == ["1.keras.json", "1.keras", "1.keras"]
    assert not [file for place in directory.places for file in place.files()]


def test_keeping_the_newest_deletes_from_the_old_end(directory: CheckpointDirectory, tmp_path: Path) -> None:
    names = [f"{i}.keras" for i in range(4)]
    for i, name in enumerate(names):
        publish(directory, tmp_path, name, b"x", (1, i + 1))
    assert artifacts.keep_newest(directory, names, 2, generation=1) == ["2.keras", "3.keras"]
    assert [f.name for f in directory.written.files() if f.name.endswith(".json")] == ["2.keras.json", "3.keras.json"]
    assert [f.name for f in directory.files.files() if f.name.endswith(".keras")] == ["2.keras", "3.keras"]
    assert artifacts.keep_newest(directory, ["3.keras"], 2, generation=1) == ["3.keras"]


def test_a_store_that_holds_fewer_bytes_than_were_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = CheckpointDirectory.at(Storage.open(tmp_path / "store"))
    monkeypatch.setattr(Storage, "size", lambda self, name: 3)
    with pytest.raises(StorageError, match="7 bytes were written, but the store holds 3"):
        publish(directory, tmp_path, "1.keras", b"content")
    assert not list(tmp_path.rglob("*.json"))


def test_values_that_json_has_not_are_left_out(directory: CheckpointDirectory, tmp_path: Path) -> None:
    assert dataclasses.replace(artifact("1.keras"), value=float("nan")).value is None
    assert dataclasses.replace(artifact("1.keras"), value=float("inf")).value is None


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

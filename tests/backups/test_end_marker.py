"""The note of a training's end: which run it is about, and that nothing else takes it for its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.backups.end_marker import EndMarker
from keras_dist_callbacks.backups.sidecar import Artifact

from keras_dist_callbacks.backups import artifacts, end_marker, foreign, names
from keras_dist_callbacks.errors import BackupMismatchError, FencedError
from keras_dist_callbacks.storage.local_files import temporary_name
from tests.support.checkpoints import checkpoints
from tests.support.cli_backups import kdc

SERIES = "ckpt-{epoch}.keras"


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    return checkpoints(tmp_path / "d")


def publish(directory: CheckpointDirectory, tmp_path: Path, generation: int = 1, series: str = SERIES) -> Artifact:
    (tmp_path / "source").write_bytes(b"model")
    artifact = Artifact(series.format(epoch=1), "model", series, generation, 1, epoch=1, step=5)
    return artifacts.publish(directory, tmp_path / "source", artifact)


def marker(generation: int, series: str = SERIES, *, ended: bool = True, last: str | None = None) -> EndMarker:
    return EndMarker(series, generation, ended, last, "0" * 12)


def saved(generation: int, series: str = SERIES) -> Artifact:
    return Artifact("x.keras", "model", series, generation, 1, epoch=1, step=1)


@pytest.mark.parametrize(
    ("markers", "files", "ended"),
    [
        ([], [], False),
        ([], [saved(1)], False),
        ([marker(1)], [saved(1)], True),
        ([marker(1)], [], True),  # a run that saved nothing
        ([marker(1, last="x.keras")], [], False),  # what it saved was deleted, to begin anew
        ([marker(1, last="x.keras")], [saved(1)], True),
        ([marker(1)], [saved(1), saved(2)], False),  # a newer one goes on
        ([marker(2)], [saved(1)], True),  # a rerun that ran no step
        ([marker(2, ended=False)], [saved(1)], False),
        ([marker(1)], [saved(1), saved(1, "best.keras")], False),  # one of two callbacks is not done yet
        ([marker(1), marker(1, "best.keras")], [saved(1), saved(1, "best.keras")], True),
        ([marker(1), marker(2, "best.keras", ended=False)], [saved(1), saved(1, "best.keras")], False),
        ([marker(2)], [saved(2), saved(1, "other.keras")], True),  # a template of an earlier run
    ],
)
def test_the_newest_run_has_ended_when_all_its_callbacks_have(
    markers: list[EndMarker], files: list[Artifact], ended: bool
) -> None:
    assert (end_marker.end_of(markers, files) is not None) == ended


def test_a_note_is_read_back_and_a_new_run_takes_it_back(directory: CheckpointDirectory) -> None:
    end_marker.take_back(directory, SERIES, 1)
    assert end_marker.read_all(directory) == ([], [])  # there was nothing
    end_marker.publish(directory, SERIES, 1, "ckpt-3.keras")
    ((found,), problems) = end_marker.read_all(directory)
    assert (found.series, found.generation, found.ended, found.last) == (SERIES, 1, True, "ckpt-3.keras")
    assert problems == []
    end_marker.take_back(directory, SERIES, 2)
    ((again,), _) = end_marker.read_all(directory)
    assert (again.generation, again.ended) == (2, False)
    assert again.token != found.token


def test_a_run_that_was_superseded_notes_no_end(directory: CheckpointDirectory) -> None:
    end_marker.publish(directory, SERIES, 2, None)
    with pytest.raises(FencedError, match="written by a newer run"):
        end_marker.publish(directory, SERIES, 1, None)


@pytest.mark.parametrize("content", [b"", b"junk", b"[]", b"{}", b'{"seal": "x"}', b"\xff"])
def test_a_damaged_note_is_a_problem_and_no_end(directory: CheckpointDirectory, tmp_path: Path, content: bytes) -> None:
    end_marker.publish(directory, SERIES, 1, None)
    (tmp_path / ".d.kdc" / end_marker.name_of(SERIES)).write_bytes(content)
    markers, (problem,) = end_marker.read_all(directory)
    assert markers == []
    assert end_marker.name_of(SERIES) in problem
    end_marker.publish(directory, SERIES, 1, None)  # and can be replaced
    assert end_marker.read_all(directory)[1] == []


def test_every_changed_byte_is_noticed(directory: CheckpointDirectory, tmp_path: Path) -> None:
    end_marker.publish(directory, SERIES, 1, "ckpt-3.keras")
    path = tmp_path / ".d.kdc" / end_marker.name_of(SERIES)
    good = path.read_bytes()
    expected = end_marker.read_all(directory)
    for position in range(0, len(good), 3):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        markers, problems = end_marker.read_all(directory)
        assert problems or (markers, problems) == expected, good[position : position + 20]


def test_a_note_of_a_newer_version_is_refused(directory: CheckpointDirectory, tmp_path: Path) -> None:
    end_marker.publish(directory, SERIES, 1, None)
    path = tmp_path / ".d.kdc" / end_marker.name_of(SERIES)
    record = json.loads(path.read_bytes())
    record.pop("seal")
    record["version"] = 2
    record["seal"] = end_marker.seal(record)
    path.write_text(json.dumps(record))
    with pytest.raises(BackupMismatchError, match="format version 2"):
        end_marker.read_all(directory)


def test_listings_and_tools_take_it_for_no_model_and_no_damage(directory: CheckpointDirectory, tmp_path: Path) -> None:
    published = publish(directory, tmp_path)
    end_marker.publish(directory, SERIES, 1, published.name)
    assert artifacts.find(directory) == artifacts.Listing((published,), (), 1)
    assert foreign.names(directory) == []
    assert artifacts.newest_verified(directory) == published
    for command in ("ls", "verify", "doctor"):
        result = kdc(command, tmp_path / "d")
        assert result.exit_code == 0, result.output
        assert "training-end" not in result.output


def test_an_interrupted_write_of_it_is_known_as_such() -> None:
    assert names.is_unfinished(temporary_name(end_marker.name_of(SERIES)), "")

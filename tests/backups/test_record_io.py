"""The codec of records: what it writes it reads, and it refuses everything else by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import xxhash

from keras_dist_callbacks.backups.record_io import Format
from keras_dist_callbacks.base.errors import BackupMismatchError, DamagedBackupError


@dataclass(frozen=True)
class Note:
    name: str
    steps: list[int]
    value: float | None = None


NOTES = Format("keras_dist_callbacks note", 2, Note)
NOTE = Note("ä, 雪", [1, 2], 0.5)


def sealed(**fields: object) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()[:-1]
    return text + b',"seal":"%s"}' % xxhash.xxh3_128_hexdigest(text).encode()


def test_a_record_is_read_as_it_was_written_and_is_plain_json() -> None:
    content = NOTES.encode(NOTE)
    assert NOTES.decode(content, "note.json") == NOTE
    assert list(json.loads(content)) == ["format", "version", "name", "steps", "value", "seal"]


def test_every_changed_byte_and_every_length_is_damage() -> None:
    content = NOTES.encode(NOTE)
    for index in range(len(content)):
        for damaged in (content[:index], content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :]):
            with pytest.raises(DamagedBackupError, match=r"note\.json"):
                NOTES.decode(damaged, "note.json")
    with pytest.raises(DamagedBackupError, match="not a complete record"):
        NOTES.decode(content + b"\n", "note.json")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "another"}, "not a record of the format"),
        ({"version": 0}, r"format version 0 is not supported \(known: 1 to 2\)"),
        ({"version": True}, "format version True"),
        ({"name": 3}, "Expected `str`"),
        ({"unknown": 3}, "unknown keys"),
        ({"value": float("nan")}, "value that this format does not allow"),
        ({"value": float("inf")}, "value that this format does not allow"),
    ],
)
def test_sealed_content_that_the_format_does_not_allow_is_damage(fields: dict[str, object], message: str) -> None:
    valid = {"format": NOTES.name, "version": 2, "name": "a", "steps": [], "value": None}
    assert NOTES.decode(sealed(**valid), "note.json") == Note("a", [])
    with pytest.raises(DamagedBackupError, match=message):
        NOTES.decode(sealed(**{**valid, **fields}), "note.json")


def test_a_newer_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(BackupMismatchError, match=r"version 3 is not supported \(known: 1 to 2\). Install a newer"):
        NOTES.decode(replace(NOTES, version=3).encode(NOTE), "note.json")


def test_an_older_version_without_a_field_that_has_a_default_is_read() -> None:
    older = sealed(format=NOTES.name, version=1, name="a", steps=[])
    assert NOTES.decode(older, "note.json") == Note("a", [])


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        NOTES.encode(replace(NOTE, value=float("nan")))

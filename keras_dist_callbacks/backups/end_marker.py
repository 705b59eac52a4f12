"""The note that a training has ended, among the sidecars of what it saved: one for each template of file names.

A new run takes an old note back before its first step, by a note of its own generation that says the opposite, so
that whoever waits for checkpoints waits for those of the new run. Replacing works in stores that do not let delete.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import xxhash

from keras_dist_callbacks.backups import records
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory, discard
from keras_dist_callbacks.backups.names import END_MARKER
from keras_dist_callbacks.backups.records import Generation, Token
from keras_dist_callbacks.backups.rereading import read_verified
from keras_dist_callbacks.backups.sidecar import Artifact, seal
from keras_dist_callbacks.errors import BackupMismatchError, DamagedBackupError, FencedError
from keras_dist_callbacks.storage.storage import Storage

_FORMAT = "keras_dist_callbacks training end"
_VERSION = 1
_name = re.compile(END_MARKER)


@dataclass(frozen=True)
class EndMarker:
    """What is known of the end of a training.

    Attributes:
        series: The template of the file names.
        generation: The run that wrote it.
        ended: Whether it has ended; else it has taken back the note of a run before it.
        last: The name of the newest file, None if there is none.
        token: Tells this note from every other.
    """

    series: str
    generation: Generation
    ended: bool
    last: str | None
    token: Token


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    marker: EndMarker


def name_of(series: str) -> str:
    """The marker's file name; the same for every run with this template."""
    return f"training-end-{xxhash.xxh3_64_hexdigest(series.encode())}.json"


def publish(directory: CheckpointDirectory, series: str, generation: int, last: str | None) -> None:
    """Says that a training has ended; all its files must be in place.

    Args:
        directory: Where the files are.
        series: The template of the file names.
        generation: Of the run that ends.
        last: The name of its newest file.

    Raises:
        FencedError: A newer run has ended, or begun where one had ended.
        StorageError: The store failed, after all retries.
    """
    known = _newest(directory, name_of(series))
    if known is not None and known.generation > generation:
        raise FencedError(
            f"{directory.display(series)} is written by a newer run (generation {known.generation}, this one is "
            f"{generation}), so the end of this one is not noted; two runs write into one directory: end one of them"
        )
    _write(directory, EndMarker(series, generation, True, last, uuid.uuid4().hex[:12]))


def take_back(directory: CheckpointDirectory, series: str, generation: int) -> None:
    """Says that a new run has begun, if the one before it has ended."""
    if any(directory.has_note(place, name_of(series)) for place in directory.places):
        _write(directory, EndMarker(series, generation, False, None, uuid.uuid4().hex[:12]))


def read_all(directory: CheckpointDirectory) -> tuple[list[EndMarker], list[str]]:
    """The markers in a directory, and a sentence for each that is damaged.

    Raises:
        BackupMismatchError: A newer version of this package wrote one.
    """
    found, problems = [], []
    for name in sorted(filter(_name.fullmatch, directory.names_aside() | directory.names())):
        try:
            found.append(_read(directory, name))
        except FileNotFoundError:
            continue  # deleted since the listing
        except DamagedBackupError as error:
            problems.append(str(error))
    return found, problems


def end_of(markers: Iterable[EndMarker], artifacts: Iterable[Artifact]) -> EndMarker | None:
    """The marker by which the newest run has ended, None if it goes on or nothing is known of it.

    Args:
        markers: Those of the directory, read before the artefacts were listed.
        artifacts: What the directory holds.
    """
    ended, every = list(markers), list(artifacts)
    if not every:  # whoever has deleted all that a run has left begins anew
        ended = [one for one in ended if one.last is None]
    newest = max([0, *(one.generation for one in ended), *(artifact.generation for artifact in every)])
    if any(not one.ended for one in ended if one.generation == newest):
        return None
    closed = {one.series: one for one in ended if one.generation == newest}
    needed = {artifact.series for artifact in every if artifact.generation == newest}
    return next(iter(closed.values())) if closed and needed <= closed.keys() else None


def _newest(directory: CheckpointDirectory, name: str) -> EndMarker | None:
    try:
        return _read(directory, name)
    except (FileNotFoundError, DamagedBackupError):
        return None


def _read(directory: CheckpointDirectory, name: str) -> EndMarker:
    """The newest note of that name; an older version of this package may have left another one elsewhere."""
    found: list[EndMarker] = []
    damage: list[DamagedBackupError] = []
    for place in directory.places:
        try:
            found.append(read_verified(place, name, lambda place=place: _read_in(directory, place, name)))  # type: ignore[misc]
        except FileNotFoundError:
            continue
        except DamagedBackupError as error:
            damage.append(error)
    if found:
        return max(found, key=lambda marker: marker.generation)
    raise damage[0] if damage else FileNotFoundError(directory.display(name))


def _read_in(directory: CheckpointDirectory, place: Storage, name: str) -> EndMarker:
    where = place.display(name)
    record = records.parse(directory.read_note(place, name), where)
    if not isinstance(record, dict) or record.pop("seal", None) != (seal(record) or "none"):
        raise DamagedBackupError(f"{where} differs from its own seal")
    version = record.get("version")
    if isinstance(version, int) and version > _VERSION:
        raise BackupMismatchError(
            f"{where} has format version {version}, this package knows up to {_VERSION}: install a newer "
            "keras-dist-callbacks"
        )
    found: _Record = records.checked(record, _Record, where)
    if found.format != _FORMAT or name_of(found.marker.series) != name:
        raise DamagedBackupError(f"{where} is not the note of a training's end that its name says")
    return found.marker


def _write(directory: CheckpointDirectory, marker: EndMarker) -> None:
    record = {"format": _FORMAT, "version": _VERSION, "marker": vars(marker)}
    record["seal"] = seal(record) or ""
    name = name_of(marker.series)
    directory.write_note(name, json.dumps(record, indent=1).encode())
    for place in directory.places:
        if place is not directory.written and directory.has_note(place, name):
            discard(place, name)

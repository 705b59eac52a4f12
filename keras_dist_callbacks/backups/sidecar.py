"""The small JSON file that belongs to an artefact: what it is, in which order it came, how to know that it is whole."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import xxhash

from keras_dist_callbacks.backups import records
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory, discard
from keras_dist_callbacks.backups.records import Count, Digest
from keras_dist_callbacks.backups.rereading import read_verified
from keras_dist_callbacks.errors import BackupMismatchError, DamagedBackupError
from keras_dist_callbacks.storage.storage import Storage

SIDECAR = ".json"
_FORMAT = "keras_dist_callbacks artifact"
_VERSION = 1


@dataclass(frozen=True)
class Artifact:
    """One version of one file.

    Attributes:
        name: The file's name in its directory.
        kind: `"model"` (all of it, `.keras`) or `"weights"` (`.weights.h5`).
        series: The template that the name was made from; what keeps or deletes it asks for this.
        generation: Number of the run that wrote it, counted by directory.
        sequence: Its place in what that run wrote.
        epoch: Number of finished epochs.
        step: Optimizer steps taken.
        monitor: Name of the monitored quantity.
        value: Its value, if it was a finite number.
        best_only: Whether it was saved because `value` was the best so far.
        digest: xxh3_128 of the content, in hex.
        size: Bytes.
    """

    name: str
    kind: str
    series: str
    generation: int
    sequence: int
    epoch: int
    step: int
    monitor: str | None = None
    value: float | None = None
    best_only: bool = False
    digest: str = ""
    size: int = -1

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)  # JSON has no such numbers

    @property
    def order(self) -> tuple[int, int]:
        """What makes one artefact newer than another."""
        return (self.generation, self.sequence)


class _Version(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["model", "weights"]
    series: str
    generation: Count
    sequence: Count
    epoch: Count
    step: Count
    monitor: str | None
    value: float | None
    best_only: bool
    digest: Digest
    size: Count


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: Annotated[int, msgspec.Meta(ge=1)]
    versions: Annotated[list[_Version], msgspec.Meta(min_length=1)]


def versions_or_none(directory: CheckpointDirectory, name: str) -> list[Artifact] | None:
    """What `read_sidecar` returns; None if the sidecar is missing or damaged."""
    try:
        return read_sidecar(directory, name)
    except (FileNotFoundError, DamagedBackupError):
        return None


def read_sidecar(directory: CheckpointDirectory, name: str, places: Sequence[Storage] | None = None) -> list[Artifact]:
    """The versions of a file that its sidecar lists, newest first; empty if the sidecar is not one of ours.

    Where there is one in both places, because an older version of this package wrote here too or a write was
    interrupted, these are the versions of both.

    Args:
        directory: The directory of the file.
        name: The file's.
        places: Where there may be a sidecar. Defaults to all.

    Raises:
        FileNotFoundError: There is no sidecar.
        DamagedBackupError: It is not as it was written.
        BackupMismatchError: It has a format version that this package does not know.
    """
    found: dict[Artifact, None] = {}
    damage, missing = None, True
    for place in directory.places if places is None else places:
        try:
            found.update(dict.fromkeys(_read(directory, place, name)))
        except FileNotFoundError:
            continue
        except DamagedBackupError as error:
            damage = damage or error
        missing = False
    if missing:
        raise FileNotFoundError(directory.display(name + SIDECAR))
    if damage is not None and not found:
        raise damage
    return sorted(found, key=lambda artifact: artifact.order, reverse=True)


def write_sidecar(directory: CheckpointDirectory, versions: Sequence[Artifact]) -> None:
    """Replaces a file's sidecar by one that lists `versions`, the newest first."""
    name = versions[0].name
    directory.write_note(name + SIDECAR, _render(versions))
    for place in directory.places:
        if place is not directory.written and _is_ours(directory, place, name):
            discard(place, name + SIDECAR)


def delete_sidecar(directory: CheckpointDirectory, name: str) -> None:
    """Deletes a file's sidecar, unless it is something else of that name."""
    for place in directory.places:
        if _is_ours(directory, place, name):
            discard(place, name + SIDECAR)  # where it must stay, the file goes all the same: then it tells of nothing


def _is_ours(directory: CheckpointDirectory, place: Storage, name: str) -> bool:
    try:
        return bool(_read(directory, place, name))
    except FileNotFoundError:
        return False
    except DamagedBackupError:
        return True


def _read(directory: CheckpointDirectory, place: Storage, name: str) -> list[Artifact]:
    return read_verified(place, name + SIDECAR, lambda: _read_once(directory, place, name))


def _read_once(directory: CheckpointDirectory, place: Storage, name: str) -> list[Artifact]:
    where = place.display(name + SIDECAR)
    content = directory.read_note(place, name + SIDECAR)
    record = records.parse(content, where)
    if not isinstance(record, dict) or "seal" not in record:
        return []
    version = record.get("version")
    if record.pop("seal") != (seal(record) or "none") or record.get("format") != _FORMAT:
        raise DamagedBackupError(f"{where} differs from its own seal")
    if isinstance(version, int) and version > _VERSION:
        raise BackupMismatchError(
            f"{where} has format version {version}, this package knows up to {_VERSION}: install a newer "
            "keras-dist-callbacks"
        )
    found: _Record = records.checked(record, _Record, where)
    versions = [Artifact(name=name, **msgspec.structs.asdict(fields)) for fields in found.versions]
    if _render(versions) != content:
        raise DamagedBackupError(f"{where} is not written as a sidecar is: keys are double, unknown or out of order")
    return versions


def _render(versions: Sequence[Artifact]) -> bytes:
    body = [{k: v for k, v in dataclasses.asdict(a).items() if k != "name"} for a in versions]
    record: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "versions": body}
    record["seal"] = seal(record)
    return json.dumps(record, indent=1, allow_nan=False).encode()


def seal(record: dict[str, Any]) -> str | None:
    """The digest of a record without its seal; None of what is nested so deep that it cannot be written."""
    with contextlib.suppress(RecursionError):
        return xxhash.xxh3_128_hexdigest(json.dumps(record, sort_keys=True).encode())
    return None

"""`kdc show`: everything that one checkpoint and its sidecar tell, as plain values."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_dist_callbacks.backups import artifacts, records
from keras_dist_callbacks.backups.artifacts import Listing
from keras_dist_callbacks.backups.checkpoint_directory import CheckpointDirectory
from keras_dist_callbacks.backups.sidecar import Artifact
from keras_dist_callbacks.cli.details import TensorRow
from keras_dist_callbacks.cli.listing import ArtifactRow, artifact_row
from keras_dist_callbacks.errors import ConfigError, DamagedBackupError
from keras_dist_callbacks.storage import temporary

_METADATA, _WEIGHTS = "metadata.json", "model.weights.h5"
_MOST_TENSORS = 2**17
_OPTIMIZER = "optimizer/"


@dataclass(frozen=True)
class CheckpointDetails:
    """What `kdc show` shows of a checkpoint.

    Attributes:
        url: The directory, without credentials.
        checkpoint: What `kdc ls` tells of it.
        state: `"whole"` or `"damaged"`: the file was read and compared with its digest.
        problem: What is wrong with it.
        series: The template that its name was made from.
        sequence: Its place in what its run wrote.
        digest: xxh3_128 of the content, in hex.
        written: When the file was last written, in seconds since 1970; None if it is missing.
        age_seconds: How long ago that is.
        saved_by: What the file says of who saved it and when.
        tensors: In the order of the file.
        tensor_bytes: Of all values of all tensors.
        remarks: What is wrong with others in the directory: one of them may be newer.
    """

    url: str
    checkpoint: ArtifactRow
    state: str
    problem: str | None
    series: str
    sequence: int
    digest: str
    written: float | None
    age_seconds: float | None
    saved_by: Mapping[str, str]
    tensors: tuple[TensorRow, ...]
    tensor_bytes: int
    remarks: tuple[str, ...] = ()


def choose(directory: CheckpointDirectory, listing: Listing, name: str | None) -> Artifact | None:
    """The newest checkpoint, or the one of that name; None if the directory has none at all.

    Raises:
        ConfigError: There is none of that name.
        DamagedBackupError: There are sidecars, but none of them can be read.
    """
    if name is None:
        if listing.problems and not listing.artifacts:
            raise DamagedBackupError(f"{'; '.join(listing.problems)}. `kdc verify` tells of all")
        return next(iter(listing.artifacts), None)
    found = next((artifact for artifact in listing.artifacts if artifact.name == name), None)
    if found is None:
        paths = tuple(place.display(name) for place in directory.places)
        told = [problem for problem in listing.problems if problem.startswith(paths)]
        if told:
            raise DamagedBackupError(told[0])
        known = ", ".join(artifact.name for artifact in listing.artifacts[:5])
        raise ConfigError(
            f"{directory.display()}: no checkpoint with a sidecar is named {name!r}"
            + (f"; the newest: {known}" if known else "; `kdc ls` lists what is there")
        )
    return found


def describe_checkpoint(
    directory: CheckpointDirectory, artifact: Artifact, now: float, remarks: tuple[str, ...] = ()
) -> CheckpointDetails:
    """Reads a checkpoint completely and tells everything about it.

    Args:
        directory: Where it is.
        artifact: What its sidecar says.
        now: The time.
        remarks: What is wrong with others there.
    """
    tensors: tuple[TensorRow, ...] = ()
    saved_by: Mapping[str, str] = {}
    problem = None
    with temporary.directory("show") as copies:
        try:
            artifact = artifacts.fetch(directory, artifact, copies)
            saved_by, tensors = _read(copies / artifact.name, directory.display(artifact.name))
        except DamagedBackupError as error:
            problem = str(error)
    try:
        written = directory.files.modified(artifact.name)
    except FileNotFoundError:
        written = None
    return CheckpointDetails(
        url=directory.display(),
        checkpoint=artifact_row(artifact),
        state="damaged" if problem else "whole",
        problem=problem,
        series=artifact.series,
        sequence=artifact.sequence,
        digest=artifact.digest,
        written=written,
        age_seconds=None if written is None else now - written,
        saved_by=saved_by,
        tensors=tensors,
        tensor_bytes=sum(row.bytes for row in tensors),
        remarks=remarks,
    )


def _read(file: Path, shown: str) -> tuple[Mapping[str, str], tuple[TensorRow, ...]]:
    """What the file itself says; nothing of the model is made.

    Raises:
        DamagedBackupError: It is not what Keras writes.
    """
    try:
        if file.name.endswith(".weights.h5"):
            return {}, _tensors(file, shown)
        with zipfile.ZipFile(file) as archive:
            said = records.parse(archive.read(_stored(archive, _METADATA, shown)), f"{shown}: {_METADATA}")
            saved_by = {str(key): str(value) for key, value in said.items()} if isinstance(said, dict) else {}
            with archive.open(_stored(archive, _WEIGHTS, shown)) as weights:
                return saved_by, _tensors(weights, shown)
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        if isinstance(error, DamagedBackupError):
            raise
        raise DamagedBackupError(f"{shown} is not what Keras writes: {type(error).__name__} {error}") from error


def _stored(archive: zipfile.ZipFile, name: str, shown: str) -> zipfile.ZipInfo:
    """A member that takes no more memory than it takes in the file."""
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
        raise DamagedBackupError(f"{shown}: {name} is compressed, which Keras does not do")
    return member


def _tensors(file: Any, shown: str) -> tuple[TensorRow, ...]:
    import h5py

    found: list[TensorRow] = []

    def add(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if len(found) == _MOST_TENSORS:
            raise DamagedBackupError(f"{shown} holds more than {_MOST_TENSORS} tensors")
        dtype = str(item.attrs.get("dtype", item.dtype))  # types that HDF5 has not are named there
        kind = "optimizer" if name.startswith(_OPTIMIZER) else "variable"
        found.append(TensorRow(name, kind, None, dtype, tuple(item.shape or ()), int(item.nbytes), (0,)))

    with h5py.File(file, "r") as content:
        content.visititems(add)
    return tuple(found)

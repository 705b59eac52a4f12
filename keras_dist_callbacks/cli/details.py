"""`kdc show`: everything that one commit's manifest or one checkpoint tells, as plain values."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_dist_callbacks.backups import record_io
from keras_dist_callbacks.backups.codec import dtype_of
from keras_dist_callbacks.backups.manifest import CALLBACK
from keras_dist_callbacks.backups.snapshot import JSON, BlobInfo, Manifest, TensorInfo
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.files import Listing
from keras_dist_callbacks.checkpoints.record import Checkpoint
from keras_dist_callbacks.cli.inventory import Entry
from keras_dist_callbacks.cli.listing import CheckpointRow, CommitRow, checkpoint_row, commit_row
from keras_dist_callbacks.errors import ConfigError, DamagedBackupError
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage

_VARIABLE = "variable/"
_RANDOM = ("rng", "rng_before_epoch", "rng_at_epoch", "rng_at_input")
_VERSIONS = ("python", "keras", "tensorflow")
_METADATA, _WEIGHTS = "metadata.json", "model.weights.h5"
_MOST_TENSORS = 2**17
_OPTIMIZER = "optimizer/"


@dataclass(frozen=True)
class TensorRow:
    """A tensor of a commit or a checkpoint.

    Attributes:
        name: Its name, without what says that it is a variable.
        kind: `"variable"`, or what else it belongs to.
        replica: Which replica's component of a variable it is.
        dtype: Its type.
        shape: Its shape.
        bytes: Its size.
        workers: The workers that have a value of their own; one alone stands for all that follow it.
    """

    name: str
    kind: str
    replica: int | None
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    workers: tuple[int, ...]


@dataclass(frozen=True)
class BlobRow:
    """A file that a commit refers to; `stored` is the size in the store, None if it is missing there."""

    path: str
    bytes: int
    stored: int | None
    new: bool


@dataclass(frozen=True)
class CommitDetails:
    """What `kdc show` shows.

    Attributes:
        url: The directory, without credentials.
        commit: What `kdc ls` tells of it.
        versions: Of Python, Keras and TensorFlow.
        run: What else the run said of itself: strategy, workers, replicas, seed, model, batches.
        callbacks: Those whose state is held.
        random_states: Whose random states are held.
        topics: The names of whatever else is held.
        tensors: In the order of the model.
        tensor_bytes: Of all values of all tensors; equal ones are stored once.
        blobs: The files.
    """

    url: str
    commit: CommitRow
    versions: Mapping[str, JSON]
    run: Mapping[str, JSON]
    callbacks: tuple[str, ...]
    random_states: tuple[str, ...]
    topics: tuple[str, ...]
    tensors: tuple[TensorRow, ...]
    tensor_bytes: int
    blobs: tuple[BlobRow, ...]


def describe_commit(
    url: str, entry: Entry, manifest: Manifest, before: Manifest | None, stored: Mapping[str, int], now: float
) -> CommitDetails:
    """Everything about one commit.

    Args:
        url: The directory, without credentials.
        entry: The commit.
        manifest: Its manifest.
        before: The manifest of the commit before it.
        stored: Sizes of the stored blobs.
        now: The time.
    """
    earlier = frozenset(before.blobs) if before else frozenset[BlobInfo]()
    topics = list(dict.fromkeys(topic for record in manifest.workers for topic in record.state))
    tensors = tensor_rows(manifest)
    return CommitDetails(
        url=url,
        commit=commit_row(entry, earlier, stored, now),
        versions={key: manifest.info[key] for key in _VERSIONS if key in manifest.info},
        run={key: value for key, value in manifest.info.items() if key not in (*_VERSIONS, "created")},
        callbacks=tuple(topic.removeprefix(CALLBACK) for topic in topics if topic.startswith(CALLBACK)),
        random_states=_random_states(manifest),
        topics=tuple(topic for topic in topics if not topic.startswith(CALLBACK) and topic not in _RANDOM),
        tensors=tensors,
        tensor_bytes=sum(row.bytes * len(row.workers) for row in tensors),
        blobs=tuple(BlobRow(b.path, b.size, stored.get(b.path), b not in earlier) for b in manifest.blobs),
    )


def tensor_rows(manifest: Manifest) -> tuple[TensorRow, ...]:
    """One row for each tensor; workers that have values of their own of the same type and shape share it."""
    found: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for worker, record in enumerate(manifest.workers):
        for name, info in record.tensors.items():
            found.setdefault((name, info.dtype, info.shape), []).append(worker)
    return tuple(_tensor_row(name, dtype, shape, workers) for (name, dtype, shape), workers in found.items())


def _tensor_row(name: str, dtype: str, shape: tuple[int, ...], workers: list[int]) -> TensorRow:
    size = dtype_of(dtype).itemsize * math.prod(shape)
    if not name.startswith(_VARIABLE):
        return TensorRow(name, name.partition("/")[0], None, dtype, shape, size, tuple(workers))
    variable, _, replica = name.removeprefix(_VARIABLE).rpartition("@")
    if not (replica.isascii() and replica.isdigit()):
        return TensorRow(name, "variable", None, dtype, shape, size, tuple(workers))
    return TensorRow(variable, "variable", int(replica), dtype, shape, size, tuple(workers))


def _random_states(manifest: Manifest) -> tuple[str, ...]:
    state = manifest.workers[0].state if manifest.workers else {}
    held = state.get("rng") or {}
    found = [name for name in ("python", "numpy", "tensorflow") if name in held]
    if "generator" in (held.get("tensorflow") or {}):
        found.append("tf.random global generator")
    generators = {info.key for info in _chief_tensors(manifest).values() if "seed_generator" in info.key}
    if generators:
        found.append(f"keras seed generators: {len(generators)}")
    if state.get("rng_at_epoch"):
        found.append("as of the epoch's begin")
    return tuple(found)


def _chief_tensors(manifest: Manifest) -> Mapping[str, TensorInfo]:
    return manifest.workers[0].tensors if manifest.workers else {}


@dataclass(frozen=True)
class CheckpointDetails:
    """What `kdc show` shows of a checkpoint.

    Attributes:
        url: The directory, without credentials.
        checkpoint: What `kdc ls` tells of it.
        state: `"whole"` or `"damaged"`: the file was read and compared with its digest.
        problem: What is wrong with it.
        template: That of its file name.
        sequence: Its position among the files of its run.
        digest: xxh3_128 of the bytes before the record, in hex.
        written: When the file was last written, in seconds since 1970; None if it is missing.
        age_seconds: How long ago that is.
        saved_by: What the file says of who saved it and when.
        tensors: In the order of the file.
        tensor_bytes: Of all values of all tensors.
        remarks: What is wrong with others in the directory: one of them may be newer.
    """

    url: str
    checkpoint: CheckpointRow
    state: str
    problem: str | None
    template: str
    sequence: int
    digest: str
    written: float | None
    age_seconds: float | None
    saved_by: Mapping[str, str]
    tensors: tuple[TensorRow, ...]
    tensor_bytes: int
    remarks: tuple[str, ...] = ()


def choose(storage: Storage, listing: Listing, name: str | None) -> Checkpoint | None:
    """The newest checkpoint, or the one of that name; None if the directory has none at all.

    Raises:
        ConfigError: No record has that name.
        DamagedBackupError: There are checkpoints, but no record can be read.
    """
    if name is None:
        if listing.problems and not listing.checkpoints:
            raise DamagedBackupError(f"{'; '.join(listing.problems)}. `kdc verify` checks all")
        return next(iter(listing.checkpoints), None)
    found = next((one for one in listing.checkpoints if one.name == name), None)
    if found is None:
        path = storage.display(name)
        problem = next((problem for problem in listing.problems if path in problem), None)
        if problem:
            raise DamagedBackupError(problem)
        known = ", ".join(one.name for one in listing.checkpoints[:5])
        raise ConfigError(
            f"{storage.display()}: no checkpoint with a record is named {name!r}"
            + (f"; the newest: {known}" if known else "; `kdc ls` lists what is there")
        )
    return found


def describe_checkpoint(
    storage: Storage, checkpoint: Checkpoint, now: float, remarks: tuple[str, ...] = ()
) -> CheckpointDetails:
    """Reads a checkpoint completely and describes it.

    Args:
        storage: The directory.
        checkpoint: What the last bytes of the file contain.
        now: The time.
        remarks: What is wrong with others there.
    """
    tensors: tuple[TensorRow, ...] = ()
    saved_by: Mapping[str, str] = {}
    problem, written = None, None
    with temporary.directory("show") as copies:
        try:
            checkpoint = files.fetch(storage, checkpoint.name, copies)
            saved_by, tensors = _read(copies / checkpoint.name, storage.display(checkpoint.name))
            written = storage.modified(checkpoint.name)
        except FileNotFoundError:
            problem = f"{storage.display(checkpoint.name)} was deleted meanwhile"
        except DamagedBackupError as error:
            problem = str(error)
            written = storage.modified(checkpoint.name)
    record = checkpoint.record
    return CheckpointDetails(
        url=storage.display(),
        checkpoint=checkpoint_row(checkpoint),
        state="damaged" if problem else "whole",
        problem=problem,
        template=record.template,
        sequence=record.sequence,
        digest=record.digest,
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
            said = record_io.parse(archive.read(_stored(archive, _METADATA, shown)), f"{shown}: {_METADATA}")
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

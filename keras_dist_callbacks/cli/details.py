"""`kdc show`: everything that one commit's manifest tells, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from keras_dist_callbacks.backups.codec import dtype_of
from keras_dist_callbacks.backups.snapshot import JSON, BlobInfo, Manifest, TensorInfo
from keras_dist_callbacks.backups.state_schema import CALLBACK
from keras_dist_callbacks.cli.inventory import Entry
from keras_dist_callbacks.cli.listing import CommitRow, commit_row

_VARIABLE = "variable/"
_RANDOM = ("rng", "rng_before_epoch", "rng_at_epoch", "rng_at_input")
_VERSIONS = ("python", "keras", "tensorflow")


@dataclass(frozen=True)
class TensorRow:
    """A tensor of a commit.

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

"""What a manifest consists of: every name in it, how its value looks, and what must hold beyond that. Pure.

A topic of a worker's state that is not listed here is one that this version could not put back: such a backup is
refused, because a resume without it would be called exact by mistake. A new topic needs a new
format version.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import msgspec

from keras_dist_callbacks.backups import python_values, verdict
from keras_dist_callbacks.backups.codec import tensor_bytes
from keras_dist_callbacks.backups.json_values import check_storable
from keras_dist_callbacks.backups.names import blob_generation
from keras_dist_callbacks.backups.record_io import MAX_MANIFEST_BYTES, Count, Format, Time, checked, require_time
from keras_dist_callbacks.backups.snapshot import JSON, LOCAL_STATE_DROPPED, BlobInfo, Manifest, Position, TensorInfo
from keras_dist_callbacks.errors import DamagedBackupError

CALLBACK = "callback:"
"""The prefix of a callback's name."""
USER_STATE = verdict.USER_STATE
ENVIRONMENT = "environment"
"""The topic with the worker's numerical environment: versions, processors, switches."""
PYTHON = "python_state"
"""The topic with what training has changed in the user's objects: by path, what it is now and a digest of it."""
INPUT_PYTHON = "input_python_state"
"""The same of the input's Python code, as it was when the epoch began."""
TRACED = "traced_state"
"""The same, as it was when TensorFlow last traced the train step; none before that, and none in eager mode."""

COMPILED = "compiled"
"""The topic with what callbacks have changed of the compiled model: the config of a new optimizer, modes."""

Word = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Place = Annotated[int, msgspec.Meta(ge=0, le=624)]
MersenneTwister = Annotated[list[Word], msgspec.Meta(min_length=624, max_length=624)]
MersenneTwisterAndPlace = Annotated[list[Word], msgspec.Meta(min_length=625, max_length=625)]
Python = tuple[Literal[3], MersenneTwisterAndPlace, float | None]
Numpy = tuple[Literal["MT19937"], MersenneTwister, Place, Literal[0, 1], float]
Hex = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2})*\Z")]
Texts = list[str]
Specs = list[tuple[str, str]]
Records = dict[str, tuple[Any, str]]

MANIFEST = Format("keras_dist_callbacks backup", 1, Manifest, MAX_MANIFEST_BYTES, allow_nan=True)
_VARIABLE = re.compile(r"variable/.+@[0-9]{1,6}", re.DOTALL)


class TensorFlowRandom(msgspec.Struct, forbid_unknown_fields=True):
    """TensorFlow's global seed and random states."""

    seed: Integer | None
    rng: Python | None = None
    generator: list[Integer] | None = None

    def __post_init__(self) -> None:
        _require_place(self.rng)
        if self.seed is not None and self.rng is None:
            raise ValueError("the seed has no random state")


class Random(msgspec.Struct, forbid_unknown_fields=True):
    """The global random states of a process."""

    python: Python
    numpy: Numpy
    tensorflow: TensorFlowRandom
    torch: Hex | None = None

    def __post_init__(self) -> None:
        _require_place(self.python)
        if not math.isfinite(self.numpy[-1]):
            raise ValueError("numpy's random state is not finite")


class Hidden(msgspec.Struct, forbid_unknown_fields=True):
    """What was found in an input."""

    python: Texts
    unordered: Texts


class Info(msgspec.Struct, forbid_unknown_fields=True):
    """What a manifest says about the run; what a custom training loop does not have is None."""

    keras: str | None = None
    tensorflow: str | None = None
    python: str | None = None
    strategy: str | None = None
    model: str | None = None
    replicas: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    workers: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    seed: Integer | None = None
    steps_per_execution: Count | Literal["auto"] | None = None
    steps_per_epoch: Count | None = None
    created: Time | None = None

    def __post_init__(self) -> None:
        require_time(self.created)


class Fit(msgspec.Struct, forbid_unknown_fields=True):
    """Which fit of its process saved a backup."""

    number: Count
    epochs: Count
    initial_epoch: Count


class Compiled(msgspec.Struct, forbid_unknown_fields=True):
    """What callbacks have changed of the compiled model."""

    optimizer: dict[str, Any] | None = None
    optimizer_at: str | None = None
    losses: dict[str, Any] | None = None
    run_eagerly: bool = False
    jit_compile: bool = False
    weights: list[Count] = []


_STORABLE = object()
_TYPES: dict[str, Any] = {
    "rng": Random,
    "rng_at_epoch": Random | None,
    "rng_before_epoch": Random,
    "rng_at_input": Random,
    "fit": Fit,
    "num_batches": Count | None,
    "first_epoch": Count,
    "num_validations": Count,
    "shares_input": bool,
    "is_finalized": bool,
    "stop_training": bool,
    "logs": _STORABLE,
    "metric_variables": Texts,
    "input_variables": Specs,
    "untracked_variables": Specs,
    "epochs_by_count": list[tuple[Count, Count, Count]],
    PYTHON: Records,
    TRACED: Records,
    INPUT_PYTHON: Records,
    verdict.LOST: Texts,
    ENVIRONMENT: dict[str, str],
    verdict.UNTRACKED_INPUT: Hidden,
    verdict.RANDOM_OPERATIONS: Texts,
    verdict.NOT_SAVED: Texts,
    verdict.CONDITIONS: Texts,
    verdict.CALLBACKS_NOT_CALLED: Texts,
    LOCAL_STATE_DROPPED: bool,
    "input": _STORABLE,
    COMPILED: Compiled,
    USER_STATE: _STORABLE,
}
_OF_FIT = {
    "num_batches",
    "first_epoch",
    "num_validations",
    "is_finalized",
    "stop_training",
    "input_variables",
    "untracked_variables",
    verdict.RANDOM_OPERATIONS,
}
_OF_ALL = {"rng", "metric_variables", verdict.UNTRACKED_INPUT, verdict.NOT_SAVED, verdict.CONDITIONS}
_OF_THE_LOOP = {"rng_at_epoch"}
_WITHIN = {"logs"}


def check_topics(state: Mapping[str, JSON], tensors: Collection[str], where: str) -> None:
    """Makes sure that each topic is known and looks as it must.

    Args:
        state: Of one worker.
        tensors: Names of the tensors that it may refer to.
        where: What it is, for messages.

    Raises:
        DamagedBackupError: One is not.
    """
    for topic, value in state.items():
        place = f"{where}: {topic}"
        if topic.startswith(CALLBACK) or _TYPES.get(topic) is _STORABLE:
            if not isinstance(value, dict):
                raise DamagedBackupError(f"{place} is not a dict")
            check_storable(value, tensors, place)
        elif topic not in _TYPES:
            raise DamagedBackupError(f"{where}: the topic {topic!r} is unknown")
        else:
            found = checked(value, _TYPES[topic], place)
            if topic in (PYTHON, TRACED, INPUT_PYTHON):
                for path, (record, _) in found.items():
                    python_values.check(record, tensors, f"{place}: {path}")


def check_complete(state: Mapping[str, JSON], within: bool, where: str) -> None:
    """Makes sure that nothing is missing that a resume needs.

    Args:
        state: A worker's, together with what it shares with the chief's.
        within: Whether it was taken within an epoch.
        where: What it is, for messages.

    Raises:
        DamagedBackupError: Something is.
    """
    of_fit = _OF_FIT | (_WITHIN if within else set())
    needed = _OF_ALL | (_OF_THE_LOOP if USER_STATE in state else of_fit)
    missing = sorted(needed - state.keys())
    if (
        within and USER_STATE not in state and state.get("rng_at_epoch") is None
    ):  # a loop has none before its first epoch
        missing.append("rng_at_epoch")
    if missing:
        raise DamagedBackupError(f"{where} lacks {', '.join(missing)}")


def _require_place(state: Python | None) -> None:
    if state is not None and (state[1][-1] > 624 or not math.isfinite(state[2] or 0)):
        raise ValueError("the position in a random state is out of range, or one of its values is not finite")


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the manifest as a record."""
    return MANIFEST.encode(manifest)


def decode_manifest(content: bytes, where: str, limit: int = MAX_MANIFEST_BYTES) -> Manifest:
    """Reads and checks a manifest.

    Args:
        content: The file.
        where: Its path, for messages.
        limit: Bytes that it may have.

    Raises:
        DamagedBackupError: It is not what was written, or names what no backup may name.
        BackupMismatchError: A newer version of this package wrote it.
    """
    manifest = dataclasses.replace(MANIFEST, max_bytes=limit).decode(content, where)
    try:
        _check_places(manifest)
    except ValueError as error:
        raise DamagedBackupError(f"{where} is not a valid manifest: {error}") from error
    check_content(manifest, where)
    return manifest


def check_content(manifest: Manifest, where: str) -> None:
    """Makes sure that a worker finds all that it needs to resume, and nothing that this version would not restore.

    Raises:
        DamagedBackupError: That is not so.
    """
    checked(manifest.info, Info, f"{where}: info")
    if not manifest.workers:
        raise DamagedBackupError(f"{where} has no worker's state")
    _check_position(manifest.position, where)
    chief = manifest.workers[0]
    for worker, record in enumerate(manifest.workers):
        place = f"{where}: worker {worker}"
        check_topics(record.state, {**chief.tensors, **record.tensors}.keys(), place)
        state = {**chief.state, **record.state}
        check_complete(state, manifest.position.kind == "within", place)
        if manifest.position.epoch < state.get("first_epoch", 0):
            raise DamagedBackupError(f"{place}: the first epoch is after epoch {manifest.position.epoch}")


def _check_position(position: Position, where: str) -> None:
    within = position.kind == "within"
    if position.batch > position.step or within != bool(position.batch):
        raise DamagedBackupError(
            f"{where}: batch {position.batch} {position.kind} and step {position.step} do not match"
        )


def _check_places(manifest: Manifest) -> None:
    """That nothing leads outside or beyond a blob, and no two tensors have bytes in common unless all of them."""
    blobs = _checked_blobs(manifest)
    ranges: dict[str, set[tuple[int, int]]] = {path: set() for path in blobs}
    for record in manifest.workers:
        for name, info in record.tensors.items():
            ranges[_blob_of(name, info, blobs).path].add((info.start, info.start + tensor_bytes(info)))
    for path, found in ranges.items():
        if not found:
            raise ValueError(f"{path} is listed, but holds no tensor")
        filled = sorted((start, end) for start, end in found if end > start)
        if any(after[0] < before[1] for before, after in itertools.pairwise(filled)):
            raise ValueError(f"{path}: tensors overlap")


def _checked_blobs(manifest: Manifest) -> dict[str, BlobInfo]:
    for blob in manifest.blobs:
        if blob_generation(blob.path) != manifest.id.generation:
            raise ValueError(f"the blob name {blob.path!r} is not valid")
        if not 8 <= blob.header_size <= min(blob.size, MAX_MANIFEST_BYTES):
            raise ValueError(f"{blob.path}: a header of {blob.header_size} bytes in a blob of {blob.size}")
    blobs = {blob.path: blob for blob in manifest.blobs}
    if len(blobs) < len(manifest.blobs):
        raise ValueError("a blob is listed twice")
    return blobs


def _blob_of(name: str, info: TensorInfo, blobs: Mapping[str, BlobInfo]) -> BlobInfo:
    if name.startswith("variable/") and not _VARIABLE.fullmatch(name):
        raise ValueError(f"the tensor {name!r} does not name its replica")
    if info.blob not in blobs:
        raise ValueError(f"the tensor {name!r} is in {info.blob!r}, which is not listed among the blobs")
    blob = blobs[info.blob]
    if not blob.header_size <= info.start <= info.start + tensor_bytes(info) <= blob.size:
        raise ValueError(f"the tensor {name!r} ends after the end of its blob {info.blob}")
    return blob

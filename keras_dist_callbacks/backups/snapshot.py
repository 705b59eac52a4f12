"""The frozen values that travel along the data's path, one between each two steps, and the names of tensors in them.

Variables are among a worker's tensors, by the names that Keras has for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np

from keras_dist_callbacks.backups import findings, names
from keras_dist_callbacks.backups.findings import FINDINGS, Finding
from keras_dist_callbacks.backups.record_io import Count, Digest, Generation, Sequence, Time, Token

JSON = Any
"""A value that `json` writes and reads back unchanged."""

Short = Annotated[str, msgspec.Meta(max_length=40)]

LONGEST_WARNING = 500
"""Characters of a warning that a manifest keeps."""

VARIABLES = "variables"
"""The part whose tensors are the variables that Keras lists: a name ends with `@` and the replica's number."""

ARCHITECTURE = "architecture/json"
"""The tensor that holds what Keras' `to_json` says of the model, in UTF-8."""


class SharedTensor(Protocol):
    """A value that was read and will not change, wherever its bytes are."""

    def array(self) -> np.ndarray[Any, Any]:
        """Returns the value as a read-only array, without a copy where possible."""
        ...


@dataclass(frozen=True)
class SharedArray:
    """A numpy array that no one else writes to."""

    value: np.ndarray[Any, Any]

    def array(self) -> np.ndarray[Any, Any]:
        """Returns the array itself."""
        return self.value


@dataclass(frozen=True)
class Position:
    """Where in training a snapshot was taken.

    Attributes:
        kind: `"between"` epochs, `"within"` an epoch (at its last step too, before validation), or at the
            `"end"` of fit.
        epoch: The running epoch, or the next one if `kind` is not `"within"`; counted from 0.
        batch: Batches trained in that epoch; 0 if `kind` is not `"within"`.
        step: Batches trained since the first fit of the run.
    """

    kind: Literal["between", "within", "end"]
    epoch: Count
    batch: Count
    step: Count

    def __str__(self) -> str:
        if self.kind == "within":
            return f"epoch {self.epoch + 1}, batch {self.batch} (step {self.step})"
        return f"the end of epoch {self.epoch} (step {self.step})"


@dataclass
class FitPlace:
    """Which `fit()` of a script one is, of those that save to the same directory.

    Attributes:
        number: How many had ended in the directory before it.
        first: The number of the first of those before it that trained this model, one after the other.
        epochs: As it was given.
        initial_epoch: As it was given.
        repeats: How many of all before it were given the same.
    """

    number: Count
    first: Count
    epochs: int
    initial_epoch: int
    repeats: Count = 0


@dataclass(frozen=True)
class Piece:
    """What one part of a training's state has saved, on one worker.

    Attributes:
        state: Values of JSON, by topic: what is compared with the chief's, so that equal ones are stored once.
        tensors: By name: a `SharedTensor` where it is captured, an array where it was read back.
        findings: What a resume will not repeat exactly, as far as this part knows.
    """

    state: Mapping[str, JSON] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """One worker's complete training state at one position.

    Attributes:
        position: Where it was taken.
        tensors: Those of all parts, as `part/name`.
        state: Values of JSON, as `part/topic`; what was found is the topic `FINDINGS` of its part.
    """

    position: Position
    tensors: Mapping[str, SharedTensor]
    state: Mapping[str, JSON]

    @classmethod
    def of(cls, position: Position, pieces: Mapping[str, Piece]) -> Snapshot:
        """Returns the snapshot with these pieces, by part; a part without anything is in it too."""
        tensors: dict[str, SharedTensor] = {}
        state: dict[str, JSON] = {}
        for part, piece in pieces.items():
            tensors.update({f"{part}/{name}": held for name, held in piece.tensors.items()})
            state.update({f"{part}/{topic}": value for topic, value in piece.state.items()})
            state[f"{part}/{FINDINGS}"] = findings.to_json(piece.findings)
        return cls(position, tensors, state)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the manifest describes it.

    Attributes:
        blob: Path of its blob within the backup directory.
        key: Its name within the blob.
        start: Where its bytes begin in the blob.
        dtype: numpy's name of its type.
        shape: Its shape.
        hash: xxh3_128 of its bytes, in hexadecimal.
    """

    blob: str
    key: str
    start: Count
    dtype: Short
    shape: tuple[Count, ...]
    hash: Digest


@dataclass(frozen=True)
class WorkerRecord:
    """What a manifest holds of one worker; for the others only what differs from the chief's.

    A topic of another worker that is None says that it has none, where the chief has one; so does the name of a
    tensor as a topic.
    """

    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    state: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True)
class BlobInfo:
    """A blob as the manifest describes it.

    Its tensors have hashes of their own, so that each of them can be read and verified alone.

    Attributes:
        path: Its path in the backup directory; the file is named after its content.
        size: Bytes.
        header_size: Bytes before the first tensor.
        header_hash: xxh3_128 of these, in hexadecimal.
    """

    path: str
    size: Count
    header_size: Count
    header_hash: Digest


@dataclass(frozen=True, order=True)
class CommitId:
    """A commit's place in time: newest is the largest; steps are content and decide nothing."""

    generation: Generation
    sequence: Sequence
    token: Token

    @property
    def name(self) -> str:
        """The manifest's path within the backup directory."""
        return names.commit_name(self.generation, self.sequence, self.token)

    @property
    def file_name(self) -> str:
        """The manifest's file name, there and wherever it is moved to."""
        return self.name.removeprefix(f"{names.COMMITS}/")

    @property
    def label(self) -> str:
        """A short name that people can type."""
        return f"{self.generation}-{self.sequence}"

    def matches_name(self, name: str) -> bool:
        """Returns whether `name` means this commit: its label, or its manifest's name in full or in part."""
        wanted = name.removeprefix(f"{names.COMMITS}/").removesuffix(".json")
        return wanted in (self.label, self.file_name.removesuffix(".json"))

    @classmethod
    def parse(cls, name: str) -> CommitId | None:
        """Returns the id in a manifest's file name, or None if it is not one."""
        parts = names.commit_parts(name)
        return None if parts is None else cls(*parts)


@dataclass(frozen=True)
class Warned:
    """What the user was warned of while training ran.

    Attributes:
        time: When, in seconds since 1970.
        text: What was said, as far as it is kept.
    """

    time: Time
    text: Annotated[str, msgspec.Meta(max_length=LONGEST_WARNING)]


@dataclass(frozen=True)
class Manifest:
    """A commit: what a complete backup consists of."""

    id: CommitId
    position: Position
    blobs: tuple[BlobInfo, ...]
    workers: tuple[WorkerRecord, ...]
    info: Mapping[str, JSON]

    @property
    def done(self) -> bool:
        """Whether training had ended."""
        return self.position.kind == "end"

    def complete_record(self, worker: int) -> WorkerRecord:
        """Returns all that one worker has; a worker that was not there gets what the chief has."""
        chief = self.workers[0]
        if not 0 < worker < len(self.workers):
            return chief
        own = self.workers[worker]
        tensors, state = {**chief.tensors, **own.tensors}, {**chief.state, **own.state}
        for name in [name for name, value in own.state.items() if value is None]:
            tensors.pop(name, None)
            state.pop(name, None)
        return WorkerRecord(tensors, state)


@dataclass(frozen=True)
class Saved:
    """What a backup holds of one part.

    Attributes:
        mine: This worker's piece; the chief's, if the number of workers has changed.
        others: The tensors of workers 1, 2, ... then.
        position: Where the backup was taken.
    """

    mine: Piece
    others: tuple[Mapping[str, np.ndarray[Any, Any]], ...]
    position: Position


@dataclass(frozen=True)
class WorkerState:
    """One worker's state, read back and verified.

    Attributes:
        position: Where it was taken.
        tensors: The worker's tensors, as in a `Snapshot`.
        state: Everything else, likewise.
        info: What the manifest says about the run.
        other_workers: The tensors of workers 1, 2, ... if their number has changed; `tensors` are the chief's
            then.
    """

    position: Position
    tensors: Mapping[str, np.ndarray[Any, Any]]
    state: Mapping[str, JSON]
    info: Mapping[str, JSON]
    other_workers: tuple[Mapping[str, np.ndarray[Any, Any]], ...] = ()

    @property
    def fit(self) -> FitPlace:
        """Which `fit()` has saved it; not for the backup of a loop."""
        return FitPlace(**self.state["progress/fit"])

    def has(self, part: str) -> bool:
        """Returns whether a part has saved a piece, maybe one without anything."""
        return f"{part}/{FINDINGS}" in self.state

    def of(self, part: str) -> Saved:
        """Returns what is saved of a part."""
        state = _below(part, self.state)
        found = tuple(findings.from_json(state.pop(FINDINGS, [])))
        others = tuple(_below(part, tensors) for tensors in self.other_workers)
        return Saved(Piece(state, _below(part, self.tensors), found), others, self.position)


def _below(part: str, named: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def stored_components(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Returns the values of each variable, one for each replica, by the variable's name.

    Args:
        tensors: Those of the part `VARIABLES`.
    """
    found: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
    for tensor, value in tensors.items():
        name, _, replica = tensor.rpartition("@")
        found.setdefault(name, {})[int(replica)] = value
    return {name: [by_replica[i] for i in sorted(by_replica)] for name, by_replica in found.items()}


def by_path(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Read-only values by path; where those of replicas differ, by `path@0`, `path@1`, ...

    Args:
        tensors: Those of the part `VARIABLES`.
    """
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, values in stored_components(tensors).items():
        alike = all(_same(values[0], value) for value in values[1:])
        for number, value in enumerate(values[:1] if alike else values):
            shown = value.view()
            shown.flags.writeable = False
            found[name if alike else f"{name}@{number}"] = shown
    return found


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def strip_counters(path: str) -> str:
    """Returns a variable's path without the numbers that depend on what was made before in the process."""
    return re.sub(r"_\d+(?=[/_#]|$)", "", path)

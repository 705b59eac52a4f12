"""The frozen values that travel along the data's path, one between each two steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

JSON = Any
"""A value that `json` writes and reads back unchanged."""

LOCAL_STATE_DROPPED = "local_state_dropped"
"""The topic that says that a worker's local tensors were too large to be saved."""


class HeldTensor(Protocol):
    """A value that was read and will not change, wherever its bytes are."""

    def array(self) -> np.ndarray[Any, Any]:
        """The value as a read-only array, without a copy where possible."""
        ...


@dataclass(frozen=True)
class HeldArray:
    """A numpy array that nobody else writes to."""

    value: np.ndarray[Any, Any]

    def array(self) -> np.ndarray[Any, Any]:
        """The array itself."""
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
    epoch: int
    batch: int
    step: int

    def __str__(self) -> str:
        if self.kind == "within":
            return f"epoch {self.epoch + 1}, batch {self.batch} (step {self.step})"
        return f"the end of epoch {self.epoch} (step {self.step})"


@dataclass(frozen=True)
class Snapshot:
    """One worker's complete training state at one position.

    Attributes:
        position: Where it was taken.
        tensors: Every component of every variable, and arrays of callbacks, by name.
        state: Everything else, by topic; values of JSON.
    """

    position: Position
    tensors: Mapping[str, HeldTensor]
    state: Mapping[str, JSON]


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
    start: int
    dtype: str
    shape: tuple[int, ...]
    hash: str


@dataclass(frozen=True)
class WorkerRecord:
    """What a manifest holds of one worker; for the others only what differs from the chief's."""

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
    size: int
    header_size: int
    header_hash: str


@dataclass(frozen=True, order=True)
class CommitId:
    """A commit's place in time: newest is the largest; steps are content and decide nothing."""

    generation: int
    sequence: int
    token: str

    @property
    def name(self) -> str:
        """The manifest's path within the backup directory."""
        return f"commits/{self.generation:06d}-{self.sequence:08d}-{self.token}.json"

    @classmethod
    def parse(cls, name: str) -> CommitId | None:
        """The id in a manifest's file name, or None if it is no such name."""
        parts = name.removesuffix(".json").split("-")
        if not name.endswith(".json") or len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
            return None
        return cls(int(parts[0]), int(parts[1]), parts[2])


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


@dataclass(frozen=True)
class WorkerState:
    """One worker's state, read back and verified.

    Attributes:
        position: Where it was taken.
        tensors: The worker's tensors by name.
        state: Everything else, by topic.
        info: What the manifest tells about the run.
        other_workers: The tensors of workers 1, 2, ... if their number has changed; `tensors` are the chief's
            then.
    """

    position: Position
    tensors: Mapping[str, np.ndarray[Any, Any]]
    state: Mapping[str, JSON]
    info: Mapping[str, JSON]
    other_workers: tuple[Mapping[str, np.ndarray[Any, Any]], ...] = ()

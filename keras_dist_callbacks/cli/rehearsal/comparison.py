"""What differs between the backups of two runs, by their manifests: hashes of tensors, and topics of the state.

Values are read only of tensors that differ, to say how far apart they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_dist_callbacks.backups.findings import FINDINGS
from keras_dist_callbacks.backups.reading import read_tensors
from keras_dist_callbacks.backups.snapshot import JSON, VARIABLES, Manifest, Position, TensorInfo, WorkerRecord
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base.validation import format_value

_CALLBACK = "callbacks/"
_OWN_CHECKPOINT, _OWN_BOARD = f"{_CALLBACK}kdc.ModelCheckpoint(", f"{_CALLBACK}kdc.TensorBoard("
_TRACED = "objects/traced"
_PLAIN_ITEMS = 8


@dataclass(frozen=True)
class RunBackups:
    """The backups of one fit of a run.

    Attributes:
        store: Where they are.
        manifests: In the order in which they were saved; a restart may save a position again.
    """

    store: BackupStore
    manifests: tuple[Manifest, ...]

    @classmethod
    def read(cls, store: BackupStore) -> RunBackups:
        """All that are in a directory; raises what `BackupStore.manifest` does."""
        return cls(store, tuple(store.manifest(commit) for commit in store.commits()))

    @property
    def positions(self) -> list[Position]:
        """Each position once, as training comes to them."""
        found = {manifest.position for manifest in self.manifests}
        return sorted(found, key=lambda position: (position.step, position.kind == "end"))

    def at(self, position: Position) -> list[Manifest]:
        """What was saved at a position, the newest last."""
        return [manifest for manifest in self.manifests if manifest.position == position]


@dataclass(frozen=True)
class Variable:
    """A tensor that differs.

    Attributes:
        name: Of the variable; with the worker or replica, unless it is the first.
        kind: `"variable"`, or what else the tensor belongs to.
        differ: How many of its values; None if type or shape do.
        size: How many values it has.
        largest: The largest difference of two values; None for what is not a number.
    """

    name: str
    kind: str
    differ: int | None = None
    size: int = 0
    largest: float | None = None


@dataclass(frozen=True)
class State:
    """A value of the state that differs.

    Attributes:
        topic: What it belongs to, as in a manifest.
        path: Where in it.
        one: What the first run has, in short.
        other: What the second run has.
    """

    topic: str
    path: str
    one: str
    other: str

    @property
    def words(self) -> str:
        """The topic as people read it."""
        if self._is_history:
            return "History"
        if self.topic.startswith(_CALLBACK):
            return f"callback {self.topic.removeprefix(_CALLBACK).removesuffix('()')}"
        return _TOPICS.get(self.topic, self.topic)

    @property
    def name(self) -> str:
        """To tell it from others."""
        return f"{self.words}: {self.path}"

    @property
    def is_random(self) -> bool:
        """Whether it is a random state."""
        return self.topic in _RANDOM

    @property
    def is_of_objects(self) -> bool:
        """Whether it is what the user's objects hold, which may differ in any two runs, such as a time."""
        return self.topic in _OF_OBJECTS or (self.topic.startswith(_CALLBACK) and not self._is_history)

    @property
    def _is_history(self) -> bool:
        return self.topic.startswith(f"{_CALLBACK}History(")


@dataclass(frozen=True)
class Difference:
    """What differs between two backups of the same position.

    Attributes:
        position: In words.
        step: Batches trained.
        variables: The tensors.
        states: The rest.
    """

    position: str
    step: int
    variables: tuple[Variable, ...]
    states: tuple[State, ...]


@dataclass(frozen=True)
class Gap:
    """What differs between two backups of the same position, before values are read.

    Attributes:
        position: Where.
        tensors: The tensors, with both manifests.
        states: The rest.
    """

    position: Position
    tensors: tuple[_Tensors, ...]
    states: tuple[State, ...]

    @property
    def names(self) -> frozenset[str]:
        """What differs, to tell it from others."""
        return frozenset([*(found.name for found in self.tensors), *(state.name for state in self.states)])

    @property
    def is_about_training(self) -> bool:
        """Whether numbers of training differ, and not only random states or what the user's objects hold."""
        others = {_kind_of_tensor(found.name)[0] for found in self.tensors} - {"callback", "script"}
        return bool(others) or any(not (state.is_of_objects or state.is_random) for state in self.states)

    @property
    def is_random(self) -> bool:
        """Whether random states differ, which training may use or not."""
        return any(state.is_random for state in self.states)


def gaps(one: RunBackups, other: RunBackups, ignored: Collection[str] = ()) -> Iterator[Gap]:
    """What differs, at each position that both have, in the order of training.

    Args:
        one: The backups of one run; of several at a position the newest counts.
        other: Those of the other one; all of them count.
        ignored: Names of what is not compared.
    """
    for position in one.positions:
        reference = one.at(position)[-1]
        for manifest in other.at(position):
            tensors = tuple(t for t in _tensors(reference, manifest) if t.name not in ignored)
            states = tuple(state for state in _states(reference, manifest) if state.name not in ignored)
            if tensors or states:
                yield Gap(position, tensors, states)


def describe(gap: Gap, one: RunBackups, other: RunBackups) -> Difference:
    """A gap in words, for which the tensors that differ are read."""
    variables = tuple(_variable(one.store, other.store, found) for found in gap.tensors)
    return Difference(str(gap.position), gap.position.step, variables, gap.states)


def first_difference(one: RunBackups, other: RunBackups, ignored: Collection[str] = ()) -> Difference | None:
    """What differs at the first position that both have and where anything does."""
    gap = next(gaps(one, other, ignored), None)
    return None if gap is None else describe(gap, one, other)


def missing_positions(one: RunBackups, other: RunBackups) -> list[str]:
    """Where the first run has saved and the second one has not, or the other way round, a sentence each."""
    return [
        f"{text} at {position}"
        for text, positions, others in (
            ("only the first run has saved", one.positions, other.positions),
            ("only the second run has saved", other.positions, one.positions),
        )
        for position in positions
        if position not in others
    ]


# --- tensors


@dataclass(frozen=True)
class _Tensors:
    """A tensor of a worker in two backups."""

    name: str
    worker: int
    one: TensorInfo | None
    in_one: Manifest
    other: TensorInfo | None
    in_other: Manifest


def _workers(manifest: Manifest) -> list[WorkerRecord]:
    """What each worker has."""
    return [manifest.complete_record(worker) for worker in range(len(manifest.workers))]


def _tensors(one: Manifest, other: Manifest) -> list[_Tensors]:
    found: list[_Tensors] = []
    known: set[tuple[Any, ...]] = set()
    for worker, (first, second) in enumerate(zip(_workers(one), _workers(other), strict=True)):
        for name in dict.fromkeys([*first.tensors, *second.tensors]):
            infos = first.tensors.get(name), second.tensors.get(name)
            contents = [None if info is None else (info.dtype, info.shape, info.hash) for info in infos]
            if contents[0] != contents[1] and (name, *contents) not in known:
                known.add((name, *contents))
                found.append(_Tensors(name, worker, infos[0], one, infos[1], other))
    return found


def _variable(one: BackupStore, other: BackupStore, found: _Tensors) -> Variable:
    kind, shown = _kind_of_tensor(found.name)
    shown = f"{shown} (worker {found.worker})" if found.worker else shown
    first, second = found.one, found.other
    if first is None or second is None:
        return Variable(f"{shown}, which only {'the second' if first is None else 'the first'} run has", kind)
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return Variable(f"{shown}, {first.dtype}{list(first.shape)} and {second.dtype}{list(second.shape)}", kind)
    distance = _distance(_read(one, first, found.in_one), _read(other, second, found.in_other))
    return Variable(shown, kind, *distance)


def _read(store: BackupStore, info: TensorInfo, manifest: Manifest) -> np.ndarray[Any, Any]:
    blobs = {blob.path: blob for blob in manifest.blobs}
    return read_tensors(store.storage, {"it": info}, blobs)["it"]


def _distance(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> tuple[int, int, float | None]:
    width = one.dtype.itemsize
    as_bytes = [np.frombuffer(value.tobytes(), np.uint8).reshape(-1, width) for value in (one, other)]
    differ = int(np.count_nonzero((as_bytes[0] != as_bytes[1]).any(axis=1)))
    if one.dtype.kind not in "biuf" and one.dtype.name != "bfloat16":
        return differ, one.size, None
    with np.errstate(all="ignore"):
        gaps = np.abs(one.astype(np.float64) - other.astype(np.float64))
    gaps = gaps[np.isfinite(gaps)]
    return differ, one.size, float(gaps.max()) if gaps.size else None


def _kind_of_tensor(name: str) -> tuple[str, str]:
    part, _, rest = name.partition("/")
    if part == VARIABLES:
        path, _, replica = rest.rpartition("@")
        return "variable", path if replica == "0" else f"{path} (replica {replica})"
    if part == "callbacks":
        return "callback", rest
    if part in ("facts", "architecture") or name == "objects/description":
        return "script", name
    return ("input", name) if part == "input" else ("state", name)


# --- state


def _states(one: Manifest, other: Manifest) -> list[State]:
    found: list[State] = []
    for first, second in zip(_workers(one), _workers(other), strict=True):
        for topic in sorted({*first.state, *second.state}):
            if topic == _TRACED and not (topic in first.state and topic in second.state):
                continue  # a process that had no step left to train has traced none
            if topic.endswith(f"/{FINDINGS}"):
                continue  # what was found is no state; of earlier resumes, an uninterrupted run has none
            pair = [_comparable(topic, record.state.get(topic), is_end=one.done) for record in (first, second)]
            found += [State(topic, *gap) for gap in _gaps(*pair)]
    return list(dict.fromkeys(found))


def _comparable(topic: str, value: JSON, *, is_end: bool) -> JSON:
    """Without what a ModelCheckpoint and a TensorBoard know of their files.

    Those of a TensorBoard have the process in their names. The order of the newest checkpoint counts the processes. The
    best one is that in place: a process learns at an epoch's end that the file of the epoch before is, and a restart
    sees it at once; when training has ended, all are.
    """
    if topic.startswith(_OWN_CHECKPOINT) and isinstance(value, dict):
        left_out = ("last_saved",) if is_end else ("last_saved", "best")
        return {name: part for name, part in value.items() if name not in left_out}
    if topic.startswith(_OWN_BOARD) and isinstance(value, dict):
        return {name: part for name, part in value.items() if name != "files"}
    return value


def _gaps(one: JSON, other: JSON, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Where two values differ: path, and each of them in short."""
    if one == other or (one != one and other != other):  # NaN is no difference
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted({*one, *other}):
            yield from _gaps(one.get(name), other.get(name), f"{path}.{name}" if path else name)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other) <= _PLAIN_ITEMS:
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from _gaps(*pair, f"{path}[{number}]")
    else:
        yield path, _short(one), _short(other)


def _short(value: JSON) -> str:
    if isinstance(value, list) and len(value) > _PLAIN_ITEMS:
        return f"a list of {len(value)}"
    return "nothing" if value is None else format_value(value)


_TOPICS = {
    "random/now": "random states",
    "random_at_epoch/entered": "random states at the beginning of the epoch",
    "random_at_epoch/begun": "random states before the epoch",
    "input/random": "random states at the beginning of the input",
    "progress/logs": "logs of the epoch",
    "input/own": "position of the input",
    "input/order": "order of the input",
    "input/variables": "variables of the input",
    "input_objects/changed": "Python state of the input",
    "objects/changed": "Python state",
}


_RANDOM = {"random/now", "random_at_epoch/entered", "random_at_epoch/begun", "input/random"}
_OF_OBJECTS = {"objects/changed", "input_objects/changed", _TRACED}

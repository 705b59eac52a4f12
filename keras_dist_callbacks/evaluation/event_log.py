"""The event files of a `SidecarEvaluator`: one for each process, with its results in the order of training.

TensorBoard joins the files of a directory in the order of their names, keeps them open, and reads what is appended. So
a file only grows, and its name begins with its first step. Where a result belongs before one that is in a file already,
or takes the place of one, all are written again to one file, and the others are deleted.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage

_PREFIX, _SUFFIX = "events.out.tfevents.", ".evaluator"


@dataclass(frozen=True)
class LoggedResult:
    """A result as it is logged.

    Attributes:
        step: Where it is on a plot.
        time: When it was found, in seconds since 1970.
        values: By name.
    """

    step: int
    time: float
    values: Mapping[str, float]


class EventLog:
    """What is in the event files of a directory, and what is added to that of this process.

    Args:
        storage: The directory.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held: list[tuple[int, float]] = []  # steps and times in all files, in the order of these
        self._name, self._content = "", b""  # of this process' file
        self._superseded: list[str] = []

    def open(self) -> None:
        """Reads what earlier processes have logged.

        Raises:
            StorageError: The directory cannot be used.
        """
        self._storage.probe()
        with temporary.directory("evaluator") as directory:
            for name in self._names():
                self._storage.download(name, directory / name)
                self._held += _read(directory / name)

    def write(self, entries: Sequence[LoggedResult]) -> None:
        """Adds what is missing; may be called again where it has failed.

        Args:
            entries: All results, in the order of training.

        Raises:
            StorageError: The directory cannot be written.
        """
        wanted = [(entry.step, entry.time) for entry in entries]
        if self._held != wanted[: len(self._held)]:
            self._superseded, self._held, self._name = self._names(), [], ""
        missing = entries[len(self._held) :]
        if missing:
            if not self._name:
                self._name, self._content = f"{_PREFIX}{missing[0].step:012d}.{uuid.uuid4().hex[:8]}{_SUFFIX}", b""
            content = self._content + _encoded(missing, is_first=not self._content)
            self._storage.extend(self._name, content, len(self._content))
            self._content, self._held = content, wanted
        while self._superseded:
            self._storage.delete(self._superseded[-1])
            self._superseded.pop()

    def _names(self) -> list[str]:
        names = (info.name for info in self._storage.files())
        return sorted(name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX))


def _encoded(entries: Sequence[LoggedResult], *, is_first: bool) -> bytes:
    with temporary.directory("evaluator") as directory:
        file = directory / "events"
        with temporary.writing("an event file", within=directory), tf.io.TFRecordWriter(str(file)) as writer:
            if is_first:
                version = tf.compat.v1.Event(wall_time=entries[0].time, file_version="brain.Event:2")
                writer.write(version.SerializeToString())
            for entry in entries:
                writer.write(_event(entry).SerializeToString())
        return file.read_bytes()


def _event(entry: LoggedResult) -> Any:
    """As Keras' TensorBoard logs what `evaluate()` finds, under the same names; one event, which is there or not."""
    v1 = tf.compat.v1
    plugin = v1.SummaryMetadata.PluginData(plugin_name="scalars")
    values = [
        v1.Summary.Value(
            tag=f"evaluation_{name}_vs_iterations",
            tensor=tf.make_tensor_proto(value, tf.float32),
            metadata=v1.SummaryMetadata(plugin_data=plugin),
        )
        for name, value in entry.values.items()
    ]
    return v1.Event(wall_time=entry.time, step=entry.step, summary=v1.Summary(value=values))


def _read(file: Path) -> Iterator[tuple[int, float]]:
    """Yields the step and time of each result in an event file, up to where a process was killed in writing it."""
    with contextlib.suppress(tf.errors.DataLossError):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            if event.HasField("summary"):
                yield event.step, event.wall_time

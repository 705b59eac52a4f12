"""What a `SidecarEvaluator` has found: a record for each result, and event files made of the records.

The record is the result: one small file under a name that follows from the training step, published atomically. The
event files are made of nothing else. So a process that is killed between the two has lost nothing, and a restarted one
adds what is missing; none of both can be there twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from keras_dist_callbacks.backups import record_io
from keras_dist_callbacks.backups.record_io import Count, Digest, Format, Time
from keras_dist_callbacks.backups.retention import Mode
from keras_dist_callbacks.base.errors import ConfigError, DamagedBackupError
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.checkpoints import files
from keras_dist_callbacks.checkpoints.record import CheckpointRecord, kind_of
from keras_dist_callbacks.evaluation.event_log import EventLog, LoggedResult
from keras_dist_callbacks.evaluation.model import EvaluatedModel
from keras_dist_callbacks.evaluation.sources import Candidate
from keras_dist_callbacks.storage import temporary
from keras_dist_callbacks.storage.storage import Storage

RECORDS = "evaluations"


@dataclass(frozen=True)
class Evaluation:
    """What `SidecarEvaluator` found about one checkpoint.

    Attributes:
        name: The checkpoint's name, or the short name of a backup as `kdc ls` shows it.
        step: Training steps taken.
        epoch: Number of finished epochs.
        metrics: What `model.evaluate` returned, by name.
    """

    name: str
    step: int
    epoch: int
    metrics: dict[str, float]


class EvaluationRecord(msgspec.Struct, frozen=True):
    """One result.

    Attributes:
        name: Of the checkpoint.
        step: Training steps taken.
        epoch: Epochs finished.
        plot_step: Where it is on a plot.
        metrics: The values as text, which holds every number.
        weights_digest: Of the model's weights.
        checkpoints: Every checkpoint that is known to be this one.
        evaluated_at: When it was evaluated, in seconds since 1970.
    """

    name: str
    step: Count
    epoch: Count
    plot_step: Count
    metrics: dict[str, str]
    weights_digest: Digest
    checkpoints: list[str]
    evaluated_at: Time

    @property
    def result(self) -> Evaluation:
        """What users see of it."""
        return Evaluation(self.name, self.step, self.epoch, {n: float(value) for n, value in self.metrics.items()})


RESULT = Format("keras_dist_callbacks evaluation", 1, EvaluationRecord)


class EvaluationLog:
    """The results so far.

    Args:
        state: The directory of the records.
        events: The directory of the event files; None for none.
    """

    def __init__(self, state: Storage, events: Storage | None) -> None:
        self._state, self._events = state, None if events is None else EventLog(events)
        self._records: dict[int, EvaluationRecord] = {}

    def open(self) -> None:
        """Reads what earlier processes found, and logs what they did not get to.

        Raises:
            StorageError: A directory cannot be used.
        """
        self._state.probe()
        for info in self._state.files(RECORDS):
            if info.name.endswith(".json"):
                self._read(f"{RECORDS}/{info.name}")
        if self._events is not None:
            self._events.open()
            self._put_events()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def results(self) -> list[Evaluation]:
        """All of them, in the order of training."""
        return [self._records[place].result for place in sorted(self._records)]

    @property
    def keys(self) -> set[str]:
        """Every checkpoint that needs no evaluation any more."""
        return {key for record in self._records.values() for key in record.checkpoints}

    def has_result(self, candidate: Candidate, weights: str) -> bool:
        """Whether this model was evaluated at this step already, under another name or by another run; noted if so."""
        earlier = self._records.get(candidate.place)
        if earlier is None or earlier.weights_digest != weights:
            return False
        self._put_record(msgspec.structs.replace(earlier, checkpoints=[*earlier.checkpoints, candidate.key]))
        return True

    def add(self, candidate: Candidate, weights: str, metrics: Mapping[str, float]) -> Evaluation:
        """Puts a result in place; instead of that of another model at the same step, if there is one."""
        place, earlier = candidate.place, self._records.get(candidate.place)
        record = EvaluationRecord(
            candidate.name,
            candidate.step,
            candidate.epoch,
            place,
            {name: repr(value) for name, value in metrics.items()},
            weights,
            list(dict.fromkeys([*(earlier.checkpoints if earlier else ()), candidate.key])),  # once, if tried again
            time.time(),
        )
        self._put_record(record)
        self._put_events()
        return record.result

    def _read(self, name: str) -> None:
        where = self._state.display(name)
        try:
            record = RESULT.decode(record_io.read(self._state, name), where)
            if _record_name(record.plot_step) != name:
                raise DamagedBackupError(f"{where} holds the record of another step, {record.plot_step}")
        except DamagedBackupError as error:
            warn(f"the result is evaluated again if its checkpoint is still there: {error}")
            return
        self._records[record.plot_step] = record

    def _put_record(self, record: EvaluationRecord) -> None:
        record_io.write(self._state, _record_name(record.plot_step), RESULT.encode(record))
        self._records[record.plot_step] = record

    def _put_events(self) -> None:
        if self._events is not None:
            records = (self._records[place] for place in sorted(self._records))
            self._events.write([LoggedResult(one.plot_step, one.evaluated_at, one.result.metrics) for one in records])


@dataclass(frozen=True)
class BestExport:
    """The best model so far, under a fixed name, with a record that says how good it is.

    Attributes:
        storage: The directory.
        name: Its name there.
        monitor: The metric.
        mode: `"min"` or `"max"`.
    """

    storage: Storage
    name: str
    monitor: str
    mode: Mode

    def export_if_best(self, candidate: Candidate, metrics: Mapping[str, float], model: EvaluatedModel) -> None:
        """Exports the model if it is better than what is there.

        Raises:
            ConfigError: The metric does not exist.
        """
        if self.monitor not in metrics:
            raise ConfigError(
                f"monitor={self.monitor!r} is not a metric of the model; its metrics are {', '.join(metrics)}"
            )
        value = metrics[self.monitor]
        listing = files.find(self.storage, self.name)
        there = next((one.record for one in listing.checkpoints if one.name == self.name), None)
        best = there.value if there is not None and there.monitor == self.monitor else None
        if not math.isfinite(value) or (
            best is not None and not (value < best if self.mode == "min" else value > best)
        ):
            return
        with temporary.directory("evaluator") as directory:
            file = candidate.file
            if file is None or kind_of(file.name) != kind_of(self.name):
                file = directory / self.name
                with temporary.writing("the best model", within=directory):
                    model.save(file)
            record = CheckpointRecord(
                template=self.name.replace("{", "{{").replace("}", "}}"),
                published_name=self.name,
                run_token=files.run_token(listing, self.name),
                generation=1 if there is None else there.generation,
                sequence=1 if there is None else there.sequence + 1,
                epoch=candidate.epoch,
                step=candidate.step,
                monitor=self.monitor,
                value=value,
                best_only=True,
                mode=self.mode,
            )
            files.publish(self.storage, file, record)


def _record_name(place: int) -> str:
    return f"{RECORDS}/{place:012d}.json"

"""Where a fit is, and snapshots of it.

Steps are counted here, because `optimizer.iterations` stands still under gradient accumulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from keras_dist_callbacks import static
from keras_dist_callbacks._compat import rng
from keras_dist_callbacks._compat import running_fit as seam
from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, Position, SharedTensor, Snapshot
from keras_dist_callbacks.inputs.position import DataPosition
from keras_dist_callbacks.process_runs import RunsIn
from keras_dist_callbacks.training import model_export
from keras_dist_callbacks.training.capture import capture, jsonable_logs
from keras_dist_callbacks.training.resume_mode import FIT
from keras_dist_callbacks.training.untracked_state import UntrackedState


class StepCounter:
    """Epoch, batches trained in it, and batches trained in all.

    Attributes:
        epoch: The running epoch, or the next one between two, from 0.
        batch: Batches trained in the running epoch.
        step: Batches trained since the first fit began.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self.step = 0
        self._batches: int | None = None

    def resume(self, position: Position) -> None:
        """Training continues after a restored position; its epoch is yet to begin."""
        self.epoch, self.batch, self.step = position.epoch, 0, position.step

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins."""
        self.epoch, self.batch = epoch, 0

    def enter_epoch(self, batches: int | None) -> None:
        """The number of batches of one pass is known, where the input says it."""
        self._batches = batches

    def skip_to(self, batch: int) -> None:
        """Batches that an earlier process trained were dropped."""
        self.batch = batch

    def trained_to(self, end_step: int) -> None:
        """All batches up to this index of the epoch are trained."""
        trained = end_step + 1
        if self._batches is not None and trained > self._batches:
            trained = self._batches  # the last of several `steps_per_execution` finds fewer than it asks for
        self.step += trained - self.batch
        self.batch = trained

    def end_epoch(self, epoch: int) -> None:
        """An epoch is complete."""
        self.epoch, self.batch = epoch + 1, 0

    def position(self, kind: Literal["within", "between", "end"]) -> Position:
        """As snapshots say it."""
        return Position(kind, self.epoch, self.batch if kind == "within" else 0, self.step)


@dataclass
class Progress:
    """How far a fit() has come.

    Attributes:
        count: Epochs and batches.
        first_epoch: The data had no iterators before it; None before any epoch.
        validations: How many were complete since.
        shares_input: Whether each fit of a loop gets the input object of the one before; None if that is not known.
        rng_before_epoch: Random states before `on_epoch_begin`.
        rng_at_epoch: Those before the epoch's first batch.
    """

    count: StepCounter = field(default_factory=StepCounter)
    first_epoch: int | None = None
    validations: int = 0
    shares_input: bool | None = None
    rng_before_epoch: JSON = None
    rng_at_epoch: JSON = None

    def resume(self, state: Mapping[str, JSON]) -> None:
        """The data's iterators are as old as they were for a backup."""
        self.first_epoch, self.validations = int(state["first_epoch"]), int(state["num_validations"])
        self.shares_input = state.get("shares_input")


@dataclass
class FitState:
    """What a snapshot of a running fit() is made of, and what a backup is restored into.

    Attributes:
        fit: The running fit.
        data: Its input.
        untracked: What Keras does not list.
        callbacks: All callbacks whose state belongs to training.
        progress: How far it has come.
        description: What distinguishes it from other fits of the process in the same directory.
        runs: Those.
    """

    fit: seam.RunningFit
    data: DataPosition
    untracked: UntrackedState
    callbacks: Sequence[Any]
    progress: Progress
    description: dict[str, JSON]
    runs: RunsIn


def take(state: FitState, kind: Any, missed: Sequence[Finding], *, is_chief: bool) -> Snapshot:
    """Returns a snapshot of this worker.

    Args:
        state: The fit's.
        kind: `"within"` an epoch, `"between"` two, or at the `"end"`.
        missed: What callbacks did not do around the last batch, because of an exception.
        is_chief: Whether this worker saves the model's architecture too.
    """
    fit, progress = state.fit, state.progress
    topics: dict[str, JSON] = {
        "rng": rng.capture(),
        FIT: dict(state.description),
        "num_batches": fit.num_batches,
        "first_epoch": progress.first_epoch or 0,
        "num_validations": progress.validations,
        "is_finalized": kind == "end" and _finalizes(fit.model, state.callbacks),
        "stop_training": bool(fit.model.stop_training),
    }
    if progress.shares_input is not None:
        topics["shares_input"] = progress.shares_input
    if missed:
        topics[f"{findings.SAVED}callbacks"] = findings.to_json(missed)
    logs: dict[str, SharedTensor] = {}
    if kind == "within":
        topics["rng_at_epoch"] = progress.rng_at_epoch
        if progress.rng_before_epoch != progress.rng_at_epoch:
            topics["rng_before_epoch"] = progress.rng_before_epoch
        topics["logs"] = jsonable_logs(seam.current_logs(fit.model), logs)
    else:
        state.data.note()
        state.untracked.note_epoch(is_read=False)
    found, tensors = state.untracked.capture()
    topics.update(found)
    tensors = {**tensors, **logs}
    if is_chief:
        tensors = {**tensors, **model_export.architecture_tensor(fit.model)}
    return capture(fit.model, state.callbacks, progress.count.position(kind), topics, tensors)


def _finalizes(model: Any, callbacks: Sequence[Any]) -> bool:
    """Returns whether the weights at the end of fit are not those of its last step."""
    averages = bool(getattr(model.optimizer, "use_ema", False))
    return averages or any(static.attribute(c, "restore_best_weights") is True for c in callbacks)

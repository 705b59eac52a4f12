"""How far a fit() has come, and a snapshot of all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks._compat import fit as seam
from keras_dist_callbacks._compat import rng
from keras_dist_callbacks.backups import exactness
from keras_dist_callbacks.backups.snapshot import JSON, Snapshot
from keras_dist_callbacks.inputs.position import DataPosition
from keras_dist_callbacks.training import architecture
from keras_dist_callbacks.training.capture import capture, jsonable_logs
from keras_dist_callbacks.training.step_count import StepCount
from keras_dist_callbacks.training.unlisted import UnlistedState


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

    count: StepCount = field(default_factory=StepCount)
    first_epoch: int | None = None
    validations: int = 0
    shares_input: bool | None = None
    rng_before_epoch: JSON = None
    rng_at_epoch: JSON = None

    def resume(self, state: Mapping[str, JSON]) -> None:
        """The data's iterators are as old as they were for a backup."""
        self.first_epoch, self.validations = int(state["first_epoch"]), int(state["num_validations"])
        self.shares_input = state.get("shares_input")


def take(
    fit: seam.RunningFit,
    data: DataPosition,
    unlisted: UnlistedState,
    callbacks: Sequence[Any],
    progress: Progress,
    kind: Any,
    missed: Sequence[str],
    *,
    is_chief: bool,
) -> Snapshot:
    """A snapshot of this worker.

    Args:
        fit: The running fit.
        data: Its input.
        unlisted: What Keras does not list.
        callbacks: All callbacks whose state belongs to training.
        progress: How far it has come.
        kind: `"within"` an epoch, `"between"` two, or at the `"end"`.
        missed: Callbacks that an exception kept from hearing of the last batch.
        is_chief: Whether this worker saves the model's architecture too.
    """
    topics: dict[str, JSON] = {
        "rng": rng.capture(),
        "num_batches": fit.num_batches,
        "first_epoch": progress.first_epoch or 0,
        "num_validations": progress.validations,
        "is_finalized": kind == "end" and _finalizes(fit.model, callbacks),
        "stop_training": bool(fit.model.stop_training),
    }
    if progress.shares_input is not None:
        topics["shares_input"] = progress.shares_input
    if missed:
        topics[exactness.UNTOLD] = list(missed)
    if kind == "within":
        topics["rng_at_epoch"] = progress.rng_at_epoch
        if progress.rng_before_epoch != progress.rng_at_epoch:
            topics["rng_before_epoch"] = progress.rng_before_epoch
        topics["logs"] = jsonable_logs(seam.current_logs(fit.model))
    else:
        data.note()
    found, tensors = unlisted.capture()
    topics.update(found)
    if is_chief:
        tensors = {**tensors, **architecture.held(fit.model)}
    return capture(fit.model, callbacks, progress.count.position(kind), topics, tensors)


def _finalizes(model: Any, callbacks: Sequence[Any]) -> bool:
    """Whether the weights at the end of fit are not those of its last step."""
    averages = bool(getattr(model.optimizer, "use_ema", False))
    return averages or any(getattr(c, "restore_best_weights", False) for c in callbacks)

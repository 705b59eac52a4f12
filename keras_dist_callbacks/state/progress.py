"""Where a fit is.

Steps are counted here, because `optimizer.iterations` stands still under gradient accumulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from keras_dist_callbacks._compat import running_fit
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import JSON, FitPlace, Piece, Position, Saved, SharedTensor
from keras_dist_callbacks.base import static
from keras_dist_callbacks.state.own_values import from_json
from keras_dist_callbacks.state.part import Moment, Part, moment_of_arrival
from keras_dist_callbacks.state.variables import jsonable_logs


class StepCounter:
    """Epoch, batches trained in it, and batches trained in all.

    Attributes:
        epoch: The running epoch, or the next one between two, from 0.
        batch: Batches trained in the running epoch.
        step: Batches trained since the first fit or loop began.
        is_within: Whether a step may follow in the running epoch.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self.step = 0
        self.is_within = False
        self._batches: int | None = None

    def resume(self, position: Position) -> None:
        """Training continues after a restored position; its epoch is yet to begin."""
        self.epoch, self.batch, self.step = position.epoch, 0, position.step

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins."""
        self.epoch, self.batch = epoch, 0

    def enter_epoch(self, batches: int | None) -> None:
        """Steps follow; the number of batches of one pass is known, where the input says it."""
        self._batches, self.is_within = batches, True

    def leave_epoch(self) -> None:
        """No step follows in this epoch."""
        self.is_within = False

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

    def trained(self, batches: int) -> None:
        """So many batches more are trained."""
        self.step += batches
        self.batch += batches

    def end_epoch(self, epoch: int) -> None:
        """An epoch is complete."""
        self.epoch, self.batch, self.is_within = epoch + 1, 0, False

    def position(self, kind: Literal["within", "between", "end"]) -> Position:
        """As snapshots say it."""
        return Position(kind, self.epoch, self.batch if kind == "within" else 0, self.step)


class Progress(Part):
    """How far one fit() has come.

    Args:
        fit: The running fit.
        callbacks: All whose state belongs to training.
        this_fit: What distinguishes it from others in the same directory, see `FitPlace`.

    Attributes:
        count: Epochs and batches.
    """

    name = "progress"

    def __init__(self, fit: running_fit.RunningFit, callbacks: Sequence[Any], this_fit: FitPlace) -> None:
        self._fit, self._callbacks, self._this_fit = fit, callbacks, this_fit
        self.count = StepCounter()

    def capture(self, position: Position) -> Piece:
        """Returns what fit is and knows at this place."""
        model = self._fit.model
        topics: dict[str, JSON] = {
            "fit": asdict(self._this_fit),
            "is_finalized": position.kind == "end" and _finalizes(model, self._callbacks),
            "stop_training": bool(model.stop_training),
        }
        arrays: dict[str, SharedTensor] = {}
        if position.kind == "within":
            topics["logs"] = jsonable_logs(running_fit.current_logs(model), arrays)
        return Piece(topics, arrays)

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Puts back the logs of an interrupted epoch; between two, a run that had stopped stays stopped.

        Within an epoch, all workers must stop after the same step, which they agree on.
        """
        if moment is not moment_of_arrival(saved.position):
            return []
        if moment is Moment.ARRIVED:
            running_fit.current_logs(self._fit.model).update(from_json(saved.mine.state["logs"], saved.mine.tensors))
        elif saved.mine.state["stop_training"]:
            self._fit.set_initial_epoch(self._fit.epochs)
            self._fit.model.stop_training = True
        return []

    def adopt(self, saved: Saved) -> list[Finding]:
        """No step is left that could be stopped."""
        return []


def _finalizes(model: Any, callbacks: Sequence[Any]) -> bool:
    """Returns whether the weights at the end of fit are not those of its last step."""
    averages = bool(getattr(model.optimizer, "use_ema", False))
    return averages or any(static.attribute(c, "restore_best_weights") is True for c in callbacks)

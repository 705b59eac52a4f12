"""Where a fit is: counted by us, because `optimizer.iterations` stands still under gradient accumulation."""

from __future__ import annotations

from typing import Literal

from keras_dist_callbacks.backups.snapshot import Position


class StepCount:
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
        """Training goes on behind a restored position; its epoch is yet to begin."""
        self.epoch, self.batch, self.step = position.epoch, 0, position.step

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins."""
        self.epoch, self.batch = epoch, 0

    def enter_epoch(self, batches: int | None) -> None:
        """The number of batches of one pass is known, where the input tells it."""
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

"""Frozen values that several layers share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RestoredFrom:
    """Where `make_or_restore_model` got a model from.

    Attributes:
        path: The artefact, fit for messages (no credentials).
        epoch: Number of finished epochs, which is also the index of the epoch to go on with.
        step: Optimizer steps taken.
    """

    path: str
    epoch: int
    step: int

    @property
    def initial_epoch(self) -> int:
        """What `fit()` is to be given to go on; with `BackupAndRestore` it need not be."""
        return self.epoch


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

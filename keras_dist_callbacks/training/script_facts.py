"""What the script says of a training, and whether it says the same as before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Piece, Position, Saved
from keras_dist_callbacks.errors import BackupMismatchError
from keras_dist_callbacks.state.part import Moment, Part, arrived
from keras_dist_callbacks.training.config_diff import Fingerprint


class ScriptFacts(Part):
    """The facts of one fit.

    Args:
        fit: The running fit, before a backup is restored.
        directory: The backup directory.
        callbacks: All whose state belongs to training.

    Attributes:
        given: What they are and how they differ from those of a backup.
        names_that_differ: Settings that are others than in the backup.
    """

    name = "facts"

    def __init__(self, fit: RunningFit, directory: str, callbacks: Sequence[Any]) -> None:
        self._fit, self._callbacks = fit, callbacks
        self.given = Fingerprint(fit, directory)
        self.names_that_differ: Collection[str] = ()

    def capture(self, position: Position) -> Piece:
        """Returns one tensor, the same in every backup of a run, so that it is written once."""
        return Piece(tensors=self.given.capture())

    def check(self, saved: Saved) -> None:
        """Refuses what a backup cannot follow.

        Raises:
            BackupMismatchError: Layers were frozen or unfrozen, or a rate became a schedule, or was one: other
                variables would be trained, or otherwise.
        """
        reasons = self.given.reasons(saved.mine.tensors)
        if reasons:
            raise BackupMismatchError(
                f"the backup is of a model that was trained in another way: {'; '.join(reasons)}. The backup is "
                "unchanged: build and compile the model as before to resume, or use another directory to start again"
            )

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Puts nothing back; returns what differs, and what could not be compared."""
        if moment is not arrived(saved.position):
            return []
        self.given.note_built()
        marks, tensors = vars(self._fit.model), saved.mine.tensors
        loaded = marks.get("_kdc_restored_from") is not None and "_kdc_compiled_rates" not in marks
        at = None if loaded else saved.position
        self.names_that_differ = self.given.names_that_differ(tensors)
        found = self.given.differences(tensors, at=at, callbacks=self._callbacks)
        return [*found, *self.given.not_compared(tensors)]

    def adopt(self, saved: Saved) -> list[Finding]:
        """No step is left that could differ."""
        self.given.note_built()
        return []

"""The numerical environment of a worker: versions, processors, switches."""

from __future__ import annotations

from keras_dist_callbacks._compat import environment
from keras_dist_callbacks.backups.findings import Finding, made
from keras_dist_callbacks.backups.snapshot import Piece, Position, Saved
from keras_dist_callbacks.state.part import Moment, Part, moment_of_arrival


class Environment(Part):
    """What the last bits of a result depend on, as of when the run began."""

    name = "environment"

    def __init__(self) -> None:
        self._now = environment.describe()

    def capture(self, position: Position) -> Piece:
        """Returns it, and what training has changed of it."""
        return Piece({"now": self._now}, findings=tuple(made(environment.changes_in_training(self._now))))

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Returns what is otherwise than it was."""
        if moment is not moment_of_arrival(saved.position):
            return []
        return made(environment.differences(saved.mine.state.get("now") or {}, self._now))

    def adopt(self, saved: Saved) -> list[Finding]:
        """No step is left that could differ."""
        return []

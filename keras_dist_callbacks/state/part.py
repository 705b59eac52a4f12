"""What every part of a training's state has in common."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import ClassVar

from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Piece, Position, Saved, Snapshot


class Moment(enum.Enum):
    """When something is restored, in their order.

    Attributes:
        START: Before the first epoch.
        EPOCH_BEGIN: The interrupted epoch begins: before any `on_epoch_begin`.
        ENTERED: It is entered: before its first batch is asked for.
        ARRIVED: The batches of it that were trained have been dropped.
    """

    START = enum.auto()
    EPOCH_BEGIN = enum.auto()
    ENTERED = enum.auto()
    ARRIVED = enum.auto()


def moment_of_entry(position: Position) -> Moment:
    """Returns when what was saved as an epoch was entered is put back."""
    return Moment.ENTERED if position.kind == "within" else Moment.START


def moment_of_arrival(position: Position) -> Moment:
    """Returns when training has come to the place where the backup was taken."""
    return Moment.ARRIVED if position.kind == "within" else Moment.START


class Part:
    """One kind of state, with one owner.

    A part does nothing at a moment that is not its own. Before any part assigns, all have checked. Parts are captured
    in the reverse of the order in which they are restored.

    What it finds reaches the verdict in one of two ways: in the `Piece` of `capture`, if the training that runs knows
    it (it is saved, and said at each resume), or in what `restore` returns, if only a resume can know it. Findings that
    stay true when the fit is over need the part's name in `backups.verdict.LASTING`.

    Attributes:
        name: Its key in a manifest, see `backups.manifest.PARTS`.
    """

    name: ClassVar[str]

    def capture(self, position: Position) -> Piece:
        """Returns what it saves, between two steps.

        Args:
            position: Where training is.
        """
        raise NotImplementedError

    def check(self, saved: Saved) -> None:
        """Looks whether what is saved fits, as far as that can be known before the first epoch.

        It may keep what it was given for `restore`; of the training's state it assigns nothing.

        Raises:
            BackupMismatchError: It does not.
        """

    def restore(self, saved: Saved, moment: Moment) -> list[Finding]:
        """Puts back what is saved; returns what is not as it was, or may not be."""
        return []

    def adopt(self, saved: Saved) -> list[Finding]:
        """The fit is complete already: puts back what the script goes on with. What is found was lost."""
        return self.restore(saved, moment_of_arrival(saved.position))

    def continue_from(self, saved: Saved) -> None:
        """A fit of this process has ended with this backup, and its model is trained further: nothing is put back."""


def snapshot_of(parts: Iterable[Part], position: Position, earlier: Sequence[Finding]) -> Snapshot:
    """Returns a snapshot of this worker; the last part is captured first, as those before may ask it what it holds.

    Args:
        parts: All of a training, in the order in which they are restored.
        position: Where training is.
        earlier: What was found in the resumes that this run began with.
    """
    parts = list(parts)
    last_first = {part.name: part.capture(position) for part in reversed(parts)}
    pieces = {part.name: last_first[part.name] for part in parts}
    return Snapshot.of(position, {**pieces, "earlier": Piece(findings=tuple(earlier))})

"""What `callback.restored` and `restored_from` tell."""

from __future__ import annotations

from dataclasses import dataclass

from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.snapshot import Position

NOT_IN_CHECKPOINTS = "callbacks, random states and the position in the data are not restored"


@dataclass(frozen=True)
class Restored:
    """What a fit or loop was resumed from, or what `make_or_restore_model` got a model from.

    Attributes:
        path: The backup's directory, or the checkpoint; without credentials.
        epoch: Number of finished epochs, which is also the index of the epoch to continue with.
        step: Batches trained until then.
        notes: Why the continuation is not exact, one sentence each; empty if it is.
        conditions: What could not be inspected: it is exact if these hold; empty if everything was seen.
        position: Of a backup, where it was taken: also the `batch` in that epoch. None for a checkpoint.
        commit: Of a backup, its name in the directory. Empty for a checkpoint.
        is_skipped: Only weights were restored, because a later `fit()` of the script saved the backup.
    """

    path: str
    epoch: int
    step: int
    notes: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    position: Position | None = None
    commit: str = ""
    is_skipped: bool = False

    @property
    def verdict(self) -> verdict.Verdict:
        """`"exact"`, `"exact if"` or `"not exact"`."""
        return verdict.verdict_of(self.notes, self.conditions)

    @property
    def initial_epoch(self) -> int:
        """What `fit()` is to be given to continue; with `BackupAndRestore` it need not be."""
        return self.epoch

"""What `callback.restored` and `restored_from` tell."""

from __future__ import annotations

from dataclasses import dataclass

from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.backups.verdict import Verdict, Word


@dataclass(frozen=True)
class Restored:
    """What a fit or loop was resumed from, or what `make_or_restore_model` got a model from.

    Attributes:
        path: The backup's directory, or the checkpoint; without credentials.
        epoch: Number of finished epochs, which is also the index of the epoch to continue with.
        step: Batches trained until then.
        findings: Why the continuation is not exact, or on what that depends, as data: `code`, `subject`, `detail`,
            and the `message` that they make.
        position: Of a backup, where it was taken: also the `batch` in that epoch. None for a checkpoint.
        commit: Of a backup, its name in the directory. Empty for a checkpoint.
        not_finite: Of a backup, the tensors that hold NaN or infinity, as far as they were looked at.
        rolled_back_from: Of a backup that training was rolled back to, the newest one then, such as `"1-12"`.
        is_skipped: Only weights were restored, because a later `fit()` of the script saved the backup.
    """

    path: str
    epoch: int
    step: int
    findings: tuple[Finding, ...] = ()
    position: Position | None = None
    commit: str = ""
    is_skipped: bool = False
    rolled_back_from: str = ""
    not_finite: tuple[str, ...] = ()

    @property
    def verdict(self) -> Word:
        """`"exact"`, `"exact if"` or `"not exact"`."""
        return Verdict(self.findings).word

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the continuation is not exact, one sentence each; empty if it is."""
        return Verdict(self.findings).reasons

    @property
    def conditions(self) -> tuple[str, ...]:
        """What could not be inspected: it is exact if these hold; empty if everything was seen."""
        return Verdict(self.findings).conditions

    @property
    def initial_epoch(self) -> int:
        """What `fit()` is to be given to continue; with `BackupAndRestore` it need not be."""
        return self.epoch

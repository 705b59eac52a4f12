"""What a backup means for a fit: a run to resume, one that continues in this process, or one that is over already."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from keras_dist_callbacks.backups import finite
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import FitPlace, WorkerState
from keras_dist_callbacks.base.process_runs import FitsIn
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.checkpoints import files, foreign
from keras_dist_callbacks.storage.storage import Storage

WHY_OF_ANOTHER = {
    "later-model": "fit() number {0} of the interrupted process saved it, and trained a model of its own; this is "
    "number {1}, and nothing shows that it is the same one",
    "other-model": "an earlier fit() of this process has ended with it, and had another model",
    "seed": "the global seed was {0} then and is {1} now",
    "rows": "its input began with other rows",
}
"""What shows that a backup is that of another fit, and the sentence for it."""


def another_fit_message(directory: str, saved: WorkerState, why: tuple[str, ...], *, deletes: bool) -> str:
    """Returns what is raised instead of training or restoring.

    Args:
        directory: Of the backup.
        saved: The backup.
        why: What shows that it is that of another fit: a name of `WHY_OF_ANOTHER`, and what fills its sentence.
        deletes: Whether this fit deletes its backup at its end.
    """
    name, *values = why
    keeping = " (with delete_checkpoint=False it is restored when the script runs again)" if deletes else ""
    return (
        f"the backup in {directory} ({saved.position}) belongs to another fit(): "
        f"{WHY_OF_ANOTHER[name].format(*values)}. No step is run, and nothing was changed. Resume that fit() by "
        f"running it as it was; give this one a directory of its own{keeping}, or delete {directory} first if what it "
        "holds is not needed; load_backup reads its weights"
    )


def warn_of_shared_directory(directory: str, fit: FitPlace, *, deletes: bool) -> None:
    """Warns of a fit that trains from the start in the directory of an earlier one."""
    if fit.number and not fit.initial_epoch:
        warn(
            f"an earlier fit() of this process had the backup_dir {directory} too. After a restart, that fit() is not "
            "trained again if this one was interrupted; give each fit() a directory of its own"
            + (", with delete_checkpoint=False" if deletes else "")
        )


def leaves_no_step(saved: WorkerState, epochs: int) -> bool:
    """Whether a backup leaves a fit of so many epochs nothing to do: its run has ended, or is further already."""
    position = saved.position
    if position.kind == "end" and (position.epoch >= epochs or saved.state["progress/stop_training"]):
        return True
    return position.epoch > epochs or (position.kind == "within" and position.epoch >= epochs)


def has_ended(saved: WorkerState, epochs: int) -> bool:
    """Returns whether a backup is the end of a training of so many epochs, or of one that stopped before."""
    return leaves_no_step(saved, epochs) and saved.position.kind == "end" and saved.position.epoch <= epochs


def finished_message(saved: WorkerState, epochs: int, *, deletes: bool) -> str:
    """Returns what is printed of a fit that runs no step."""
    position = saved.position
    if saved.state["progress/stop_training"] and position.epoch < epochs:
        why = "the run had stopped early"
    else:
        why = "the run is finished" if has_ended(saved, epochs) else f"asked for {epochs}"
    what = "it is deleted at the end of fit(), as delete_checkpoint=True asks" if deletes else "it is kept"
    return f"No step is run: {why}, and the backup is at {position}; {what}"


def diverged_message(saved: WorkerState, directory: str) -> str:
    """Returns what is raised instead of taking over the end of a training that has diverged."""
    names = finite.in_words(saved.info["not_finite"])
    return (
        f"the training in {directory} has ended at {saved.position} with values that are not finite ({names}). No step "
        f"is run, and nothing was changed. `kdc ls {directory}` shows the backups that there are, and "
        f"`kdc rollback {directory} --to ...` lets training continue from one of them. In another backup_dir it begins "
        "again"
    )


def of_finished(runs: FitsIn, saved: WorkerState, changes: Collection[Finding]) -> list[Finding]:
    """Why a fit that runs no step may not be what the user wants; nothing if it looks like a job that was run again."""
    detail = (runs.directory, str(saved.position))
    if runs.has_trained:
        stopped = saved.state["progress/stop_training"]
        return [Finding("ran-no-step-stopped" if stopped else "ran-no-step", detail=detail)]
    return [Finding("of-another-training", detail=detail), *changes] if changes else []


def warn_of_foreign_backup(storage: Storage, origin: Any) -> None:
    """Warns of another tool's backup in a directory without one of ours.

    Args:
        storage: The directory.
        origin: The checkpoint that the model was made from; if there is one, the user has chosen.
    """
    found = foreign.backup_among(storage, files.find(storage).foreign) if origin is None else None
    if found is None:
        return
    (backup, writer), place = found, storage.display()
    start = f"initial_epoch={backup.epoch}" if backup.epoch else "the initial_epoch that it had reached"
    warn(
        f"{place} holds {backup.name}, which {writer} wrote, and no backup of this package. It is not used: "
        f"training starts with the model as it is. To start from it, use make_or_restore_model(build_fn, {place!r}, "
        f"adopt=True) and {start}"
    )

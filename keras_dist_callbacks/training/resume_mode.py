"""What a backup means for a fit: a run to resume, one that continues in this process, or one that is over already."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.snapshot import JSON, WorkerState
from keras_dist_callbacks.checkpoints import foreign
from keras_dist_callbacks.process import Shared, shared
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.terminal import warn

FIT = "fit"
"""The topic with a fit's arguments, and how many fits of its process had ended in the directory before it."""

_ADVICE = "give each run a directory of its own, or delete the directory"
_RESULTS_NOT_USED = "nothing depends on the results of the earlier fit(), which was skipped"
_NOT_SAVED_BY_FINISHED = "nothing depends on what the earlier fit(), which is finished, could not save ({})"
_LATER = "no code after a fit() that ran no step depends on the model, which is at {} already"
_MORE = ", or ask for more epochs"


@dataclass(frozen=True)
class _Ended:
    """How the last fit in a directory ended in this process."""

    generation: int
    model: Callable[[], Any]
    source: Callable[[], Any]


@dataclass
class Runs(Shared):
    """Runs of this process.

    Attributes:
        ended: By directory, how the last fit in it ended.
        trained: Directories in which a fit has trained an epoch.
        fits: By directory, how many fits have ended.
        numbers: Distinguish the messages of one run from another's.
        conditions: On what the results of later fits depend, because an earlier one was skipped or is finished.
    """

    ended: dict[str, _Ended] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    fits: Counter[str] = field(default_factory=Counter)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    conditions: list[str] = field(default_factory=list)


def next_name(kind: str) -> str:
    """Returns a name for a run, the same on every worker."""
    return f"{kind}{next(shared(Runs).numbers)}"


def note_trained(directory: str) -> None:
    """A fit of this process has trained an epoch in a directory."""
    shared(Runs).trained.add(directory)


def describe_fit(directory: str, fit: RunningFit) -> dict[str, JSON]:
    """Returns what distinguishes one fit of a process from another in the same directory."""
    return {
        "number": shared(Runs).fits[directory],
        "epochs": int(fit.epochs),
        "initial_epoch": fit.initial_epoch,
    }


def note_fit_end(directory: str) -> None:
    """A fit of this process has ended without an exception."""
    shared(Runs).fits[directory] += 1


def is_of_later_fit(saved: WorkerState, fit: Mapping[str, JSON]) -> bool:
    """Returns whether a backup was saved by a fit that the script comes to only after this one.

    Args:
        saved: The backup.
        fit: Describes this fit.
    """
    before = saved.state.get(FIT, fit)
    # A script that computes where to begin comes at once to the fit that was interrupted.
    is_the_same = before["initial_epoch"] > 0 and {**before, "number": fit["number"]} == fit
    return bool(before["number"] > fit["number"]) and not is_the_same


def later_fit_reason(saved: WorkerState, fit: Mapping[str, JSON]) -> str:
    """Returns why a fit that was skipped is not exact."""
    return (
        f"fit() number {saved.state[FIT]['number'] + 1} of the interrupted process saved this backup, and this is "
        f"number {fit['number'] + 1} with the same backup_dir: nothing was restored, no step is run, and the later "
        "fit() resumes; give each fit() a directory of its own, with delete_checkpoint=False"
    )


def note_skipped() -> None:
    """A fit of this process was skipped, so its History is empty and its model is as the script made it."""
    _add_condition(_RESULTS_NOT_USED)


def note_finished(saved: WorkerState, *, has_ended: bool) -> list[str]:
    """A fit of this process was finished before: what its backup could not save is not as it was after it.

    Args:
        saved: The backup.
        has_ended: Whether it is the end of this fit, and not a later step.

    Returns:
        On what this fit itself depends.
    """
    later = [] if has_ended else [_LATER.format(saved.position)]
    for condition in later:
        _add_condition(condition)
    lost = [*(saved.state.get(verdict.LOST) or ()), *(saved.state.get(verdict.NOT_SAVED) or ())]
    unseen = [*(saved.state.get(verdict.CONDITIONS) or ()), *(saved.state.get(verdict.EARLIER_RESUMES) or ())]
    for what in [*lost, *unseen]:
        _add_condition(_NOT_SAVED_BY_FINISHED.format(what))
    return later


def _add_condition(condition: str) -> None:
    known = shared(Runs).conditions
    if condition not in known:
        known.append(condition)


def conditions_of_earlier_fits() -> list[str]:
    """On what a fit depends that resumes after another one was skipped, or was finished before."""
    return list(shared(Runs).conditions)


def warn_of_shared_directory(directory: str, fit: Mapping[str, JSON]) -> None:
    """Warns of a fit that trains from the start in the directory of an earlier one."""
    if fit["number"] and not fit["initial_epoch"]:
        warn(
            f"an earlier fit() of this process had the backup_dir {directory} too. After a restart, that fit() runs no "
            "step if this one was interrupted; give each fit() a directory of its own, with delete_checkpoint=False"
        )


def note_end(directory: str, generation: int, model: Any, source: Any) -> None:
    """A fit of this process has ended, and its last backup is kept."""
    shared(Runs).ended[directory] = _Ended(generation, weakref.ref(model), _reference(source))


def is_finished(saved: WorkerState, epochs: int) -> bool:
    """Whether a backup leaves a fit of so many epochs nothing to do: its run has ended, or is further already."""
    position = saved.position
    if position.kind == "end" and (position.epoch >= epochs or saved.state["stop_training"]):
        return True
    return position.epoch > epochs or (position.kind == "within" and position.epoch >= epochs)


def has_ended(saved: WorkerState, epochs: int) -> bool:
    """Returns whether a backup is the end of a training of so many epochs, or of one that stopped before."""
    return is_finished(saved, epochs) and saved.position.kind == "end" and saved.position.epoch <= epochs


def continues_in_process(directory: str, generation: int, saved: WorkerState, model: Any) -> bool:
    """Returns whether a fit continues from where one of this process ended, with the same model object.

    Then everything is where it was left, or where the user has put it since: nothing is to be restored.
    """
    ended = shared(Runs).ended.get(directory)
    return (
        ended is not None and saved.position.kind == "end" and ended.generation == generation and ended.model() is model
    )


def same_input(directory: str, source: Any) -> bool:
    """Returns whether the last fit in a directory was given the same input object, whose next pass is another one."""
    return shared(Runs).ended[directory].source() is source


def _reference(source: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(source)
    except TypeError:  # lists and the like, whose passes are all alike
        return lambda: None


def finished_message(saved: WorkerState, epochs: int, *, deletes: bool) -> str:
    """Returns what is printed of a fit that runs no step."""
    position = saved.position
    if saved.state["stop_training"] and position.epoch < epochs:
        why = "the run had stopped early"
    else:
        why = "the run is finished" if has_ended(saved, epochs) else f"asked for {epochs}"
    what = "it is deleted at the end of fit(), as delete_checkpoint=True asks" if deletes else "it is kept"
    return f"No step is run: {why}, and the backup is at {position}; {what}"


def finished_warning(directory: str, saved: WorkerState, changes: Collection[str]) -> str | None:
    """Why a fit that runs no step may not be what the user wants; None if it looks like a job that was run again."""
    advice = _ADVICE if saved.state["stop_training"] else _ADVICE + _MORE
    if directory in shared(Runs).trained:
        return (
            f"fit() runs no step: an earlier fit() of this process has left {directory} at {saved.position}; {advice}"
        )
    if changes:
        return (
            f"fit() runs no step: {directory} is at {saved.position}, and this backup belongs to another training: "
            f"{'; '.join(changes)}; delete it or use another directory"
        )
    return None


def warn_of_foreign_backup(storage: Storage, origin: Any) -> None:
    """Warns of another tool's backup in a directory without one of ours.

    Args:
        storage: The directory.
        origin: The checkpoint that the model was made from; if there is one, the user has chosen.
    """
    found = foreign.find_backup(storage) if origin is None else None
    if found is None:
        return
    (backup, writer), place = found, storage.display()
    start = f"initial_epoch={backup.epoch}" if backup.epoch else "the initial_epoch that it had reached"
    warn(
        f"{place} holds {backup.name}, which {writer} wrote, and no backup of this package. It is not used: "
        f"training starts with the model as it is. To start from it, use make_or_restore_model(build_fn, {place!r}, "
        f"adopt=True) and {start}"
    )

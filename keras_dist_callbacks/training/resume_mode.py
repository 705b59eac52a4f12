"""What a backup means for a fit: a run to resume, one that continues in this process, or one that is over already."""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.snapshot import JSON, WorkerState
from keras_dist_callbacks.checkpoints import foreign
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.inputs import order
from keras_dist_callbacks.process import Shared, shared
from keras_dist_callbacks.storage.storage import Storage
from keras_dist_callbacks.terminal import warn

FIT = "fit"
"""The topic with a fit's arguments and its place in the script.

`number`: how many fits had ended in the directory before it. `first`: the number of the first of those before it that
trained this model, one after the other. `repeats`: how many of all before it were given the same.
"""

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
        last: By directory, the model of the last one, and the number of the first that trained it.
        given: By directory, what each of them was given.
        numbers: Distinguish the messages of one run from another's.
        conditions: On what the results of later fits depend, because an earlier one was skipped or is finished.
        seeds: By directory, the seed of orders that no global seed fixes.
    """

    ended: dict[str, _Ended] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    fits: Counter[str] = field(default_factory=Counter)
    last: dict[str, tuple[Callable[[], Any], int]] = field(default_factory=dict)
    given: dict[str, Counter[str]] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    conditions: list[str] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)


def agree_on_seed(directory: str, saved: WorkerState | None, cluster: Cluster, *, is_needed: bool) -> int | None:
    """Returns the seed of all orders that a global seed does not fix, the same on every worker: drawn once, then kept.

    Args:
        directory: The backup directory; all its fits share the seed.
        saved: The backup, if there is one.
        cluster: The workers.
        is_needed: Whether the input of this worker has such an order.
    """
    seeds, own = shared(Runs).seeds, None
    if is_needed:
        known = [order.seed_of(saved), seeds.get(directory)]
        own = next((seed for seed in known if seed is not None), None)
        own = secrets.randbits(63) if own is None else own
    proposed = cluster.gather(own, "the seed of orders", kind=int | None)
    agreed = next((seed for seed in proposed if seed is not None), None)
    if agreed is not None:
        seeds[directory] = agreed
    return agreed


def next_name(kind: str) -> str:
    """Returns a name for a run, the same on every worker."""
    return f"{kind}{next(shared(Runs).numbers)}"


def note_trained(directory: str) -> None:
    """A fit of this process has trained an epoch in a directory."""
    shared(Runs).trained.add(directory)


def describe_fit(directory: str, fit: RunningFit) -> dict[str, JSON]:
    """Returns what distinguishes one fit of a process from another in the same directory."""
    number = shared(Runs).fits[directory]
    model, first = shared(Runs).last.get(directory, (lambda: None, number))
    return {
        "number": number,
        "first": first if model() is fit.model else number,
        "epochs": int(fit.epochs),
        "initial_epoch": fit.initial_epoch,
    }


def note_given(directory: str, fit: dict[str, JSON], given: str) -> None:
    """What a fit was given is known: its description says whether it is the first of its kind."""
    fit["repeats"] = shared(Runs).given.get(directory, Counter())[_key(fit, given)]


def note_fit_end(directory: str, fit: Mapping[str, JSON], given: str, model: Any) -> None:
    """A fit of this process has ended without an exception."""
    runs = shared(Runs)
    runs.given.setdefault(directory, Counter())[_key(fit, given)] += 1
    runs.fits[directory] = fit["number"] + 1
    runs.last[directory] = weakref.ref(model), fit["first"]


def _key(fit: Mapping[str, JSON], given: str) -> str:
    return f"{given} {fit['initial_epoch']} {fit['epochs']}"


def find_place(saved: WorkerState, fit: dict[str, JSON], *, is_same: bool) -> None:
    """Finds out which fit of the script this one is, if the script skips those that are finished.

    Args:
        saved: The backup.
        fit: Describes this fit; its number becomes that in the interrupted process.
        is_same: Whether the fit that saved the backup was given the same.
    """
    before = saved.state.get(FIT, fit)
    asks_the_same = all(before[name] == fit[name] for name in ("epochs", "initial_epoch"))
    computes_first_epoch = asks_the_same and before["initial_epoch"] > 0
    is_the_only_one = asks_the_same and is_same and not before.get("repeats", before["number"])
    if computes_first_epoch or is_the_only_one:
        fit.update(number=before["number"], first=_first(before))


def continue_place(saved: WorkerState, fit: dict[str, JSON]) -> None:
    """A fit continues what another one has trained, maybe with a model that is built again for each."""
    fit["first"] = min(fit["first"], _first(saved.state.get(FIT, fit)))


def _first(before: Mapping[str, JSON]) -> int:
    return int(before.get("first", before["number"]))


def is_of_later_fit(saved: WorkerState, fit: Mapping[str, JSON]) -> bool:
    """Returns whether a backup was saved by a fit that the script comes to only after this one.

    Args:
        saved: The backup.
        fit: Describes this fit.
    """
    return bool(saved.state.get(FIT, fit)["number"] > fit["number"])


def why_of_another_fit(
    saved: WorkerState,
    fit: Mapping[str, JSON],
    seed: JSON,
    *,
    other_rows: Callable[[], bool],
    left_by_other_model: bool,
) -> str | None:
    """Returns why a backup cannot serve this fit, which is another one than that which saved it; None if it can.

    Layers are not compared here: variables that do not fit are an error wherever they are assigned.

    Args:
        saved: The backup.
        fit: Describes this fit.
        seed: The global seed now.
        other_rows: Whether the input begins with other rows.
        left_by_other_model: Whether a fit of this process with another model has ended with it, and this fit has
            nothing to add.
    """
    before = saved.state.get(FIT, fit)
    if fit["number"] < _first(before):
        return (
            f"fit() number {before['number'] + 1} of the interrupted process saved it, and trained a model of its own; "
            f"this is number {fit['number'] + 1}, and nothing shows that it is the same one"
        )
    if left_by_other_model:
        return "an earlier fit() of this process has ended with it, and had another model"
    is_first_of_model = fit["number"] == fit["first"] or is_finished(saved, fit["epochs"])
    if is_of_later_fit(saved, fit) or before["number"] != _first(before) or not is_first_of_model:
        return None  # in a row of fits of one model, the number decides
    was = saved.info.get("seed")
    if None not in (was, seed) and was != seed:
        return f"the global seed was {was} then and is {seed} now"
    return "its input began with other rows" if other_rows() else None


def another_fit_message(directory: str, saved: WorkerState, why: str) -> str:
    """Returns what is raised instead of training or restoring."""
    return (
        f"the backup in {directory} ({saved.position}) belongs to another fit(): {why}. No step is run, and "
        "nothing was changed. Resume that fit() by running it as it was; give this one a directory of its own (with "
        f"delete_checkpoint=False it is restored when the script runs again), or delete {directory} first if what it "
        "holds is not needed; load_backup reads its weights"
    )


def later_fit_reason(saved: WorkerState, fit: Mapping[str, JSON]) -> str:
    """Returns why a fit that was skipped is not exact."""
    return (
        f"fit() number {saved.state[FIT]['number'] + 1} of the interrupted process saved this backup, and this is "
        f"number {fit['number'] + 1} with the same backup_dir and model: the model gets the weights of the backup, no "
        "step is run, and the later fit() resumes; give each fit() a directory of its own, with delete_checkpoint=False"
    )


def note_skipped() -> None:
    """A fit of this process was skipped, so its History is empty and its model has the weights of a later fit."""
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
            f"an earlier fit() of this process had the backup_dir {directory} too. After a restart, that fit() is not "
            "trained again if this one was interrupted; give each fit() a directory of its own, with "
            "delete_checkpoint=False"
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


def left_by_other_model(directory: str, generation: int, model: Any) -> bool:
    """Returns whether a fit of this process has ended with a backup, and had another model object."""
    ended = shared(Runs).ended.get(directory)
    return ended is not None and ended.generation == generation and ended.model() is not model


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

"""Why two runs differ, as far as their backups say, and what helps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.manifest import ENVIRONMENT
from keras_dist_callbacks.backups.snapshot import Manifest, WorkerState
from keras_dist_callbacks.cli.rehearsal.comparison import Difference

if TYPE_CHECKING:
    from keras_dist_callbacks.cli.rehearsal.rehearse import Resume

_SEED = "no seed was set: call keras.utils.set_random_seed(1) before the model and the input are made"
_DETERMINISM = "operations may add numbers in any order: call tf.config.experimental.enable_op_determinism()"
_SHORTENED = (
    "an input that is read ahead of training differs at a shortened epoch's end: --steps with all batches of an epoch "
    "shows whether that is the reason"
)
_BUG = (
    "the verdict was exact, and the weights are not the same: this is a bug in keras_dist_callbacks; please report it, "
    "with the script if possible"
)


def of_irreproducible(manifest: Manifest, difference: Difference | None) -> list[str]:
    """What may make two uninterrupted runs equal.

    Args:
        manifest: The first backup of one of them.
        difference: The first one; None where only positions differ.
    """
    state = manifest.workers[0].state
    unordered = (state.get(verdict.UNTRACKED_INPUT) or {}).get("unordered", ())
    found = [*([] if manifest.info.get("seed") is not None else [_SEED]), *unordered]
    if found:
        return found
    found = verdict.conditions(WorkerState(manifest.position, {}, state, manifest.info))
    if (state.get(ENVIRONMENT) or {}).get("deterministic") == "False":
        found.append(_DETERMINISM)
    return [*found, _SHORTENED] if not found or _is_of_input(difference) else found


def _is_of_input(difference: Difference | None) -> bool:
    return difference is not None and any(variable.kind == "input" for variable in difference.variables)


def of_inexact(resumes: Sequence[Resume], difference: Difference | None) -> list[str]:
    """What the verdicts of the resumes say about a difference.

    Args:
        resumes: Of the killed run.
        difference: The first one; None where only positions differ.
    """
    notes = _unique(note for resume in resumes for note in resume.notes)
    conditions = _unique(condition for resume in resumes for condition in resume.conditions)
    if notes:
        return [f"the verdict was not exact: {note}" for note in notes]
    if not conditions:
        return [_BUG] if any(resume.verdict == "exact" for resume in resumes) else []
    about = [condition for condition in conditions if difference is not None and _names(condition, difference)]
    if len(conditions) == 1 or about:
        return [
            f"this condition does not hold: the resume is exact if {condition}" for condition in about or conditions
        ]
    return [f"one of these conditions does not hold: the resume is exact if {condition}" for condition in conditions]


def _names(condition: str, difference: Difference) -> bool:
    """Whether a condition is about an object whose state differs."""
    owners = {state.topic.removeprefix("callback ").partition("(")[0] for state in difference.states}
    return any(owner and owner in condition for owner in owners)


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))

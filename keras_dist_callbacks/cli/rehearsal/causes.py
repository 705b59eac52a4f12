"""Why two runs differ, as far as their backups say, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.snapshot import Manifest, WorkerState
from keras_dist_callbacks.backups.verdict import Verdict, found_in
from keras_dist_callbacks.cli.rehearsal.comparison import Difference

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


@dataclass(frozen=True)
class Restart:
    """One kill and the restart after it.

    Attributes:
        killed: Where, in words.
        resumed: Where the backup was made, in words; empty if nothing was restored.
        verdict: What the restart has printed.
        notes: Why it is not exact.
        conditions: On what it depends.
        findings: Both, as data.
    """

    killed: str
    resumed: str
    verdict: str
    notes: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, killed: str, resumed: str, found: Sequence[Finding]) -> Restart:
        """Returns one that has restored a backup, and what it has found."""
        verdict = Verdict(tuple(found))
        return cls(killed, resumed, verdict.word, verdict.reasons, verdict.conditions, verdict.findings)


def of_irreproducible(manifest: Manifest, difference: Difference | None) -> list[str]:
    """What may make two uninterrupted runs equal.

    Args:
        manifest: The first backup of one of them.
        difference: The first one; None where only positions differ.
    """
    state = manifest.workers[0].state
    held = found_in(WorkerState(manifest.position, {}, state, manifest.info))
    in_each_run = findings.sentences(one for one in held if one.row.in_each_run)
    found = [*([] if manifest.info.get("seed") is not None else [_SEED]), *in_each_run]
    if found:
        return found
    found = list(Verdict(tuple(held)).conditions)
    if (state.get("environment/now") or {}).get("deterministic") == "False":
        found.append(_DETERMINISM)
    is_of_input = difference is not None and any(variable.kind == "input" for variable in difference.variables)
    return [*found, _SHORTENED] if not found or is_of_input else found


def of_inexact(resumes: Sequence[Restart], difference: Difference | None) -> list[str]:
    """What the verdicts of the resumes say about a difference.

    Args:
        resumes: Of the killed run.
        difference: The first one; None where only positions differ.
    """
    found = Verdict(tuple(dict.fromkeys(one for resume in resumes for one in resume.findings)))
    if found.lost:
        return [f"the verdict was not exact: {reason}" for reason in found.reasons]
    if not found.unknown:
        return [_BUG] if any(resume.resumed for resume in resumes) else []
    owners = {f"the {state.words}" for state in difference.states} if difference is not None else set()
    about = Verdict(tuple(one for one in found.unknown if one.subject in owners))
    if len(found.conditions) == 1 or about.conditions:
        conditions = about.conditions or found.conditions
        return [f"this condition does not hold: the resume is exact if {condition}" for condition in conditions]
    return [
        f"one of these conditions does not hold: the resume is exact if {condition}" for condition in found.conditions
    ]

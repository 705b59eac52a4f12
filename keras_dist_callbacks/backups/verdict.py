"""Why a continuation is not exact, and what would make it so: from what was saved and what runs now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from keras_dist_callbacks.backups.snapshot import JSON, LOCAL_STATE_DROPPED, Position, WorkerState
from keras_dist_callbacks.terminal import escape_controls, first_few

UNTRACKED_INPUT = "untracked_input"
"""The topic with what was found in the input: `python` code, why it is `unordered`, and what of it is `unseeded`."""

RANDOM_OPERATIONS = "random_operations"
"""The topic with operations of the train and test step that keep a random state in their kernel."""

NOT_SAVED = "not_saved"
"""The topic with the names of variables that a backup does not hold."""

CONDITIONS = "conditions"
"""The topic with conditions under which a continuation is exact."""

EARLIER_RESUMES = "earlier_resumes"
"""The topic with conditions of the resumes before, and what of them was not exact, each to be read after "exact if"."""

LOST = "lost_state"
"""The topic with what the user's code holds and a backup does not, a sentence each."""

CALLBACKS_NOT_CALLED = "callbacks_not_called"
"""The topic with callbacks that an exception kept from hearing of the last batch."""

USER_STATE = "user"
"""The topic that a loop's backup has and a fit's has not: the user's own state."""

Verdict = Literal["exact", "exact if", "not exact"]
_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """One object of the user's code that is neither saved, constant, asserted to be stateless nor output-only.

    Attributes:
        kind: `"unknown"`: it cannot be inspected, so it may hold state. `"code"`: a function, of which
            the same holds. `"traced"`: it has changed since TensorFlow traced a function that may have read it.
            `"lost"`: it has changed and is not saved.
        owner: The callback, function, class or module that it belongs to.
        place: Where in it; empty for the owner's own code.
        why: What it is.
        assertion: The line by which the user asserts that it keeps no state.
    """

    kind: str
    owner: str
    place: str
    why: str
    assertion: str = ""


Why = Literal[
    "fixed", "cache", "file", "function", "numbers", "large", "distributed", "epoch", "loop", "hidden", "other"
]


VALIDATION = "validation data"
"""What the input of a validation is to users."""


class Unseeded(NamedTuple):
    """What of an input draws again after a restart, because it has no seed.

    Attributes:
        call: What users call, such as "Dataset.shuffle"; or what draws, where there is no such call.
        why: Why it was not given a seed.
        of: What the input is to users.
        arguments: What the call has between its brackets, to which a seed can be added; None if it takes none.
    """

    call: str
    why: Why
    of: str
    arguments: str | None = None


BECAUSE = " because "
"""Between the name of a PyDataset and why its batches may be others when they are read again."""
_NO_DIFFERENCE = " made no difference: "
_LOOP = (
    "your loop changes nothing but what the Checkpointer was given, and draws nothing by TensorFlow's stateful random "
    "operations{}"
)
_LOOP_SEEDED, _LOOP_UNSEEDED = " with a seed of their own", ", for which no global seed was set"

_MUST_NOT_CHANGE = (
    ("workers", "the number of workers", "resume with as many workers as before"),
    ("replicas", "the number of replicas", "resume with as many replicas as before"),
    ("strategy", "the strategy", "resume under the same strategy"),
    ("steps_per_epoch", "the batches per epoch", "use the same data and batch size"),
    ("steps_per_execution", "steps_per_execution", "compile the model as before"),
    ("keras", "the version of Keras", "resume with the version as before"),
    ("tensorflow", "the version of TensorFlow", "resume with the version as before"),
    ("seed", "the global seed", "call keras.utils.set_random_seed with the same seed"),
)
_WHY_UNSEEDED: Mapping[Why, str] = {
    "fixed": "has no seed, and other datasets of the script may share what it draws",
    "cache": "has no seed, and other datasets of the script may share the cache() after it",
    "file": "has no seed, and files of cache(FILE) or snapshot() keep its order",
    "function": "has no seed, and is called in a function",
    "numbers": "is called in a function, without a seed",
    "large": "has no seed, and the input has too many rows to be made again with one",
    "distributed": "has no seed, and the dataset was distributed before",
    "epoch": "has no seed, and EpochDataset makes it for each epoch",
    "loop": "has no seed",
    "hidden": "cannot be inspected, and may shuffle without a seed",
    "other": "has no seed",
}
_DRAWN_AGAIN = (
    "the order of the interrupted epoch is drawn again: some rows are trained twice, others not in this epoch"
)
_OTHER_ORDERS = "the epochs that follow have other orders than in an uninterrupted run"
_OTHER_SUMS = "its metrics are added up in another order than in an uninterrupted run"
_OTHER_NUMBERS = "it draws other numbers than in an uninterrupted run"
_OTHER_PARTS = "; where the script splits the dataset, its parts have other rows than before"
_LOCAL_STATE_DROPPED = "this worker's local state was too large to be saved; raise max_local_state"
_FINALIZED = (
    "the finished run may have replaced its weights at the end (averages of the optimizer, or the best weights of "
    "EarlyStopping); give fit() all epochs from the start"
)
_UNORDERED_GENERATOR = (
    "a Python generator under a strategy is read in no fixed order; use tf.data or keras.utils.PyDataset"
)


def inexact_reasons(
    saved: WorkerState,
    now: Mapping[str, JSON],
    *,
    generator: bool = False,
    continues_after_end: bool = False,
) -> list[str]:
    """Returns why training will not continue bit by bit as it would have, one sentence each with how to fix it.

    Args:
        saved: The backup.
        now: This run, described as the backup's was.
        generator: Whether the input is a plain Python generator.
        continues_after_end: Whether more epochs follow a finished run.
    """
    reasons = [_changed(saved.info, now, *row) for row in _MUST_NOT_CHANGE]
    if saved.state.get(LOCAL_STATE_DROPPED):
        reasons.append(_LOCAL_STATE_DROPPED)
    if saved.state.get(NOT_SAVED):
        reasons.append(not_saved_reason(saved.state[NOT_SAVED]))
    if saved.state.get(CALLBACKS_NOT_CALLED):
        reasons.append(_missed_hooks_reason(saved.state[CALLBACKS_NOT_CALLED]))
    reasons += saved.state.get(LOST) or ()
    if saved.state.get(RANDOM_OPERATIONS):
        reasons.append(_random_operations_reason(saved.state[RANDOM_OPERATIONS]))
    reasons += saved.state[UNTRACKED_INPUT]["unordered"]
    reasons += unseeded_reasons(saved.state[UNTRACKED_INPUT].get("unseeded", ()), saved.position)
    if continues_after_end and saved.state.get("is_finalized"):
        reasons.append(_FINALIZED)
    if now["replicas"] != 1 and generator:
        reasons.append(_UNORDERED_GENERATOR)
    return list(dict.fromkeys(escape_controls(str(reason)) for reason in reasons if reason is not None))


def conditions(saved: WorkerState) -> list[str]:
    """Conditions of an exact resume that could not be inspected, each to be read after "exact if"."""
    found = [_untracked_in_input(name) for name in saved.state[UNTRACKED_INPUT]["python"]]
    found += saved.state.get(CONDITIONS, ())
    found += saved.state.get(EARLIER_RESUMES, ())
    if USER_STATE in saved.state:
        has_seed = saved.info.get("seed") is not None
        found.append(_LOOP.format(_LOOP_SEEDED if has_seed else _LOOP_UNSEEDED))
    return list(dict.fromkeys(escape_controls(str(condition)) for condition in found))


def carried(position: Position, reasons: Iterable[str], open_conditions: Iterable[str]) -> list[str]:
    """Returns on what the resumes after this one depend because of it: on its conditions, and on what was not exact.

    Args:
        position: Where it resumed.
        reasons: Why it was not exact, one sentence each.
        open_conditions: Its conditions, those of earlier resumes included.
    """
    found = list(open_conditions)
    for reason in reasons:
        if not any(condition.endswith(_NO_DIFFERENCE + reason) for condition in found):
            found.append(f"the resume at {position}, which was not exact,{_NO_DIFFERENCE}{reason}")
    return found


def unseeded_reasons(found: Iterable[Sequence[Any]], position: Position | None = None) -> list[str]:
    """Returns why a resume is not exact where an input draws without a seed, a sentence each.

    Args:
        found: What draws, each as in `Unseeded`.
        position: That of the backup; None for any within an epoch.
    """
    is_within = position is None or position.kind == "within"
    return [_unseeded_reason(Unseeded(*unseeded), is_within) for unseeded in found]


def _unseeded_reason(found: Unseeded, is_within: bool) -> str:
    if found.why == "numbers":
        effect = _OTHER_NUMBERS
    elif found.of == VALIDATION:
        effect = _OTHER_SUMS
    else:
        effect = _DRAWN_AGAIN if is_within else _OTHER_ORDERS
    if found.why in ("fixed", "cache"):
        effect += _OTHER_PARTS
    call, advice = found.call, "call keras.utils.set_random_seed first"
    if found.arguments is not None:
        given = [found.arguments] if found.arguments else []
        call, seed = f"{found.call}({found.arguments})", "seed=epoch" if found.why == "epoch" else "seed=1"
        advice = f"write {found.call}({', '.join([*given, seed])})"
    return f"{call} of the {found.of} {_WHY_UNSEEDED[found.why]}: {effect}; {advice}"


def verdict_of(reasons: Collection[str], open_conditions: Collection[str]) -> Verdict:
    """`"exact"`, `"exact if"` or `"not exact"`."""
    return "not exact" if reasons else "exact if" if open_conditions else "exact"


def answer(reasons: Collection[str], open_conditions: Collection[str]) -> str:
    """Returns the verdict as it is printed, with its conditions."""
    found = verdict_of(reasons, open_conditions)
    if found == "not exact":
        return f"{found} (the warning names the reason)"
    if found == "exact":
        return found
    shown = list(open_conditions)[:_SHOWN]
    more = len(open_conditions) - len(shown)
    return f"{found} {'; and if '.join(shown)}" + (f"; and {more} more (callback.restored.conditions)" if more else "")


def group(findings: Iterable[Finding]) -> tuple[list[str], list[str]]:
    """Returns what was found in the user's code, a sentence for each owner: conditions, and what is not saved."""
    owners: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        owners.setdefault((finding.kind, finding.owner), []).append(finding)
    conditions = [_condition(owner, found) for (kind, owner), found in owners.items() if kind == "unknown"]
    conditions += [_unused_code(owner, f) for (kind, owner), found in owners.items() if kind == "code" for f in found]
    conditions += [_unused_by_traces(owner, found) for (kind, owner), found in owners.items() if kind == "traced"]
    return conditions, [_lost(owner, found) for (kind, owner), found in owners.items() if kind == "lost"]


def _condition(owner: str, found: list[Finding]) -> str:
    assertion = next((finding.assertion for finding in found if finding.assertion), None)
    advice = f"; {assertion} asserts that" if assertion else ""
    if not advice and owner.startswith("the callback "):
        advice = "; give the callback get_state and set_state to save it"
    return f"{owner} keeps no state in {_places(found)}{advice}"


def _unused_code(owner: str, finding: Finding) -> str:
    function = f"{finding.place} of {owner}" if finding.place else owner
    return f"training does not depend on what {function} does: {finding.why}"


def _unused_by_traces(owner: str, found: list[Finding]) -> str:
    places = list(dict.fromkeys(finding.place or "the code" for finding in found))
    return (
        f"no function that TensorFlow traced before the change uses {_some(places)} of {owner}; "
        "keep a number that changes in a keras.Variable"
    )


def _lost(owner: str, found: list[Finding]) -> str:
    holder = "give it" if owner.startswith("the callback ") else "keep it in a callback that has"
    return f"the state of {owner} is not restored: {_places(found)}; {holder} get_state and set_state"


def _places(found: list[Finding]) -> str:
    return _some([f"{f.place or 'its code'} ({f.why})" for f in found])


def unused_random_numbers(function: str, labels: Sequence[str]) -> str:
    """Returns the condition about a traced function of which it is not known whether training depends on it."""
    return (
        f"training does not depend on the random numbers that the tf.function {function} draws by TensorFlow's "
        f"{_some(labels)}, whose state cannot be saved"
    )


def _some(labels: Sequence[str]) -> str:
    return ", ".join(first_few(labels))


def _random_operations_reason(labels: list[str]) -> str:
    return (
        f"the train or test step draws random numbers by TensorFlow's {_some(labels)}, whose "
        "state cannot be saved; use keras.random with a keras.random.SeedGenerator, or TensorFlow's stateless functions"
    )


_ADVICE = (
    "if this holds, wrap the input in kdc.advanced.stateless_input; otherwise give fit() an input with get_state and "
    "set_state, without steps_per_epoch or cache()"
)


def _untracked_in_input(name: str) -> str:
    dataset, _, doubt = name.partition(BECAUSE)
    if doubt:
        return f"{dataset} gives the same batches when an interrupted epoch is read again: {doubt} ({_ADVICE})"
    # A plain generator's thread draws while states are being put back; of parallel calls no one orders the draws; a
    # cache is filled again in a later epoch.
    is_concurrent = any(mark in name for mark in ("Python generator", "Grain", "in parallel", "before a cache"))
    random = "draws from no global random state" if is_concurrent else "shares no random state with callbacks"
    return f"{name} keeps no state of its own, reads nothing that training changes, and {random} ({_ADVICE})"


def not_saved_reason(names: list[str]) -> str:
    """Returns the sentence about variables that backups do not hold."""
    return (
        f"variables that are neither in model.variables nor in model.optimizer are not saved ({_some(names)}); in "
        "layers of your own, make them with add_weight; or use Checkpointer(variables=...)"
    )


def _missed_hooks_reason(names: list[str]) -> str:
    return (
        f"an exception in a callback ended the interrupted run: {', '.join(names)} missed a hook of its last batch, or "
        "would get a hook of the next batch twice; to continue from the backup before, delete the newest file of "
        "commits/"
    )


def _changed(before: Mapping[str, JSON], now: Mapping[str, JSON], key: str, what: str, advice: str) -> str | None:
    if before.get(key) == now.get(key) or before.get(key) is None:
        return None
    return f"{what} changed from {before[key]} to {now.get(key)}; {advice}"

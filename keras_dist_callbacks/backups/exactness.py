"""Why a continuation is not exact, and what would make it so: from what was saved and what runs now."""

from __future__ import annotations

from collections.abc import Mapping

from keras_dist_callbacks.backups.snapshot import JSON, LOCAL_STATE_DROPPED, WorkerState

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
_UNSEEDED = "no seed was set, so that shuffled orders and the like differ; call keras.utils.set_random_seed first"
_LOCAL_STATE_DROPPED = "this worker's local state was too large to be saved; raise max_local_state"
_NOT_REWINDABLE = (
    "this dataset object was iterated in this process before and shuffles anew each time, so its earlier "
    "orders are gone; build the dataset again before fit(), or use EpochDataset"
)
_FINALIZED = (
    "the finished run had replaced its weights at the end (averages of the optimizer, or the best weights of "
    "EarlyStopping); give fit() all epochs from the start"
)
_DRAWS_AHEAD = (
    "the input draws from a tf.random.Generator, which has run ahead of training; use stateless random "
    "functions, or a seed of the operation's own"
)
_UNORDERED_GENERATOR = (
    "a Python generator under a strategy is read in no fixed order; use tf.data or keras.utils.PyDataset"
)


def inexact_reasons(
    saved: WorkerState,
    now: Mapping[str, JSON],
    *,
    rewindable: bool = True,
    generator: bool = False,
    draws_ahead: bool = False,
    goes_on_after_end: bool = False,
) -> list[str]:
    """Why training will not go on bit for bit as it would have, one sentence each with its cure.

    Args:
        saved: The backup.
        now: This run, described as the backup's was.
        rewindable: Whether the input can be put where it was.
        generator: Whether the input is a plain Python generator.
        draws_ahead: Whether the input draws from a `tf.random.Generator`.
        goes_on_after_end: Whether more epochs follow a finished run.
    """
    reasons = [_changed(saved.info, now, *row) for row in _MUST_NOT_CHANGE]
    if now["seed"] is None:
        reasons.append(_UNSEEDED)
    if saved.state.get(LOCAL_STATE_DROPPED):
        reasons.append(_LOCAL_STATE_DROPPED)
    if saved.state.get("not_saved"):
        reasons.append(not_saved_reason(saved.state["not_saved"]))
    if not rewindable and saved.position.step:
        reasons.append(_NOT_REWINDABLE)
    if goes_on_after_end and saved.state.get("finalized"):
        reasons.append(_FINALIZED)
    if draws_ahead:
        reasons.append(_DRAWS_AHEAD)
    if now["replicas"] != 1 and generator:
        reasons.append(_UNORDERED_GENERATOR)
    return [reason for reason in reasons if reason is not None]


def not_saved_reason(names: list[str]) -> str:
    """The sentence about variables that backups do not hold."""
    return (
        f"variables that are neither in model.variables nor in model.optimizer are not saved ({', '.join(names[:3])}"
        f"{', ...' if len(names) > 3 else ''}); make them with add_weight, or use Checkpointer(variables=...)"
    )


def _changed(before: Mapping[str, JSON], now: Mapping[str, JSON], key: str, what: str, cure: str) -> str | None:
    if before.get(key) == now.get(key) or before.get(key) is None:
        return None
    return f"{what} changed from {before[key]} to {now.get(key)}; {cure}"

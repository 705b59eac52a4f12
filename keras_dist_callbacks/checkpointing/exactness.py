"""Whether a continuation is exact, and if not, why and what would make it so."""

from __future__ import annotations

from collections.abc import Mapping

from keras_dist_callbacks._compat.fit import RunningFit
from keras_dist_callbacks.checkpointing.snapshot import JSON, WorkerState


def inexact_reasons(saved: WorkerState, now: Mapping[str, JSON], fit: RunningFit, rewindable: bool) -> list[str]:
    """Why training will not go on bit for bit as it would have, one sentence each with its cure.

    Args:
        saved: The backup.
        now: This run, described as the backup's was.
        fit: The running fit.
        rewindable: Whether the input can be put where it was.
    """
    reasons = [
        _changed(saved.info, now, "workers", "the number of workers", "resume with as many workers as before"),
        _changed(saved.info, now, "replicas", "the number of replicas", "resume with as many replicas as before"),
        _changed(saved.info, now, "strategy", "the strategy", "resume under the same strategy"),
        _changed(saved.info, now, "steps_per_epoch", "the batches per epoch", "use the same data and batch size"),
        _changed(saved.info, now, "seed", "the global seed", "call keras.utils.set_random_seed with the same seed"),
    ]
    if now["seed"] is None:
        reasons.append(
            "no seed was set, so that shuffled orders and the like differ; call keras.utils.set_random_seed first"
        )
    if saved.state.get("local_state_dropped"):
        reasons.append("this worker's local state was too large to be saved; raise max_local_state")
    if not rewindable and saved.position.step:
        reasons.append(
            "this dataset object was iterated in this process before and shuffles anew each time, so its earlier "
            "orders are gone; build the dataset again before fit(), or use EpochDataset"
        )
    if now["replicas"] != 1 and fit.is_python_generator:
        reasons.append(
            "a Python generator under a strategy is read in no fixed order; use tf.data or keras.utils.PyDataset"
        )
    return [reason for reason in reasons if reason is not None]


def _changed(before: Mapping[str, JSON], now: Mapping[str, JSON], key: str, what: str, cure: str) -> str | None:
    if before.get(key) == now[key] or before.get(key) is None:
        return None
    return f"{what} changed from {before[key]} to {now[key]}; {cure}"

"""Whether a continuation is exact, and if not, why and what would make it so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_dist_callbacks._compat import rng
from keras_dist_callbacks.backups.snapshot import JSON, LOCAL_STATE_DROPPED, WorkerState


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
    reasons = [
        _changed(saved.info, now, "workers", "the number of workers", "resume with as many workers as before"),
        _changed(saved.info, now, "replicas", "the number of replicas", "resume with as many replicas as before"),
        _changed(saved.info, now, "strategy", "the strategy", "resume under the same strategy"),
        _changed(saved.info, now, "steps_per_epoch", "the batches per epoch", "use the same data and batch size"),
        _changed(saved.info, now, "steps_per_execution", "steps_per_execution", "compile the model as before"),
        _changed(saved.info, now, "keras", "the version of Keras", "resume with the version as before"),
        _changed(saved.info, now, "tensorflow", "the version of TensorFlow", "resume with the version as before"),
        _changed(saved.info, now, "seed", "the global seed", "call keras.utils.set_random_seed with the same seed"),
    ]
    if now["seed"] is None:
        reasons.append(
            "no seed was set, so that shuffled orders and the like differ; call keras.utils.set_random_seed first"
        )
    if saved.state.get(LOCAL_STATE_DROPPED):
        reasons.append("this worker's local state was too large to be saved; raise max_local_state")
    if saved.state.get("not_saved"):
        reasons.append(not_saved_reason(saved.state["not_saved"]))
    if not rewindable and saved.position.step:
        reasons.append(
            "this dataset object was iterated in this process before and shuffles anew each time, so its earlier "
            "orders are gone; build the dataset again before fit(), or use EpochDataset"
        )
    if goes_on_after_end and saved.state.get("finalized"):
        reasons.append(
            "the finished run had replaced its weights at the end (averages of the optimizer, or the best weights of "
            "EarlyStopping); give fit() all epochs from the start"
        )
    if draws_ahead:
        reasons.append(
            "the input draws from a tf.random.Generator, which has run ahead of training; use stateless random "
            "functions, or a seed of the operation's own"
        )
    if now["replicas"] != 1 and generator:
        reasons.append(
            "a Python generator under a strategy is read in no fixed order; use tf.data or keras.utils.PyDataset"
        )
    return [reason for reason in reasons if reason is not None]


def not_saved_reason(names: list[str]) -> str:
    """The sentence about variables that backups do not hold."""
    return (
        f"variables that are neither in model.variables nor in model.optimizer are not saved ({', '.join(names[:3])}"
        f"{', ...' if len(names) > 3 else ''}); make them with add_weight, or use Checkpointer(variables=...)"
    )


def describe(strategy: Any, workers: int) -> dict[str, JSON]:
    """What must not change for a continuation to be exact, and the versions in use."""
    import keras
    import tensorflow as tf

    return {
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "strategy": type(strategy).__name__,
        "replicas": int(strategy.num_replicas_in_sync),
        "workers": workers,
        "seed": rng.global_seed(),
    }


def _changed(before: Mapping[str, JSON], now: Mapping[str, JSON], key: str, what: str, cure: str) -> str | None:
    if before.get(key) == now.get(key) or before.get(key) is None:
        return None
    return f"{what} changed from {before[key]} to {now.get(key)}; {cure}"

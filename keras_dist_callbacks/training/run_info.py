"""What runs now, described as backups describe what they were taken from."""

from __future__ import annotations

from typing import Any

from keras_dist_callbacks._compat import rng
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups.snapshot import JSON


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


def describe_fit(fit: RunningFit, workers: int) -> dict[str, JSON]:
    """What `describe` tells, and what else a running fit() must not change."""
    return {
        **describe(fit.model.distribute_strategy, workers),
        "model": str(fit.model.name),
        "steps_per_execution": fit.steps_per_execution,
        "steps_per_epoch": fit.steps_per_epoch or fit.num_batches,
    }


def reproducibility_advice(replicas: int) -> list[str]:
    """What would make two undisturbed runs of this program equal, a sentence each; empty if they are."""
    advice = []
    if rng.global_seed() is None:
        advice.append(
            "No seed was set, so that two runs differ, and a resumed one from an undisturbed one: call "
            "keras.utils.set_random_seed first."
        )
    if replicas > 1 and not rng.is_deterministic():
        advice.append(
            f"With {replicas} replicas, two undisturbed runs are equal to the last bit only after "
            "tf.config.experimental.enable_op_determinism()."
        )
    return advice

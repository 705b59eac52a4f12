"""What runs now, described as backups describe what they were taken from."""

from __future__ import annotations

from typing import Any

from keras_dist_callbacks._compat import rng
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

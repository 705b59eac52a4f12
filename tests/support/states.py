"""A worker's state as a loop with a Checkpointer saves it, without TensorFlow."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np

TOKEN, HASH = "a" * 12, "b" * 32  # such as names of ours have


@functools.cache
def random_states(seed: int = 0) -> dict[str, Any]:
    """The global random states of a process in which nothing was drawn since the seeds were set."""
    python = random.Random(seed).getstate()  # noqa: S311 - nothing to do with security
    name, key, place, has_gauss, cached = np.random.RandomState(seed).get_state(legacy=True)
    return {
        "python": [python[0], list(python[1]), python[2]],
        "numpy": [str(name), [int(word) for word in key], int(place), int(has_gauss), float(cached)],
        "tensorflow": {"seed": None},
    }


def loop_state(**user: Any) -> dict[str, Any]:
    """Every topic that there must be."""
    return {
        "rng": random_states(),
        "rng_at_epoch": random_states(),
        "user": user,
        "metric_variables": [],
        "findings:input": [],
    }


def fit_state() -> dict[str, Any]:
    """The same of a fit(), in which everything was inspected and nothing was found."""
    state = loop_state()
    del state["user"]
    counts = {"num_batches": 10, "first_epoch": 0, "num_validations": 0, "is_finalized": False, "stop_training": False}
    nothing: dict[str, Any] = {"input_variables": [], "untracked_variables": []}
    return {**state, **counts, **nothing, "logs": {}}

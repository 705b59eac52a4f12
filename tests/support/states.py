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
        "random/now": random_states(),
        "random_at_epoch/entered": random_states(),
        "loop/user": user,
        "loop/findings": [],
        "variables/metrics": [],
        "input/findings": [],
    }


def fit_state() -> dict[str, Any]:
    """The same of a fit(), in which everything was inspected and nothing was found."""
    state = loop_state()
    del state["loop/user"], state["loop/findings"]
    of_input = {"input/num_batches": 10, "input/first_epoch": 0, "input/num_validations": 0}
    fit = {"progress/fit": {"number": 0, "first": 0, "epochs": 5, "initial_epoch": 0, "repeats": 0}}
    progress = {**fit, "progress/is_finalized": False, "progress/stop_training": False, "progress/logs": {}}
    nothing: dict[str, Any] = {"input/variables": [], "step/variables": []}
    return {**state, **of_input, **progress, **nothing}

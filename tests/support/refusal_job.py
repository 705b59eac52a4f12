"""Interrupts fits under a strategy and resumes with other models; prints the refusals, and how exact the others are."""

from __future__ import annotations

import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dist_callbacks.errors import BackupMismatchError
from tests.support import tiny
from tests.support.refused_models import CHANGES, Unfreeze, compiled
from tests.support.workload import make_strategy


def made(strategy: Any, **arguments: bool) -> keras.Model:
    with strategy.scope():
        return compiled(**arguments)


def stopped(strategy: Any, directory: str, stop: tuple[int, int], *others: Any, **arguments: Any) -> None:
    try:
        tiny.fit(made(strategy, **arguments), directory, [*others, tiny.StopAt(*stop)])
    except tiny.Stop:
        return
    raise AssertionError("it was not interrupted")


def refusal(strategy: Any, directory: str, **arguments: bool) -> str:
    steps = tiny.CountSteps()
    try:
        tiny.fit(made(strategy, **arguments), directory, [steps])
    except BackupMismatchError as error:
        assert steps.trained == []
        return str(error)
    return "it was taken"


def resumes_exactly(strategy: Any, directory: str, stop: tuple[int, int]) -> bool:
    stopped(strategy, directory, stop, Unfreeze(1), trainable=False)
    reference, model = (made(strategy, trainable=False) for _ in range(2))
    tiny.fit(reference, None, [Unfreeze(1)])
    tiny.fit(model, directory, [Unfreeze(1)], options={"strict": True})
    pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
    return all(np.array_equal(ours, theirs) for ours, theirs in pairs)


if __name__ == "__main__":
    kind, directory, result = sys.argv[1:4]
    tf.config.experimental.enable_op_determinism()  # replicas are not certain to resume exactly without it
    strategy = make_strategy(kind)
    refusals = []
    for number, (before, now, _) in enumerate(CHANGES):
        stopped(strategy, f"{directory}/{number}", (1, 2), **before)
        refusals.append(refusal(strategy, f"{directory}/{number}", **now))
    # Under Mirrored, Keras 3.15 alone cannot train on what was compiled again within fit(): "You must feed a value for"
    stops = () if kind == "mirrored" else ((0, 3), (1, 2), (2, 2))
    exact = [resumes_exactly(strategy, f"{directory}/{stop}", stop) for stop in stops]
    with open(f"{result}{strategy.cluster_resolver.task_id if kind == 'multi_worker' else 0}", "w") as file:
        json.dump({"refusals": refusals, "exact": exact}, file)

"""Interrupts fits under a strategy and resumes with other models; prints what is said of them."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import BackupMismatchError
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


def notes_of_resume(strategy: Any, directory: str, stop: tuple[int, int]) -> list[str]:
    """Resumes a run in which a callback has compiled the model; the script's optimizer is for fewer layers."""
    stopped(strategy, directory, stop, Unfreeze(1), trainable=False)
    model, backup = made(strategy, trainable=False), kdc.BackupAndRestore(directory)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the resume is not exact")
        tiny.fit(model, None, [backup])
    assert backup.restored is not None
    assert not model.layers[0].trainable
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    return list(backup.restored.notes)


if __name__ == "__main__":
    kind, directory, result = sys.argv[1:4]
    tf.config.experimental.enable_op_determinism()  # replicas are not certain to resume exactly without it
    strategy = make_strategy(kind)
    refusals = []
    for number, (before, now, _) in enumerate(CHANGES):
        stopped(strategy, f"{directory}/{number}", (1, 2), **before)
        refusals.append(refusal(strategy, f"{directory}/{number}", **now))
    # Under Mirrored, Keras 3.15 alone cannot train on what was compiled again within fit(): "You must feed a value for"
    stops = () if kind == "mirrored" else ((1, 2), (2, 2))
    notes = [notes_of_resume(strategy, f"{directory}/{stop}", stop) for stop in stops]
    with open(f"{result}{strategy.cluster_resolver.task_id if kind == 'multi_worker' else 0}", "w") as file:
        json.dump({"refusals": refusals, "notes": notes}, file)

"""The rest of the table of arguments: `keras_dist_callbacks.testing`, and methods that take numbers."""

from __future__ import annotations

import sys
from typing import Any

import keras_dist_callbacks as kdc
from keras_dist_callbacks import testing
from tests.support.arguments_table import FACADE, FLAG, FROM_ZERO, PATH, PLACE, REFUSED, Row, all_kept, model


def _recording() -> dict[str, Any]:
    testing.record_run("junk", model(), {})
    return {"a": "junk", "b": "junk"}


def _cluster() -> dict[str, Any]:
    cluster = testing.LocalCluster([sys.executable, "-c", ""], 1, "logs")
    return {"cluster": cluster, "max_restarts": 0, "timeout": 100}


TESTING: dict[str, Row] = {
    "Attempt": Row(
        testing.Attempt,
        dict.fromkeys(
            ("run", "returncodes", "seconds"), all_kept("a record that run_until_done makes; nothing reads it")
        ),
        lambda: {"run": 0, "returncodes": (0,), "seconds": 1.0},
    ),
    "CountCalls": Row(testing.CountCalls, {"path": PATH, "kwargs": {}}, lambda: {"path": "calls"}),
    "KillAt": Row(
        testing.KillAt,
        {
            "step": PLACE,
            "epoch": PLACE,
            "batch": PLACE,
            "phase": REFUSED,
            "worker": FROM_ZERO,
            "sig": REFUSED,
            "after_commit": FLAG,
        },
    ),
    "LocalCluster": Row(
        testing.LocalCluster,
        {
            "command": REFUSED,
            "num_workers": REFUSED,
            "log_dir": PATH,
            "env": {"None": "nothing is added"},
            "chief": FLAG,
            "grace": {"zero": "the others are ended at once"},
            "preload": FLAG,
        },
        lambda: {"command": [sys.executable, "-c", ""], "num_workers": 1, "log_dir": "logs"},
    ),
    "Step": Row(
        testing.Step,
        dict.fromkeys(("pid", "epoch", "batch"), all_kept("a record that read_steps makes; nothing reads it")),
        lambda: {"pid": 1, "epoch": 0, "batch": 0},
    ),
    "StepLog": Row(testing.StepLog, {"path": PATH}),
    "assert_same_run": Row(testing.assert_same_run, {"a": PATH, "b": PATH}, _recording),
    "compare_runs": Row(testing.compare_runs, {"a": PATH, "b": PATH}, _recording),
    "count_calls": Row(testing.count_calls, {"path": PATH}),
    "read_steps": Row(testing.read_steps, {"path": PATH}),
    "record_run": Row(
        testing.record_run,
        {"path": PATH, "model": REFUSED, "history": REFUSED},
        lambda: {"path": "run", "model": model(), "history": {}},
    ),
    "run_until_done": Row(
        testing.run_until_done,
        {
            "cluster": REFUSED,
            "max_restarts": {"zero": "one attempt"},
            "timeout": REFUSED,
            "extra_args": REFUSED,
            "on_tick": {"None": "nothing is called", "a function": "it is called"},
        },
        _cluster,
    ),
}


def _loop() -> kdc.Checkpointer:
    loop = kdc.Checkpointer(
        "backup", model=model(), save_freq=False, shutdown_options=kdc.ShutdownOptions(save_before_preemption=False)
    )
    loop.restore()
    return loop


def _epochs(count: Any) -> None:
    with _loop() as loop:
        list(loop.epochs(count))


def _batches(made_for_epoch: Any) -> None:
    with _loop() as loop:
        list(loop.batches([1, 2], made_for_epoch=made_for_epoch))


def _step(batches: Any) -> None:
    with _loop() as loop:
        loop.step(batches)


def _kill(index: Any, sig: Any) -> None:
    testing.LocalCluster(["x"], 1, "logs").kill(index, sig)  # none was started


def _wait(timeout: Any) -> None:
    testing.LocalCluster(["x"], 1, "logs").wait(timeout)


METHODS: dict[str, Row] = {
    "Checkpointer.epochs": Row(_epochs, {"count": {"zero": "none"}}),
    "Checkpointer.batches": Row(_batches, {"made_for_epoch": FLAG}),
    "Checkpointer.step": Row(_step, {"batches": {"zero": "none was left of a resumed epoch"}}),
    "LocalCluster.kill": Row(_kill, {"index": REFUSED, "sig": REFUSED}, lambda: {"index": 0, "sig": 15}),
    "LocalCluster.wait": Row(_wait, {"timeout": {"zero": "what runs is killed"}}),
}
ROWS = {**FACADE, **TESTING, **METHODS}

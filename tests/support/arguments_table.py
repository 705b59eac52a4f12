"""Every argument of the public constructors and functions: which of the junk below each accepts, and as what.

What is not listed must be refused with a `ConfigError`. An argument without a row fails the test.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

import keras_dist_callbacks as kdc

Accepted = dict[str, str]


def anything(*args: Any, **options: Any) -> None:
    """A function for where none belongs."""


JUNK: dict[str, Any] = {
    "None": None,
    "bytes": b"junk",
    "a huge int": 10**400,
    "a negative number": -1,
    "zero": 0,
    "NaN": math.nan,
    "infinity": math.inf,
    "True": True,
    "a string": "junk",
    "an empty string": "",
    "a string with NUL": "a\0b",
    "a list": [1],
    "a dict": {"a": 1},
    "an object": object(),
    "a function": anything,
}

REFUSED: Accepted = {}
FLAG = {"True": "it is True or False"}
PATH = {"a string": "a relative path"}
VERBOSE = {"zero": "silent", "True": "as 1, as Keras takes it"}
OPTIONS = {"None": "no options", "a dict": "passed to the file system, whose names they are"}
RETRY = {"None": "RetryPolicy()"}
RATE = {"None": "no cap"}
ENDPOINT = {"None": "the cloud's own server"}
FROM_ZERO = {"zero": "counted from 0"}
TIMEOUTS = ("startup_timeout", "heartbeat_timeout", "peer_timeout", "timeout")
READER = {"None": "nobody asks", "a function": "it is called"}
PLACE = {"None": "any", "zero": "counted from 0"}


def all_kept(why: str) -> Accepted:
    return dict.fromkeys(JUNK, why)


SAVING: dict[str, Accepted] = {
    "backup_dir": PATH,
    "save_freq": REFUSED,
    "double_checkpoint": FLAG,
    "delete_checkpoint": FLAG,
    "max_to_keep": REFUSED,
    "keep_every": {"None": "no such rule"},
    "max_overhead": REFUSED,
    "strict": FLAG,
    "on_event": READER,
    "verbose": VERBOSE,
    "storage_options": OPTIONS,
    "write_options": {"None": "WriteOptions()"},
    "shutdown_options": {"None": "ShutdownOptions()"},
}


@dataclass(frozen=True)
class Row:
    """One public constructor or function.

    Attributes:
        call: It.
        arguments: Its arguments, with what each accepts.
        given: What the others are given; made again for each call, in an empty directory.
    """

    call: Callable[..., Any]
    arguments: dict[str, Accepted]
    given: Callable[[], dict[str, Any]] = dict


def axes() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


@functools.cache
def model() -> keras.Model:
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def _saved() -> dict[str, Any]:
    if not Path("backup").exists():
        with kdc.Checkpointer("backup", model=model(), delete_checkpoint=False) as checkpointer:
            checkpointer.restore()
    return {"backup_dir": "backup"}


def _registration() -> dict[str, Any]:
    return {"callback_class": type("Mine", (keras.callbacks.Callback,), {}), "get": anything, "set": anything}


FACADE: dict[str, Row] = {
    "BackupAndRestore": Row(
        kdc.BackupAndRestore,
        {**SAVING, "on_nonfinite": {"None": "training goes on"}, "reread_input": FLAG},
        lambda: {"backup_dir": "backup"},
    ),
    "Checkpointer": Row(
        kdc.Checkpointer,
        {
            **SAVING,
            "model": REFUSED,
            "optimizer": {"None": "there is none"},
            "metrics": REFUSED,
            "variables": REFUSED,
            "state": {"None": "an empty one", "a dict": "the user's own"},
        },
        lambda: {"backup_dir": "backup", "model": model()},
    ),
    "ChiefOnly": Row(kdc.ChiefOnly, {"callback": REFUSED}),
    "advanced.Cluster": Row(
        kdc.advanced.Cluster,
        {
            "task_type": REFUSED,
            "task_id": FROM_ZERO,
            "worker_index": {"zero": "the chief", "a negative number": "-1 is an evaluator"},
            "addresses": REFUSED,
            "patience": REFUSED,
        },
    ),
    "ClusterOptions": Row(kdc.ClusterOptions, {name: {"None": "the environment, or the default"} for name in TIMEOUTS}),
    "EpochDataset": Row(kdc.EpochDataset, {"fn": {"a function": "it is one"}}),
    "ModelCheckpoint": Row(
        kdc.ModelCheckpoint,
        {
            "filepath": REFUSED,
            "monitor": {"a string": "any name of a quantity", "a string with NUL": "any name of a quantity"},
            "verbose": VERBOSE,
            "save_best_only": FLAG,
            "save_weights_only": FLAG,
            "mode": dict.fromkeys(("a string", "a string with NUL"), "Keras warns that it takes 'auto' instead"),
            "save_freq": REFUSED,
            "initial_value_threshold": {
                "None": "no threshold",
                "a negative number": "a threshold",
                "zero": "a threshold",
                "infinity": "a threshold that all values, or none, are better than",
            },
            "max_to_keep": {"None": "keep all"},
            "keep_best": {"None": "no such rule"},
            "keep_every": {"None": "no such rule"},
            "start_from_epoch": {"zero": "from the first"},
            "storage_options": OPTIONS,
            "write_options": {"None": "WriteOptions()"},
            "write_on": REFUSED,
        },
        lambda: {"filepath": "m.weights.h5", "save_weights_only": True},
    ),
    "Preempted": Row(kdc.Preempted, {"reason": all_kept("its text: what is being raised must not fail")}),
    "PrintLR": Row(kdc.PrintLR, {"freq": REFUSED, "log_to_tensorboard": FLAG, "print_fn": READER}),
    "plot_lr": Row(
        kdc.plot_lr,
        {
            "schedule_or_callbacks": REFUSED,
            "steps": REFUSED,
            "steps_per_epoch": {"None": "the schedule says it of each step"},
            "initial": {"zero": "a rate"},
            "ax": {"None": "a new figure"},
        },
        lambda: {"schedule_or_callbacks": keras.optimizers.schedules.CosineDecay(0.1, 9), "steps": 3, "ax": axes()},
    ),
    "RetryPolicy": Row(
        kdc.RetryPolicy,
        {
            "total_seconds": {"zero": "one try alone"},
            "initial_wait": {"zero": "no pause"},
            "max_wait": {"zero": "no pause"},
            "request_seconds": REFUSED,
            "min_bytes_per_second": REFUSED,
        },
    ),
    "Rollback": Row(
        kdc.Rollback,
        {"skip_batches": {"zero": "none"}, "max_rollbacks": REFUSED, "check_every": REFUSED},
    ),
    "ShutdownOptions": Row(
        kdc.ShutdownOptions,
        {
            "save_before_preemption": FLAG,
            "grace_period": REFUSED,
            "signals": {"a list": "numbers of signals"},
            "notice": {"None": "nothing else", "a string": "a path that appears", "a function": "it is asked"},
            "time_limit": {"None": "no limit"},
            "save_on_exception": FLAG,
        },
    ),
    "SidecarEvaluator": Row(
        kdc.SidecarEvaluator,
        {
            "model": {"None": "whole models as they are in their files"},
            "data": REFUSED,
            "checkpoint_dir": PATH,
            "steps": {"None": "all batches"},
            "max_evaluations": {"None": "any number"},
            "callbacks": {"None": "none"},
            "timeout": {"None": "as long as it takes"},
            "poll_seconds": REFUSED,
            "rerun_seconds": {"zero": "not at all"},
            "verbose": VERBOSE,
            "log_dir": {"None": "no logs", **PATH},
            "export_best": {"None": "no export"},
            "monitor": {"a string": "any name of a metric", "a string with NUL": "any name of a metric"},
            "mode": REFUSED,
            "state_dir": {"None": "below log_dir, or beside the checkpoints", **PATH},
            "storage_options": OPTIONS,
            "retry": RETRY,
        },
        lambda: {"model": model(), "data": ([[0.0, 0.0]], [[0.0]]), "checkpoint_dir": "checkpoints"},
    ),
    "TensorBoard": Row(
        kdc.TensorBoard,
        {
            "log_dir": PATH,
            "histogram_freq": {"zero": "never"},
            "write_graph": FLAG,
            "write_images": FLAG,
            "write_steps_per_second": FLAG,
            "update_freq": REFUSED,
            "profile_batch": {"zero": "none"},
            "embeddings_freq": {"zero": "never"},
            "embeddings_metadata": {
                "None": "none",
                "a string": "a path",
            },
            "worker_log_dir": {"None": "a temporary one", **PATH},
            "storage_options": OPTIONS,
            "write_options": {"None": "WriteOptions()"},
            "sync_seconds": REFUSED,
            "write_on": REFUSED,
        },
    ),
    "WriteOptions": Row(
        kdc.WriteOptions,
        {
            "retry": REFUSED,
            "fsync": FLAG,
            "max_bytes_per_second": RATE,
            "max_failed_saves": {"None": "any number"},
            "when_busy": REFUSED,
            "max_local_state": {"zero": "nothing worker-local is sent"},
        },
    ),
    "aws_notice": Row(kdc.aws_notice, {"endpoint": ENDPOINT}),
    "advanced.enable_multi_worker_fit": Row(kdc.advanced.enable_multi_worker_fit, {}),
    "gce_notice": Row(kdc.gce_notice, {"endpoint": ENDPOINT}),
    "latest_checkpoint": Row(
        kdc.latest_checkpoint,
        {"checkpoint_dir": PATH, "storage_options": OPTIONS, "retry": RETRY},
        lambda: {"checkpoint_dir": "none"},
    ),
    "best_checkpoint": Row(
        kdc.best_checkpoint,
        {
            "checkpoint_dir": PATH,
            "monitor": {"a string": "any name of a quantity", "a string with NUL": "any name of a quantity"},
            "mode": REFUSED,
            "storage_options": OPTIONS,
        },
        lambda: {"checkpoint_dir": "none", "monitor": "val_loss", "mode": "min"},
    ),
    "load_backup": Row(
        kdc.load_backup,
        {
            "backup_dir": REFUSED,  # a relative path may hold none
            "model": {"None": "a dict of arrays"},
            "commit": {"None": "the newest"},
            "storage_options": OPTIONS,
            "retry": RETRY,
        },
        _saved,
    ),
    "make_or_restore_model": Row(
        kdc.make_or_restore_model,
        {
            "build_fn": {"a function": "it makes the model"},
            "checkpoint_dir": PATH,
            "storage_options": OPTIONS,
            "retry": RETRY,
            "custom_objects": {"None": "none", "a dict": "passed to Keras, which looks names up in it"},
            "compile": FLAG,
            "verbose": VERBOSE,
            "adopt": FLAG,
            "weights_only": FLAG,
        },
        lambda: {"build_fn": anything, "checkpoint_dir": "none"},
    ),
    "make_strategy": Row(
        kdc.make_strategy,
        {
            "kind": REFUSED,
            "devices": {"None": "all GPUs"},
            "communication_options": {"None": "TensorFlow's own"},
            "cluster_options": {"None": "ClusterOptions()"},
        },
    ),
    "advanced.register_callback_state": Row(
        kdc.advanced.register_callback_state,
        {
            "callback_class": REFUSED,
            "get": {"a function": "it is one"},
            "set": {"a function": "it is one"},
            "identity": REFUSED,
        },
        _registration,
    ),
    "restartable": Row(kdc.restartable, {}),
    "rollback": Row(
        kdc.rollback,
        {
            "backup_dir": REFUSED,  # a relative path may hold none
            "to": REFUSED,
            "before_step": {"None": "`to` says where"},
            "before_epoch": {"None": "`to` says where"},
            "undo": REFUSED,  # beside `to`
            "dry_run": FLAG,
            "force": FLAG,
            "checkpoints": {"None": "they stay as they are", **PATH},
            "storage_options": OPTIONS,
        },
        lambda: {**_saved(), "to": "start", "dry_run": True},
    ),
    "restored_from": Row(kdc.restored_from, {"model": all_kept("nothing that make_or_restore_model has returned")}),
    "advanced.stateless_input": Row(
        kdc.advanced.stateless_input, {"source": {"a function": "that of EpochDataset, or a generator's"}}
    ),
}

"""Runs one of the examples, killed by SIGKILL after as many batches as requested, and writes down what it prints.

`40` kills each process that is told so, `1:40` worker 1 alone.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import keras

import keras_dist_callbacks as kdc
from keras_dist_callbacks.run.engine.writer import shared_writer
from tests.support import wandb_files

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
warnings.filterwarnings("ignore", message=".*shuffle=True.*")
trained = 0  # of all fits of this process


class KillBehind(keras.callbacks.Callback):
    """Kills this process after so many batches, once what was saved is in place."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        global trained
        trained += 1
        if trained == self.batches:
            shared_writer().wait()
            os.kill(os.getpid(), signal.SIGKILL)


class KillBehindTests(KillBehind):
    """The same of batches that an evaluator evaluates."""

    on_test_batch_end = KillBehind.on_train_batch_end


kdc.advanced.register_callback_state(KillBehind, None)

me = kdc.advanced.Cluster.detect().worker_index


def _multi_worker(at: str, more: list[Any]) -> Any:
    with kdc.restartable():
        return _module("multi_worker").train(f"{at}/backup", f"{at}/checkpoints", f"{at}/logs", more)


def _multi_worker_evaluator(at: str, more: list[Any]) -> list[str]:
    """The evaluator task of the cluster of `multi_worker.py`."""
    data = _module("multi_worker").load_data(50)
    kills = [KillBehindTests(kill.batches) for kill in more]
    found = kdc.SidecarEvaluator(
        None, data, f"{at}/checkpoints", log_dir=f"{at}/logs", poll_seconds=0.1, callbacks=kills, verbose=0
    ).start()
    return [f"epoch {one.epoch}, step {one.step}: {one.metrics['accuracy']!r}" for one in found]


RUNS = {
    "mirrored": lambda at, more: _module("mirrored_keras").train(at, more),
    "make or restore": lambda at, more: _module("make_or_restore").run_training(at, extra_callbacks=more),
    "multi-worker": _multi_worker,
    "evaluator of multi-worker": _multi_worker_evaluator,
    "random search": lambda at, more: _module("keras_tuner_search").search(at, "random", more),
    "hyperband": lambda at, more: _module("keras_tuner_search").search(at, "hyperband", more),
    "cross-validation": lambda at, more: _module("cross_validation").scores(at, more),
    "DataLoader": lambda at, more: _module("torch_data_loader").train(at, extra_callbacks=more),
    "StatefulDataLoader": lambda at, more: _module("torch_data_loader").train(at, True, more),
    "frozen backbone": lambda at, more: _module("frozen_backbone").train(at, more),
    "mlflow": lambda at, more: _module("mlflow_tracking").train(at, extra_callbacks=more),
    "mlflow's autolog": lambda at, more: _module("mlflow_tracking").train(at, True, more),
    "wandb": lambda at, more: [*_module("wandb_offline").train(at, more), *wandb_files.rows(Path(at))],
    "keras_hub": lambda at, more: _module("keras_hub_classifier").train(at, more),
    "trained beside an evaluator": lambda at, more: list(_module("sidecar_evaluator").train(at, more).history),
    "evaluator": lambda at, more: _module("sidecar_evaluator").evaluate(at, [KillBehindTests(k.batches) for k in more]),
    "optuna": lambda at, more: _module("optuna_pruning").search(at, more),
}


def _module(name: str) -> Any:
    return importlib.import_module(name)


if __name__ == "__main__":
    name, directory, result = sys.argv[1:4]
    kills = [told.rpartition(":") for told in sys.argv[4:]]
    killed = [KillBehind(int(batches)) for worker, _, batches in kills if worker in ("", str(me))]
    lines = RUNS[name](directory, killed)
    Path(result if me == 0 else f"{result}.{me}").write_text("\n".join(lines))

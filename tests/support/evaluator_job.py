"""A training and its evaluator, as processes that may be killed: `train` or `evaluate`, and a directory of their own.

With `--in-step`, the training waits after every save until there is a result for it, so that each checkpoint lives
long enough, however short it is kept; with `--wait` for the first result alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras

import keras_dist_callbacks as kdc
from keras_dist_callbacks.evaluation import results
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.testing import KillAt
from tests.support import (
    busy_machine,  # noqa: F401 - it changes this process on request
    tiny,
)

EPOCHS = 4
_PATIENCE = 120.0


class InStep(keras.callbacks.Callback):
    """Waits at the end of an epoch for the evaluator: of each for its result, or of the second for any."""

    def __init__(self, directory: Path, each: bool) -> None:
        super().__init__()
        self.records, self.each = directory / "tb/evaluator/evaluations", each

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        shared_writer().wait()
        if not self.each and epoch != 1:
            return
        deadline = time.monotonic() + _PATIENCE
        while not list(self.records.glob(f"{(epoch + 1) * tiny.STEPS:012d}.json" if self.each else "*.json")):
            assert time.monotonic() < deadline, f"no result at the end of epoch {epoch + 1}"
            time.sleep(0.02)


kdc.advanced.register_callback_state(InStep, None)


class KillInEvaluation(keras.callbacks.Callback):
    """Kills this process in the middle of the evaluation of so many."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self.number -= 1
        if self.number == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_before(owner: Any, name: str, number: int) -> None:
    """Kills this process where it is about to call a function for the so many-th time."""
    original, calls = getattr(owner, name), iter(range(1, 1000))

    def called(*args: Any) -> Any:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    setattr(owner, name, called)


def train(given: argparse.Namespace) -> None:
    weights, directory = given.name.endswith(".weights.h5"), given.directory
    file = directory / "ckpt" / given.name
    callbacks: list[Any] = [kdc.ModelCheckpoint(file, save_weights_only=weights, max_to_keep=given.max_to_keep)]
    if given.in_step or given.wait:
        callbacks.append(InStep(directory, given.in_step))
    kills = [KillAt.from_string(given.kill)] if given.kill else []
    tiny.fit(tiny.model(), directory / "backup", [*callbacks, *kills], epochs=given.epochs, save_freq=2)


def evaluate(given: argparse.Namespace) -> None:
    directory, kill = given.directory, given.kill
    point, _, number = kill.partition(":")
    callbacks: list[Any] = [KillInEvaluation(int(number))] if point == "evaluation" else []
    if point in ("_put_record", "_put_events"):
        kill_before(results.EvaluationLog, point, int(number))
    if point == "publish":
        kill_before(results.files, point, int(number))
    with kdc.make_strategy().scope():
        model = tiny.model()
    if "TF_CONFIG" in os.environ:
        callbacks.append(kdc.TensorBoard(directory / "board"))
    kdc.SidecarEvaluator(
        model,
        tiny.data(),
        directory / given.of,
        callbacks=callbacks,
        poll_seconds=0.05,
        rerun_seconds=given.rerun_seconds,
        log_dir=directory / "tb",
        export_best=directory / "export" / "best.weights.h5",
    ).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["train", "evaluate"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--name", default="{epoch}.keras")
    parser.add_argument("--max-to-keep", type=int)
    parser.add_argument("--in-step", action="store_true")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--of", default="ckpt")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--rerun-seconds", type=float, default=0.0)
    parser.add_argument("--kill", default="")
    given = parser.parse_args()
    if given.task == "train":
        train(given)
    else:
        evaluate(given)


if __name__ == "__main__":
    main()

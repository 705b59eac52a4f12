"""Short evaluations in this process, of a training that has ended."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras

import keras_dist_callbacks as kdc
from tests.support import tiny
from tests.support.callback_helpers import scalars

DATA = tuple(part[:16] for part in tiny.data())


class Count(keras.callbacks.Callback):
    """Evaluations that began."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def on_test_begin(self, logs: Any = None) -> None:
        self.steps.append(int(self.model.optimizer.iterations.numpy()))


@functools.cache
def shared() -> keras.Model:
    """What is traced once, for tests that are not about the model."""
    return tiny.model(clear=False)


def evaluator(run: Path, model: Any = "shared", **options: Any) -> kdc.SidecarEvaluator:
    model = shared() if isinstance(model, str) else model
    given = {"verbose": 0, "poll_seconds": 0.01, "rerun_seconds": 0, "log_dir": run / "tb", **options}
    return kdc.SidecarEvaluator(model, given.pop("data", DATA), given.pop("checkpoint_dir", run / "ckpt"), **given)


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def logged(run: Path) -> list[int]:
    """Steps of the values in the log, in the order of the event files."""
    return [step for step, _ in scalars(run / "tb" / "evaluator")["evaluation_loss_vs_iterations"]]


def event_files(run: Path) -> list[Path]:
    return sorted((run / "tb/evaluator").glob("events.out.tfevents*"))

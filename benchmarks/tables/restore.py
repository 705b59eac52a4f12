"""How long a job takes to continue: from the call of fit() to the end of its first step."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_dist_callbacks as kdc
from benchmarks import arms, models
from benchmarks.config import Case, Config, Outcome
from benchmarks.estimates import median, ratio
from benchmarks.table import Bound, Table, at_most

NOTES = [
    "Until the first step: from the call of fit() (or of load_weights before it) until the train function is "
    "called. With the first step: until it returns; a lazy restore shows there. Both less what the same fit() takes "
    "without a restore. The train function was traced before; ours verifies every hash. Warm: all files were just "
    "read, as after a restart on the same machine if they were written through the page cache. Cold: none of them is "
    "in the page cache, as on another machine, and as ours are on the same one after they were written around it.",
]
_LOAD = "load_weights"
_LIMITS = {"default": 0.6, "mirrored": 0.9}
_LIMIT_SMALL = 1 / 5
_CAN_FORGET = hasattr(os, "posix_fadvise")
_ENDLESS = 1000  # epochs: each run continues from where the one before was stopped, and saved


def cases(config: Config) -> list[Case]:
    """Large variables with and without a strategy, and many small ones."""
    size, rounds = config.sizes_or(400)[-1], config.rounds(16)
    common = {"rounds": rounds, "seed": config.seed, "cached": True}
    cold = [{**common, "megabytes": size, "strategy": "default", "cached": False}] if _CAN_FORGET else []
    return [
        {**common, "megabytes": size, "strategy": "default"},
        *cold,
        {**common, "megabytes": size, "strategy": "mirrored"},
        {**common, "variables": config.small_variables, "strategy": "default"},
    ]


class _StopError(Exception):
    """Ends a fit as a crash would."""


class _Probe(keras.callbacks.Callback):
    """Notes when the first step begins and ends, and ends fit after some steps."""

    def __init__(self, train: Callable[[Any], Any], steps: int) -> None:
        super().__init__()
        self._train, self._left = train, steps
        self.began = self.ended = 0.0

    def __call__(self, iterator: Any) -> Any:
        self.began = self.began or time.perf_counter()
        result = self._train(iterator)
        self.ended = self.ended or time.perf_counter()
        return result

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if not self._left:
            raise _StopError


kdc.advanced.register_callback_state(_Probe, None)  # how many steps are left is not for the next run


def measure(directory: Path, *, strategy: str, rounds: int, seed: int, cached: bool, **size: int) -> Outcome:
    """Saves once, then restores in turn."""
    workload = _build(strategy, **size)
    model = workload.model
    model.fit(workload.data, steps_per_epoch=2, verbose=0)
    train = model.train_function
    weights, theirs, ours = directory / "a.weights.h5", directory / "keras", directory / "ours"
    saved = [
        kdc.BackupAndRestore(ours, verbose=0),
        keras.callbacks.BackupAndRestore(str(theirs), delete_checkpoint=False),
    ]
    for callback in saved:  # ours refuses to be in one list with Keras'
        _fit(workload, train, [callback], steps=2 + 1, epochs=2)
    model.save_weights(weights)
    starts: dict[str, Callable[[], list[Any]]] = {
        arms.NONE: list,
        arms.NONE_AGAIN: list,
        _LOAD: lambda: model.load_weights(weights) or [],
        arms.KERAS: lambda: [keras.callbacks.BackupAndRestore(str(theirs), delete_checkpoint=False)],
        arms.OURS: lambda: [kdc.BackupAndRestore(ours, verbose=0)],
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
    generator = random.Random(seed)  # noqa: S311 - an order
    for number in range(rounds + 1):
        for name in generator.sample(list(starts), len(starts)):
            _prepare(directory, cached=cached)
            began = time.perf_counter()
            probe = _fit(workload, train, starts[name](), steps=1, epochs=_ENDLESS)
            if number:  # the first is a warm-up for all
                found[name].append((round((probe.began - began) * 1e3, 3), round((probe.ended - began) * 1e3, 3)))
    return {"ms": found, "state_bytes": workload.state_bytes}


def _prepare(directory: Path, *, cached: bool) -> None:
    """Puts every file into the page cache, or none."""
    os.sync()  # what is not on the disk yet cannot leave the cache
    for path in directory.rglob("*"):
        if path.is_file() and cached:
            path.read_bytes()
        elif path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _build(strategy: str, megabytes: int = 0, variables: int = 0) -> models.Workload:
    if strategy == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            return models.large(megabytes)
    return models.small(variables) if variables else models.large(megabytes)


def _fit(workload: models.Workload, train: Any, callbacks: Sequence[Any], *, steps: int, epochs: int) -> _Probe:
    """Ends like a crash, so that nothing that was saved is deleted."""
    probe = workload.model.train_function = _Probe(train, steps)
    try:
        workload.model.fit(
            workload.data, steps_per_epoch=2, epochs=epochs, verbose=0, shuffle=False, callbacks=[probe, *callbacks]
        )
    except _StopError:
        return probe
    raise AssertionError("fit ended before it was stopped")


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of all cases."""
    columns = ["State, strategy, files", "Arm", "until first step ms", "with first step ms", "of load_weights", "n"]
    table = Table("Restore", columns, notes=list(NOTES))
    for outcome in outcomes:
        case = outcome["case"]
        many = case.get("variables")
        state = f"{many} variables" if many else f"{case['megabytes']} MB"
        where = f"{state}, {case['strategy']}, {'warm' if case['cached'] else 'cold'}"
        found = {name: np.array(values) for name, values in outcome["ms"].items()}
        base = np.median(np.concatenate([found[arms.NONE], found[arms.NONE_AGAIN]]), axis=0)
        over = {name: values - base for name, values in found.items()}
        for name, values in over.items():
            compared = "-" if name.startswith(arms.NONE) else ratio(values[:, 1], over[_LOAD][:, 1]).show()
            shown = [median(values[:, 0]).show(), median(values[:, 1]).show(), compared, str(len(values))]
            table.rows.append([where, name, *shown])
        raw = ratio(found[arms.OURS][:, 1], found[_LOAD][:, 1])
        table.notes.append(f"{where}: with all of fit()'s start and the first step counted in both, {raw.show()}.")
        table.bounds.append(_bound(over, where, _LIMIT_SMALL if many else _LIMITS[case["strategy"]]))
    return [table]


def _bound(over: dict[str, Any], where: str, limit: float) -> Bound:
    step = median(over[arms.OURS][:, 1] - over[arms.OURS][:, 0]).value
    why = f"{median(over[arms.OURS][:, 0]).value:.0f} ms until the first step, {step:.0f} ms of it in that step"
    measured = ratio(over[arms.OURS][:, 1], over[_LOAD][:, 1])
    return at_most(f"restore and first step / load_weights, {where}", measured, limit, why)

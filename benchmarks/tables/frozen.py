"""A frozen backbone: how much a backup writes that changes little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

import keras_dist_callbacks as kdc
from benchmarks import models
from benchmarks.config import Case, Config, Outcome
from benchmarks.table import Bound, Table
from keras_dist_callbacks.run.engine.writer import shared_writer

NOTES = [
    "Bytes of all new files in the backup directory after each backup, manifests included; a backup after each step. "
    "Changing: the share of the state that a step changes, below which no exact backup can be. Adam keeps two values "
    "for each trained weight, so that 5 % of the weights are 14 % of the state.",
]
_LIMIT = 0.07
_BACKUPS = 5
_FROZEN_WEIGHTS = 0.95
_FROZEN_FOR_ADAM = 0.983  # of the weights, which is 95 % of weights and slots together


def cases(config: Config) -> list[Case]:
    """Without slots, and with Adam's: 95 % of the weights, and 95 % of everything."""
    size = config.sizes_or(100)[0]
    found: list[Case] = [
        {"megabytes": size, "share": _FROZEN_WEIGHTS, "adam": False},
        {"megabytes": size, "share": _FROZEN_FOR_ADAM, "adam": True},
        {"megabytes": size, "share": _FROZEN_WEIGHTS, "adam": True},
    ]
    return found[-1:] if config.quick else found


class _NewFiles(keras.callbacks.Callback):
    """Waits for each backup and counts the bytes of files that were not there before."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._seen: set[Path] = set()
        self.written: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        shared_writer().wait()
        new = {f for f in self._directory.rglob("*") if f.is_file()} - self._seen
        if batch and new:
            self.written.append(sum(f.stat().st_size for f in new))
        self._seen |= new


def measure(directory: Path, *, megabytes: int, share: float, adam: bool) -> Outcome:
    """One fit with a backup after each step."""
    workload = models.frozen(megabytes, share, adam=adam)
    counter = _NewFiles(directory / "backup")
    backup = kdc.BackupAndRestore(
        directory / "backup", save_freq=1, write_options=kdc.WriteOptions(when_busy="wait"), verbose=0
    )
    workload.model.fit(workload.data, steps_per_epoch=_BACKUPS + 1, verbose=0, callbacks=[counter, backup])
    trained = sum(v.numpy().nbytes for v in [*workload.model.trainable_variables, *workload.model.optimizer.variables])
    return {"written": counter.written, "changing": trained, "state_bytes": workload.state_bytes}


def summarise(outcomes: list[Outcome]) -> list[Table]:
    """One table of all three."""
    columns = ["Frozen", "state MB", "changing", "first MB", "largest later MB", "later, of the first", "backups"]
    table = Table("Frozen backbone: bytes per backup", columns, notes=list(NOTES))
    for outcome in outcomes:
        first, *later = outcome["written"]
        case, state = outcome["case"], outcome["state_bytes"]
        name = f"{case['share']:.1%} of the weights, {'Adam' if case['adam'] else 'SGD'}"
        share, changing = max(later) / first, outcome["changing"] / state
        megabytes = [f"{first / 1e6:.2f}", f"{max(later) / 1e6:.2f}"]
        table.rows.append(
            [name, f"{state / 1e6:.0f}", f"{changing:.1%}", *megabytes, f"{share:.2%}", str(len(later) + 1)]
        )
        met = share <= _LIMIT
        why = f"each step changes {changing:.1%} of the state: the trained weights and Adam's two values for each"
        bound = Bound(
            f"later backups / the first, {name} frozen", f"≤ {_LIMIT:.0%}", f"{share:.2%}", met, "" if met else why
        )
        table.bounds.append(bound)
    return [table]

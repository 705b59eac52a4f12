"""Reads how many training steps were run, over all restarts, from what the processes appended."""

from __future__ import annotations

import collections
import os
from pathlib import Path
from typing import NamedTuple

from keras_dist_callbacks import arguments
from keras_dist_callbacks.errors import ConfigError


class Step(NamedTuple):
    """One training step that a process has completed.

    Attributes:
        pid: The process that ran it; another one after each restart.
        epoch: Epoch, from 0.
        batch: Batch in the epoch, from 0.
    """

    pid: int
    epoch: int
    batch: int


def append(path: str | os.PathLike[str], data: bytes) -> None:
    """Appends in one unbuffered write: complete and in the kernel when it returns, whatever kills us next."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def count_calls(path: str | os.PathLike[str]) -> int:
    """Number of training steps that went through a `CountCalls` layer, over all restarts.

    The replicas of one process count a step once. Zero if the file does not exist.

    Raises:
        ConfigError: `path` is no path.
    """
    file = Path(arguments.path("path", path))
    if not file.exists():
        return 0
    return max(collections.Counter(file.read_bytes()).values(), default=0)


def read_steps(path: str | os.PathLike[str]) -> list[Step]:
    """The steps that a `StepLog` has written, in the order in which they were run.

    Empty if the file does not exist. A line cut off by a full disk or a crash of the machine is an error.

    Raises:
        ConfigError: `path` is no path, or the file no step log.
    """
    file = Path(arguments.path("path", path))
    if not file.exists():
        return []
    steps = []
    for number, line in enumerate(file.read_text(encoding="ascii", errors="replace").splitlines(), start=1):
        fields = line.split()
        if len(fields) != 3 or not all(field.isdigit() for field in fields):
            raise ConfigError(f"{file}, line {number}: {line!r} is not 'pid epoch batch'; is this a StepLog's file?")
        steps.append(Step(*map(int, fields)))
    return steps

"""Every way to save that is measured: ours, those of Keras, Orbax and TensorFlow, and what a copy or a write costs.

Others' callbacks are called by their public hooks: with `save_freq="epoch"` they save when told that an epoch ended.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import xxhash

import keras_dist_callbacks as kdc
from benchmarks.gate import Arm
from benchmarks.models import Workload
from benchmarks.parts import Watch
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run.engine.background import lower_priority
from keras_dist_callbacks.run.engine.schedule import SavePolicy, Schedule
from keras_dist_callbacks.run.engine.writer import shared_writer

NONE, NONE_AGAIN = "no save", "no save (A/A)"
OURS, OURS_UNSYNCED = "ours, fsync", "ours, no fsync"
KERAS = "keras BackupAndRestore"
WEIGHTS, WHOLE = "ModelCheckpoint .weights.h5", "ModelCheckpoint .keras"
ORBAX, ORBAX_SYNC = "OrbaxCheckpoint background", "OrbaxCheckpoint sync"
TENSORFLOW, TENSORFLOW_ASYNC = "tf.train.Checkpoint sync", "tf.train.Checkpoint async"
MEMCPY, MEMCPY_BESIDE, WRITE_BESIDE = "memcpy", "memcpy beside training", "hash, copy, write beside training"
WRITE, WRITE_SYNCED = "os.write", "os.write, fsync"
HOLD = "reads held, nothing written"
ORDER = (
    NONE, NONE_AGAIN, MEMCPY, MEMCPY_BESIDE, WRITE_BESIDE, WRITE, WRITE_SYNCED, HOLD, OURS, OURS_UNSYNCED, KERAS,
    WEIGHTS, WHOLE, ORBAX, ORBAX_SYNC, TENSORFLOW, TENSORFLOW_ASYNC,
)  # fmt: skip
"""In which tables list them."""

_LOGS = {"loss": 0.0}
_CHUNK, _PIECE = 4 * 2**20, 2**18


def ours_name(fsync: bool) -> str:
    """The name of our arm in one of the two modes."""
    return OURS if fsync else OURS_UNSYNCED


def write_name(fsync: bool) -> str:
    """The name of the floor that our arm in this mode is held against."""
    return WRITE_SYNCED if fsync else WRITE


class Gate(Schedule):
    """Stands in for the schedule of our callback: a backup is due when the benchmark says so."""

    def __init__(self) -> None:
        super().__init__(SavePolicy(at_end_only=True), Cluster())
        self._asked = False

    def ask(self) -> None:
        """The next look finds a backup due."""
        self._asked = True

    def due(self, step: int, writing: bool, *, waits: bool = False) -> bool:
        """Whether it was asked for since the last look; late, where training does not wait."""
        due = self._asked and (waits or not writing)
        self._asked = self._asked and not due
        return due


class _Gated(kdc.BackupAndRestore):
    def __init__(self, gate: Gate, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = gate

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self._session.run.schedule = self._gate


def make(names: Sequence[str], workload: Workload, directory: Path, watch: Watch | None = None) -> list[Arm]:
    """The named arms; two that save nothing are always among them.

    Args:
        names: Which.
        workload: What is trained.
        directory: Where they save.
        watch: Notes our saves; those that are due too soon are late then, as users have it.
    """
    makers: dict[str, Callable[[], Arm]] = {
        OURS: lambda: _ours(directory / "ours", fsync=True, watch=watch),
        OURS_UNSYNCED: lambda: _ours(directory / "ours", fsync=False, watch=watch),
        KERAS: lambda: _hook(KERAS, keras.callbacks.BackupAndRestore(str(directory / "keras")), workload.model),
        WEIGHTS: lambda: _checkpoint(WEIGHTS, directory / "saved.weights.h5", workload.model),
        WHOLE: lambda: _checkpoint(WHOLE, directory / "saved.keras", workload.model),
        ORBAX: lambda: _orbax(ORBAX, directory / "orbax", workload.model, background=True),
        ORBAX_SYNC: lambda: _orbax(ORBAX_SYNC, directory / "orbax-sync", workload.model, background=False),
        TENSORFLOW: lambda: _tensorflow(directory / "tf", workload.model),
        MEMCPY: lambda: _memcpy(workload.state_bytes),
        HOLD: lambda: _hold(workload.model),
        WRITE: lambda: _write(directory / "floor", workload.state_bytes, fsync=False),
        WRITE_SYNCED: lambda: _write(directory / "floor-synced", workload.state_bytes, fsync=True),
    }
    return [Arm(NONE), Arm(NONE_AGAIN), *(makers[name]() for name in names)]


def _ours(directory: Path, *, fsync: bool, watch: Watch | None) -> Arm:
    # A backup that is late would look free: where no one counts those that were made, "wait" shows instead.
    gate, busy = Gate(), "wait" if watch is None else "late"
    callback = _Gated(
        gate, directory, save_freq=10**9, write_options=kdc.WriteOptions(when_busy=busy, fsync=fsync), verbose=0
    )

    def drain() -> None:
        if not shared_writer().wait(300):
            raise TimeoutError("a backup was not written within 300 s")

    if watch is None:
        return Arm(ours_name(fsync), gate.ask, drain, callback)
    return Arm(ours_name(fsync), gate.ask, drain, callback, lambda: len(watch.made), lambda: watch.complete)


def _hook(name: str, callback: Any, model: Any, drain: Callable[[], Any] | None = None) -> Arm:
    callback.set_model(model)
    epoch = iter(range(10**9))

    def save() -> None:
        callback.on_epoch_end(next(epoch), _LOGS)

    return Arm(name, save) if drain is None else Arm(name, save, drain)


def _checkpoint(name: str, path: Path, model: Any) -> Arm:
    only = name == WEIGHTS
    return _hook(name, keras.callbacks.ModelCheckpoint(str(path), monitor="loss", save_weights_only=only), model)


def _orbax(name: str, directory: Path, model: Any, *, background: bool) -> Arm:
    logging.getLogger("absl").setLevel(logging.ERROR)
    callback = keras.callbacks.OrbaxCheckpoint(str(directory), monitor="loss", save_on_background=background)
    return _hook(name, callback, model, callback.wait_until_finished)


def _tensorflow(path: Path, model: Any) -> Arm:
    import tensorflow as tf

    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    return Arm(TENSORFLOW, lambda: checkpoint.write(str(path)))


def tensorflow_async(path: Path, model: Any) -> Arm:
    """TensorFlow's checkpoint in the background; with Keras 3 models this is known to end the process."""
    import tensorflow as tf

    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    options = tf.train.CheckpointOptions(enable_async=True)
    return Arm(TENSORFLOW_ASYNC, lambda: checkpoint.write(str(path), options=options), checkpoint.sync)


def _memcpy(size: int) -> Arm:
    source, target = _bytes(size), np.zeros(size, np.uint8)
    np.copyto(target, source)  # maps the pages
    return Arm(MEMCPY, lambda: np.copyto(target, source))


def copies_beside(size: int) -> tuple[Arm, list[float]]:
    """Copies in a thread of the priority that our writer has, and the processor time of each copy in ms."""
    source, target = _bytes(size), np.zeros(size, np.uint8)
    np.copyto(target, source)  # maps the pages
    return _beside(MEMCPY_BESIDE, lambda: np.copyto(target, source))


def writes_beside(path: Path, workload: Workload, *, fsync: bool) -> tuple[Arm, list[float]]:
    """The same for no more than it takes to hash, copy into a buffer and write around the page cache, one new file.

    Every variable is read and held meanwhile, as it must be by whoever writes what training continues to change.
    """
    size = workload.state_bytes
    source = _bytes(size)
    memory = mmap.mmap(-1, 2 * _CHUNK)
    begin = -np.frombuffer(memory, np.uint8).ctypes.data % _CHUNK
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    target = np.frombuffer(memory, np.uint8)[begin : begin + _CHUNK]

    def write() -> None:
        file, digest = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT), xxhash.xxh3_128()
        for start in range(0, size // _CHUNK * _CHUNK, _CHUNK):
            for at in range(0, _CHUNK, _PIECE):
                piece = source[start + at : start + at + _PIECE]
                digest.update(piece)
                np.copyto(target[at : at + _PIECE], piece)
            os.pwrite(file, target, start)
        if fsync:
            os.fsync(file)
        os.close(file)
        path.unlink()

    return _beside(WRITE_BESIDE, write, _hold(workload.model))


def _beside(name: str, work: Callable[[], Any], held: Arm | None = None) -> tuple[Arm, list[float]]:
    spent: list[float] = []
    running: list[threading.Thread] = []

    def run() -> None:
        lower_priority()
        began = time.thread_time()
        work()
        if held is not None:
            held.drain()
        spent.append(round((time.thread_time() - began) * 1e3, 3))

    def save() -> None:
        drain()
        if held is not None:
            held.save()
        running.append(threading.Thread(target=run))
        running[0].start()

    def drain() -> None:
        while running:
            running.pop().join()

    return Arm(name, save, drain), spent


def _hold(model: Any) -> Arm:
    """Only reads every variable and keeps what was read over the next step: its slowdown without any writer."""
    import tensorflow as tf

    every = [v.value for v in [*model.variables, *model.optimizer.variables]]
    held: list[Any] = []

    def save() -> None:
        held.extend(tf.raw_ops.ReadVariableOp(resource=raw.handle, dtype=raw.dtype) for raw in every)

    return Arm(HOLD, save, held.clear)


def _write(path: Path, size: int, *, fsync: bool) -> Arm:
    """A new file each time, as a backup is one; the one before is removed outside of the timing."""
    source = memoryview(_bytes(size))

    def save() -> None:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        left = source
        while left:
            left = left[os.write(descriptor, left) :]
        if fsync:
            os.fsync(descriptor)
        os.close(descriptor)

    return Arm(write_name(fsync), save, lambda: path.unlink(missing_ok=True))


def _bytes(size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, size, np.uint8)

"""Runs that are left early, in pytest's own process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.cluster import peer_monitor
from tests.support import tiny
from tests.support.grouped import grouped

FOREVER = 1e6  # a watchdog that is started by a test must not end the process of all tests
Action = Callable[[], Any]


class ActionAt(keras.callbacks.Callback):
    """Does something once, in one hook."""

    def __init__(self, hook: str, when: tuple[int, int], act: Action) -> None:
        super().__init__()
        self.epoch = 0
        setattr(self, hook, lambda index, logs=None: self._come(hook, index, when, act))

    def _come(self, hook: str, index: int, when: tuple[int, int], act: Action) -> None:
        if hook == "on_epoch_begin":
            self.epoch = index
        now = (index, 0) if "epoch" in hook else (self.epoch_of_history(), index)
        if now == when:
            act()

    def epoch_of_history(self) -> int:
        return len(self.model.history.epoch)


class Remembers(keras.callbacks.Callback):
    """Has a state of its own, which each batch changes."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1


kdc.advanced.register_callback_state(ActionAt, None)


def raise_signal(number: signal.Signals = signal.SIGUSR1) -> Action:
    return lambda: signal.raise_signal(number)


def fail() -> None:
    raise tiny.Stop("stopped here")


def assert_nothing_is_left() -> None:
    """No run that has ended watches for anything any more, and could end this process."""
    assert (shared(peer_monitor.PeerMonitor).count, shared(peer_monitor.PeerMonitor).listeners) == (0, [])


def validation() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tiny.data()).shuffle(tiny.ROWS, seed=5).batch(tiny.BATCH)


def fit(backup: Path | None, *callbacks: Any, validate: bool = True, **options: Any) -> keras.Model:
    built = tiny.model()
    chosen = {"signals": ["SIGUSR1"], "grace_period": FOREVER, "save_on_exception": True, **options}
    arguments = {"validation_data": validation()} if validate else {}
    tiny.fit(built, backup, callbacks, save_freq=chosen.pop("save_freq", "epoch"), options=chosen, **arguments)
    return built


def resume_and_compare(backup: Path, reference: keras.Model, *callbacks: Any, **options: Any) -> kdc.BackupAndRestore:
    """The run that follows: its end, and what it says."""
    built = tiny.model()
    callback = kdc.BackupAndRestore(backup, **grouped(**options))
    tiny.fit(built, None, [*callbacks, callback], validation_data=validation())
    tiny.assert_same(built, reference)
    assert callback.restored is not None
    return callback

"""Faults at an exact point of training: real signals, sent by the process to itself."""

from __future__ import annotations

import os
import signal
from typing import Any, Literal, Self, get_args

import keras

from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.terminal import write_line
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run.engine.writer import shared_writer

_BATCH_PHASES = ("train_batch_begin", "train_batch_end", "test_batch_end")
Phase = Literal["epoch_begin", "train_batch_begin", "train_batch_end", "test_batch_end", "epoch_end", "train_end"]
_COMMIT_SECONDS = 60.0


class KillAt(keras.callbacks.Callback):
    """Sends a signal to one worker at one point of training, once per process.

    Say where by `epoch` and `batch`, as Keras numbers them, from 0; they mean the same before and after a
    resume. `step` is the same as one number, `epoch * steps_per_epoch + batch`. What is not given is not
    compared: `KillAt(epoch=1)` strikes at the first batch of epoch 1 that this process runs.

    Where the phases lie: `BackupAndRestore` saves between two steps, after every callback's
    `on_train_batch_end`, and at the end of an epoch after every callback's `on_epoch_end`. So
    `"train_batch_end"` of batch b and `"epoch_end"` come **before** the save there, and
    `"train_batch_begin"` of batch b + 1 and `"epoch_begin"` of the next epoch after it. The save after an
    epoch's last step is done before `"test_batch_end"`. `"train_end"` is between the last save of the
    epochs and the end of fit.

    A restarted process that has resumed exactly before that point is killed there again: leave the
    callback out of the last attempt (`run_until_done` has `extra_args` for this).

    Args:
        step: Training step since the start of fit, from 0.
        epoch: Epoch, from 0.
        batch: Batch of the epoch, or of the validation data in phase `"test_batch_end"`.
        phase: `"epoch_begin"`, `"train_batch_begin"`, `"train_batch_end"`, `"test_batch_end"` (validation
            within fit), `"epoch_end"` or `"train_end"`.
        worker: Index of the worker that gets the signal.
        sig: The signal, as a number or a name such as `"SIGTERM"`.
        after_commit: Whether to wait first, at most a minute, until what was saved is committed. All
            workers wait for each other then, because the chief commits: each needs this callback with the
            same arguments. With False the signal is sent at once, into a running save if there is one.

    Raises:
        ConfigError: An argument is wrong, or two do not go together.
    """

    def __init__(
        self,
        step: int | None = None,
        epoch: int | None = None,
        batch: int | None = None,
        phase: Phase = "train_batch_end",
        worker: int = 0,
        sig: int | str = signal.SIGKILL,
        after_commit: bool = True,
    ) -> None:
        super().__init__()
        phase = validation.check("phase", phase, Phase, f"one of {', '.join(get_args(Phase))}")
        if step is not None and (epoch is not None or batch is not None):
            raise ConfigError("give step or epoch and batch, not both")
        if step is not None and phase not in ("train_batch_begin", "train_batch_end"):
            raise ConfigError(f"step counts training batches; phase {phase!r} needs epoch and batch")
        if batch is not None and phase not in _BATCH_PHASES:
            raise ConfigError(f"phase {phase!r} has no batch; remove batch")
        self.step, self.epoch, self.batch = _place("step", step), _place("epoch", epoch), _place("batch", batch)
        self.phase, self.worker = phase, validation.check("worker", worker, validation.Count)
        self.after_commit = validation.check("after_commit", after_commit, bool)
        self.sig = validation.parse_signal("sig", sig)
        self._now = -1
        self._struck = False

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Reads `"phase=train_batch_end,epoch=1,batch=3,worker=1"`, the form for command lines.

        Raises:
            ConfigError: A part is not `name=value` with a name of the arguments, or a value cannot be read.
        """
        if not isinstance(text, str):
            raise validation.invalid_argument("text", text, "a str such as 'epoch=1,batch=3'")
        found: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in _KINDS:
                raise ConfigError(f"{text!r}: {part!r} is not name=value with one of {', '.join(_KINDS)}")
            try:
                found[name] = validation.convert(value, _KINDS[name], strict=False)
            except ValueError as error:
                raise ConfigError(f"{text!r}: {name} cannot be {value!r}") from error
        return cls(**found)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that the point can be found in this fit."""
        self._now = -1
        if self.step is not None and not self.params.get("steps"):
            raise ConfigError("KillAt: this dataset's length is unknown, so step cannot be used; give epoch and batch")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Strikes in phase `"epoch_begin"`."""
        self._now = epoch
        self._pass("epoch_begin")

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Strikes in phase `"train_batch_begin"`."""
        self._pass("train_batch_begin", batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Strikes in phase `"train_batch_end"`."""
        self._pass("train_batch_end", batch)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Strikes in phase `"test_batch_end"`."""
        self._pass("test_batch_end", batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Strikes in phase `"epoch_end"`."""
        self._pass("epoch_end")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Strikes in phase `"train_end"`."""
        self._pass("train_end")

    def _pass(self, phase: str, batch: int | None = None) -> None:
        if self._struck or phase != self.phase or not self._is_here(batch):
            return
        self._struck = True
        cluster = Cluster.detect()
        if self.after_commit:
            _wait_for_commit(cluster)
        if cluster.worker_index != self.worker:
            return
        where = (
            phase if self._now < 0 else f"{phase} of epoch {self._now}" + ("" if batch is None else f", batch {batch}")
        )
        write_line(f"KillAt: {cluster.name} gets {self.sig.name} at {where}", to_stderr=True)
        os.kill(os.getpid(), self.sig)

    def _is_here(self, batch: int | None) -> bool:
        if self.step is not None:
            return batch is not None and self._now * int(self.params["steps"]) + batch == self.step
        return self.epoch in (None, self._now) and self.batch in (None, batch)


def _wait_for_commit(cluster: Cluster) -> None:
    if not shared_writer().wait(_COMMIT_SECONDS):
        write_line(f"KillAt: the save was not committed within {_COMMIT_SECONDS:g} s", to_stderr=True)
    if cluster.num_workers > 1:
        cluster.barrier("testing-kill-at", _COMMIT_SECONDS + 30.0)


def _place(name: str, value: int | None) -> int | None:
    checked: int | None = validation.check(name, value, validation.Count | None)
    return checked


_KINDS: dict[str, Any] = {
    "step": int,
    "epoch": int,
    "batch": int,
    "phase": str,
    "worker": int,
    "sig": str,
    "after_commit": bool,
}

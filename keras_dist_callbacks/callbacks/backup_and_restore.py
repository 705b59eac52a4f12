"""`BackupAndRestore`: the complete training state, saved between steps and restored exactly."""

from __future__ import annotations

import datetime
import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import keras

from keras_dist_callbacks._compat import multi_worker, running_fit, strategies
from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.retention import Rules
from keras_dist_callbacks.base import static
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.process_runs import next_name
from keras_dist_callbacks.base.terminal import is_first, say, warn
from keras_dist_callbacks.base.validation import check, function_or_none, path, verbosity
from keras_dist_callbacks.callbacks.model_checkpoint import note_rollback
from keras_dist_callbacks.callbacks.rebuild_on_copy import RebuiltOnCopy
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.strategy import enable_for_cluster
from keras_dist_callbacks.options import (
    MAX_OVERHEAD,
    Rollback,
    ShutdownOptions,
    WriteOptions,
    explains_arguments,
    group_of,
    open_to_write,
)
from keras_dist_callbacks.rehearsal.plan import VARIABLE, Plan, plan_in_force
from keras_dist_callbacks.run import resume_mode
from keras_dist_callbacks.run.announcing import announce, reproducibility_advice
from keras_dist_callbacks.run.engine.committer import KEPT_COMMITS, EngineOptions
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.engine.events import Event
from keras_dist_callbacks.run.engine.schedule import parse_retention, parse_save_freq
from keras_dist_callbacks.run.engine.writer import shared_writer
from keras_dist_callbacks.run.rehearsed_session import RehearsedSession
from keras_dist_callbacks.run.run import Run
from keras_dist_callbacks.run.session import FitSession, SessionOptions
from keras_dist_callbacks.state.callback_state import (
    CallbackStates,
    Preparation,
    capture_callbacks,
    prepare_callbacks,
)


@explains_arguments
class BackupAndRestore(RebuiltOnCopy, keras.callbacks.Callback):
    """Saves the complete state of training, and restores it exactly when an interrupted job starts again.

    Everything that training depends on is saved: weights, optimizer, seed generators, metrics, the random
    states of Python, numpy and TensorFlow, the position in the epoch, the logs, the History and the state of
    every other callback. After a restart `fit()` continues after the last saved step. Steps that were trained after it
    are trained again, from the same state, so that the final weights are those of an uninterrupted run, bit by bit.

    Under `MultiWorkerMirroredStrategy` the chief alone writes, and every worker restores the same backup.
    Saving happens in a background thread; a backup exists completely or not at all.

    Example:
        ```python
        backup = kdc.BackupAndRestore("gs://bucket/run1/backup", save_freq=100)
        model.fit(dataset, epochs=12, callbacks=[backup])
        ```

    Args:
        backup_dir: A directory for this run alone: a path or any fsspec URL.
        save_freq: `"epoch"` for a backup at the end of each epoch, a number of batches trained, or `"auto"`: as often
            as `max_overhead` allows, by what saves are measured to cost. A `datetime.timedelta` is a time between two
            backups; in batches it is estimated again at each one. False: at a preemption and at the end only.
        double_checkpoint: Let two successive backups share no file, so that one damaged file cannot harm both.
        delete_checkpoint: Delete the backup when `fit()` ends; a small record of where the time has gone stays, see
            `kdc watch`. A rerun deletes one that a kill at the very end left,
            unless it belongs to another training or to more epochs. With False the last backup is kept: a rerun of
            the finished job then runs no step and returns the full History.
        max_to_keep: How many of the newest backups stay. With 1 there is no older one if that file is damaged later.
        keep_every: Keep the first backup at or after each so many epochs too; of a `datetime.timedelta`, at or after
            each so long since the first backup of this training. Such a backup stays until `fit()` deletes all at its
            end (`delete_checkpoint`), and takes nearly the size of the state: weights and optimizer change.
        max_overhead: With `save_freq="auto"`, the share of the training time that backups may cost.
        strict: True turns a resume that is "not exact" into an error before the first step, instead of a warning;
            `"certain"` one that is "exact if ..." too.
        on_nonfinite: What to do where the loss of the epoch so far is NaN or infinite on any worker. It is looked at
            after each step, which must be computed then before the next one begins. `"stop"` ends training with
            `Diverged`, after a backup that is marked; a `Rollback` goes back to a finite backup, and skips what fails
            again. None: training goes on.
        reread_input: Read past epochs again, for an input whose own Python state (a generator of random numbers, a
            cursor) moves only by being read. With False their iterators are made, and next to nothing is read.
        on_event: A function that is given an `Event` whenever something happens, on the chief, in a thread of its own.
            What it raises is a warning.
        verbose: 1 prints one line at a restore, on the chief, and shows a bar on a terminal while an upload lasts for
            more than some seconds; 0 prints nothing.
        storage_options: Passed to the fsspec file system: credentials, endpoint, ...
        write_options: How backups are written: retries, rate, queue. Defaults to `WriteOptions()`.
        shutdown_options: What happens when the process is asked to end: signals, notices, grace period. Defaults to
            `ShutdownOptions()`. How long workers wait for each other is set by `ClusterOptions`.

    Attributes:
        restored: What the running or last fit was resumed from, a `Restored`, or None.

    Raises:
        ConfigError: An argument is wrong.
    """

    restored: Restored | None = None
    _cluster = Cluster()  # of the running or last fit
    _session: FitSession | None = None
    _prepared: Preparation | None = None

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: Literal["epoch", "auto", False] | int | datetime.timedelta = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        *,
        max_to_keep: int = KEPT_COMMITS,
        keep_every: int | datetime.timedelta | None = None,
        max_overhead: float = MAX_OVERHEAD,
        strict: bool | Literal["certain"] = False,
        on_nonfinite: Literal["stop"] | Rollback | None = None,
        reread_input: bool = False,
        on_event: Callable[[Event], object] | None = None,
        verbose: int = 1,
        storage_options: Mapping[str, Any] | None = None,
        write_options: WriteOptions | None = None,
        shutdown_options: ShutdownOptions | None = None,
    ) -> None:
        super().__init__()
        enable_for_cluster()
        self.backup_dir, self.verbose = _directory(backup_dir), verbosity("verbose", verbose)
        self.save_freq, self.delete_checkpoint = save_freq, check("delete_checkpoint", delete_checkpoint, bool)
        self._strict = check("strict", strict, bool | Literal["certain"])
        if not isinstance(on_nonfinite, Rollback):
            check("on_nonfinite", on_nonfinite, Literal["stop"] | None, "'stop', a kdc.Rollback or None")
        self._on_nonfinite = on_nonfinite
        self._read_again = check("reread_input", reread_input, bool)
        self._policy = parse_save_freq(save_freq, max_overhead)
        write = group_of("write_options", write_options, WriteOptions)
        rules = parse_retention(max_to_keep, keep_every)
        self._options = EngineOptions(
            double_checkpoint, self.verbose > 0, write, rules, function_or_none("on_event", on_event)
        )
        self.double_checkpoint = double_checkpoint
        self._shutdown = group_of("shutdown_options", shutdown_options, ShutdownOptions)
        self._plan, self._finished = plan_in_force(), 0
        self._root = self._storage = open_to_write(backup_dir, storage_options, write)

    def set_model(self, model: Any) -> None:
        """Chooses the backup to resume from, and becomes the last callback of the list."""
        super().set_model(model)
        running_fit.move_last(self)
        fit = running_fit.find_fit(model)
        if fit is None:
            return  # a CallbackList that is built before fit, or evaluate() and predict()
        self._open(fit, running_fit.callbacks_being_set(self) or [self])

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Claims the directory and restores what was saved between epochs."""
        fit = running_fit.find_fit(self.model)
        if fit is None:
            raise ConfigError(
                "BackupAndRestore works only within model.fit(): pass it in a plain list of callbacks, or in a "
                "CallbackList(..., model=model); in a custom training loop use Checkpointer"
            )
        if self._session is None:
            self._open(fit, list(fit.callback_list.callbacks))
        session = self._require_session()
        self._end_preparation()
        others = [c for c in fit.callback_list.callbacks if c is not self]
        self._cluster.agree(lambda: capture_callbacks(others), "asking callbacks for their state")
        saved = session.pending_backup
        session.train_begin(fit.callback_list.callbacks)
        skipped = session.restored is not None and session.restored.is_skipped
        if session.runs_no_step and saved is not None and not skipped:
            self._say(
                resume_mode.finished_message(saved, fit.epochs, deletes=self.delete_checkpoint and session.is_at_end)
            )
        if session.restored is None and session.pending_backup is None:  # otherwise the verdict says it
            self._advise(int(fit.model.distribute_strategy.num_replicas_in_sync), session.reasons_of_input)
            origin = static.attribute(self.model, "_kdc_origin")
            warn_of_foreign = functools.partial(resume_mode.warn_of_foreign_backup, self._storage, origin)
            self._cluster.on_chief(warn_of_foreign, "looking for other tools' backups")
            self._continue_from_checkpoint(session)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """The epoch loop is running."""
        self._require_session().epoch_begin(epoch)

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Reports that validation runs."""
        if self._session is not None:
            self._session.validation_begin()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Counts the validations of fit."""
        if self._session is not None:
            self._session.validation_end()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Saves, if that is the time."""
        self._require_session().epoch_end(epoch)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Commits the end of training and, if asked to, deletes the backup."""
        session = self._require_session()
        session.train_end()
        if not session.runs_no_step and (summary := session.run.engine.summary):
            self._say(summary)
        self._finished += 1

    def _open(self, fit: running_fit.RunningFit, callbacks: list[Any]) -> None:
        if self._session is not None:
            self._session.close()  # a fit that ended with an exception outside of the training loop
        self._end_preparation()
        shared_writer().finish_earlier()
        self.restored = None
        self._cluster = cluster = Cluster.detect()
        self._check(fit.model, callbacks, cluster)
        cluster.require_same(self._facts(fit, callbacks), "BackupAndRestore")
        name, plan = next_name("backup"), self._require_plan()
        run = Run(
            self._storage,
            cluster,
            name,
            self._policy,
            self._options if plan is None else replace(self._options, rules=Rules()),
            self._shutdown,
            self._say_problem,
            is_alive=running_fit.still_runs(fit.model),
            strict=self._strict,
        )
        run.engine.prepare()
        deletes = self.delete_checkpoint and plan is None  # of a rehearsal, all backups are compared
        options = SessionOptions(
            self, self._announce, self._forget_session, deletes, self._read_again, self._on_nonfinite
        )
        session = FitSession(fit, run, options) if plan is None else RehearsedSession(fit, run, options, plan)
        saved = session.pick()
        self._session = session
        if run.engine.rolled_back_from:
            note_rollback(callbacks, None if saved is None else saved.position)
        if saved is not None:
            self._prepared = prepare_callbacks([c for c in callbacks if c is not self], saved.of(CallbackStates.name))
            for text in findings.sentences(self._prepared.found):
                warn(text)

    def _facts(self, fit: running_fit.RunningFit, callbacks: list[Any]) -> dict[str, str]:
        """Returns what every worker of a cluster must have been given alike."""
        return {
            "the backup directory": self._storage.display(),
            "save_freq": repr(self.save_freq),
            "double_checkpoint": str(self.double_checkpoint),
            "delete_checkpoint": str(self.delete_checkpoint),
            "save_before_preemption": str(self._shutdown.save_before_preemption),
            # Others may well be on the chief alone; those of this package wait for each other.
            "this package's callbacks": ", ".join(sorted(type(c).__name__ for c in callbacks if _is_ours(c))) or "none",
            "the number of batches": str(fit.steps_per_epoch or fit.num_batches),
            "epochs": str(fit.epochs),
        }

    def _require_plan(self) -> Plan | None:
        """The plan in force, as it was when this object was made; it keeps what a real fit() would delete apart."""
        plan = plan_in_force()
        if plan != self._plan:
            raise ConfigError(f"{VARIABLE} has changed since BackupAndRestore was made; nothing is trained")
        if plan is not None and self.delete_checkpoint:
            self._storage = self._root.child(f"fit-{self._finished + 1}")
        return plan

    def _end_preparation(self) -> None:
        if self._prepared is not None:
            self._prepared.after()
            self._prepared = None

    def _check(self, model: Any, callbacks: list[Any], cluster: Cluster) -> None:
        others = [c for c in callbacks if isinstance(c, BackupAndRestore) and c is not self]
        if others:
            raise ConfigError(
                f"fit() has two BackupAndRestore callbacks ({self._storage.display()} and "
                f"{others[0]._storage.display()}), but can restore from only one: remove the other"
            )
        if any(isinstance(c, keras.callbacks.BackupAndRestore) for c in callbacks):
            raise ConfigError(
                "keras.callbacks.BackupAndRestore is in the same list of callbacks: both would restore the model and "
                "set the epoch; remove it"
            )
        if self._on_nonfinite is not None and any(
            isinstance(c, keras.callbacks.TerminateOnNaN) and getattr(c, "raise_error", False) for c in callbacks
        ):
            raise ConfigError(
                "TerminateOnNaN(raise_error=True) ends fit() before on_nonfinite can do anything: remove it"
            )
        cluster.require_connection(model.distribute_strategy)
        reason = strategies.unsupported_model_reason(model.distribute_strategy, model)
        if reason is not None:
            raise ConfigError(reason)
        policy = getattr(model.dtype_policy, "name", "")
        if policy == "mixed_float16" and multi_worker.is_multi_worker(model.distribute_strategy):
            raise ConfigError(
                "mixed_float16 hangs in fit() under MultiWorkerMirroredStrategy (Keras 3); use mixed_bfloat16"
            )

    def _continue_from_checkpoint(self, session: FitSession) -> None:
        origin = static.attribute(self.model, "_kdc_restored_from")
        if origin is None or not origin.epoch:
            return
        session.set_initial_epoch(origin.epoch)
        self._say_problem(
            f"No backup in {self._storage.display()}; continuing at epoch {origin.epoch + 1} with the weights of "
            f"{origin.path}: {origin.verdict} ({'; '.join(origin.notes)})"
        )
        self.model._kdc_restored_from = None

    def _announce(self, restored: Restored) -> None:
        self.restored = restored
        announce(restored, self._say, warns=self._cluster.is_chief)

    def _advise(self, replicas: int, reasons: Sequence[str]) -> None:
        forecast = [f"A resume of this run would not be exact: {reason}" for reason in reasons]
        for advice in [*reproducibility_advice(replicas), *forecast]:
            if is_first(advice):
                self._say(advice)

    def _say(self, text: str, level: int = logging.INFO) -> None:
        say(text, verbose=self.verbose, level=level, after_bar=running_fit.draws_bar(self.model))

    def _say_problem(self, text: str) -> None:
        self._say(text, logging.WARNING)

    def _forget_session(self) -> None:
        self._session = None

    def _require_session(self) -> FitSession:
        if self._session is None:
            raise ConfigError("BackupAndRestore was called outside of fit(): pass it in the callbacks of model.fit()")
        return self._session


def engine_among(callbacks: Iterable[Any]) -> BackupEngine | None:
    """Returns what saves the running fit, by its callbacks; None without a BackupAndRestore."""
    found = (one._session for one in callbacks if isinstance(one, BackupAndRestore))
    return next((session.run.engine for session in found if session is not None), None)


def _is_ours(callback: Any) -> bool:
    return type(callback).__module__.startswith("keras_dist_callbacks.callbacks.")


def _directory(backup_dir: str | os.PathLike[str] | None) -> str:
    message = "Empty `backup_dir` argument passed: name a directory for this run's backups"  # as Keras says it
    return path("backup_dir", "" if backup_dir is None else backup_dir, message)

"""`Checkpointer`: exact backups for training loops of your own."""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from keras_dist_callbacks._compat import variables
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.findings import Finding, sentences
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.snapshot import CommitId, Snapshot, WorkerState
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.base.errors import BackupError, ConfigError
from keras_dist_callbacks.base.process_runs import next_name
from keras_dist_callbacks.base.progress_file import Phase
from keras_dist_callbacks.base.stopwatch import Category, stopwatch
from keras_dist_callbacks.base.terminal import say, warn
from keras_dist_callbacks.base.validation import verbosity
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.coordinated_stop import StopRequest
from keras_dist_callbacks.options import (
    MAX_OVERHEAD,
    ShutdownOptions,
    WriteOptions,
    explains_arguments,
    group_of,
    open_to_write,
)
from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.plan import plan_in_force
from keras_dist_callbacks.run import resume_mode
from keras_dist_callbacks.run.announcing import announce
from keras_dist_callbacks.run.engine.committer import KEPT_COMMITS, EngineOptions
from keras_dist_callbacks.run.engine.events import Event
from keras_dist_callbacks.run.engine.schedule import parse_retention, parse_save_freq
from keras_dist_callbacks.run.run import Run
from keras_dist_callbacks.state.facts.script_facts import changes_of_run, describe_run
from keras_dist_callbacks.state.loop_parts import LoopParts
from keras_dist_callbacks.state.part import moment_of_arrival, snapshot_of
from keras_dist_callbacks.state.progress import StepCounter
from keras_dist_callbacks.state.training_objects import NotCopyable, TrainingObjects, require_loop, user_state

if TYPE_CHECKING:
    import keras

_RESTORE: Category = "unproductive_checkpoint_restore_time"


@dataclass
class _RunningEpoch:
    """What is known of the running epoch.

    Attributes:
        has_stepped: A step was counted.
        is_late: A backup that was due waits for its end.
        is_provisional: A backup within it was taken that a resume may not go on from; its end is saved too.
    """

    has_stepped: bool = False
    is_late: bool = False
    is_provisional: bool = False


@explains_arguments
class Checkpointer(NotCopyable):
    """Saves the complete state of a custom training loop, and restores it exactly.

    The same engine, format and guarantees as `BackupAndRestore`: under `MultiWorkerMirroredStrategy` every worker
    makes the same calls and the chief alone writes. Make it after the model and the optimizer, whose variables must
    exist (`optimizer.build(model.trainable_variables)`).

    Example:
        ```python
        checkpointer = kdc.Checkpointer(
            "backup", model=model, optimizer=optimizer, metrics=[loss], save_freq=100
        )
        with checkpointer:
            checkpointer.restore()
            for epoch in checkpointer.epochs(10):
                for batch in checkpointer.batches(dataset):
                    train_step(batch)
                    checkpointer.step()
        ```

    Args:
        backup_dir: A directory for this run alone: a path or any fsspec URL.
        model: A Keras model.
        optimizer: A Keras optimizer, or None.
        metrics: Keras metrics that accumulate over steps.
        variables: Further variables.
        state: A dict of your own numbers, strings, lists, dicts and arrays; saved as it is then, updated in place by
            `restore`.
        save_freq: As in `BackupAndRestore`: `"epoch"`, a number of batches, `"auto"`, a `datetime.timedelta` or False.
        max_overhead: With `save_freq="auto"`, the share of the training time that backups may cost.
        double_checkpoint: Let two successive backups share no file.
        delete_checkpoint: Delete the backup in `close`.
        max_to_keep: As in `BackupAndRestore`.
        keep_every: As in `BackupAndRestore`.
        strict: True turns a resume that is "not exact" into an error instead of a warning; `"certain"` one that is
            "exact if ..." too, which every resume of a loop of your own is.
        on_event: As in `BackupAndRestore`.
        verbose: As in `BackupAndRestore`: 0 prints nothing.
        storage_options: Passed to the fsspec file system.
        write_options: As in `BackupAndRestore`.
        shutdown_options: As in `BackupAndRestore`: `step()`, or the end of an epoch, saves on all workers and raises
            `Preempted` when one was asked to end. An exception saves where it leaves the `with` block between `step()`
            and the next of `batches()`.

    Attributes:
        epoch: The running epoch, from 0.
        batch: Batches trained in it.
        steps: Batches trained in all.
        state: The dict given, or an empty one.
        restored: What `restore` found, a `Restored`, or None.

    Raises:
        ConfigError: An argument is wrong, or the optimizer has no variables yet.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        *,
        model: keras.Model,
        optimizer: Any = None,
        metrics: Iterable[Any] = (),
        variables: Iterable[Any] = (),
        state: dict[str, Any] | None = None,
        save_freq: Literal["epoch", "auto", False] | int | datetime.timedelta = "epoch",
        max_overhead: float = MAX_OVERHEAD,
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        max_to_keep: int = KEPT_COMMITS,
        keep_every: int | datetime.timedelta | None = None,
        strict: bool | Literal["certain"] = False,
        on_event: Callable[[Event], object] | None = None,
        verbose: int = 1,
        storage_options: Mapping[str, Any] | None = None,
        write_options: WriteOptions | None = None,
        shutdown_options: ShutdownOptions | None = None,
    ) -> None:
        plan = plan_in_force()
        if plan is not None:
            records.note(plan, "loop")
            raise ConfigError("`kdc rehearse` rehearses fit() with BackupAndRestore, and no loop with Checkpointer")
        verbose = verbosity("verbose", verbose)
        write = group_of("write_options", write_options, WriteOptions)
        shutdown = group_of("shutdown_options", shutdown_options, ShutdownOptions)
        self._trained, self.state = TrainingObjects.of(model, optimizer, metrics, variables), user_state(state)
        self._delete = validation.check("delete_checkpoint", delete_checkpoint, bool)
        cluster = Cluster.detect()
        cluster.require_connection(model.distribute_strategy)
        self._storage = open_to_write(validation.path("backup_dir", backup_dir), storage_options, write)
        self._say = functools.partial(say, verbose=verbose > 0)
        this = weakref.ref(self)  # to ask whether it still exists does not keep it
        self._run = Run(
            self._storage,
            cluster,
            next_name("loop"),
            parse_save_freq(save_freq, max_overhead),
            EngineOptions(
                double_checkpoint,
                progress=verbose > 0,
                write=write,
                rules=parse_retention(max_to_keep, keep_every),
                on_event=validation.function_or_none("on_event", on_event),
            ),
            shutdown,
            functools.partial(self._say, level=logging.WARNING),
            is_alive=lambda: this() is not None,
            strict=validation.check("strict", strict, bool | Literal["certain"]),
        )
        self._facts = {"save_freq": repr(save_freq), "save_before_preemption": str(shutdown.save_before_preemption)}
        self._count, self._running = StepCounter(), _RunningEpoch()
        self._told: set[str] = set()
        self._has_stepped = False

    def restore(self) -> bool:
        """Puts everything back to the newest backup, and claims the directory; call it once, before training.

        Returns:
            Whether there was a backup.

        Raises:
            BackupMismatchError: The backup is of another model.
            DamagedBackupError: No backup is intact.
        """
        run = self._run
        if run.is_open:
            raise BackupError("restore() was called already; make a new Checkpointer for another run")
        run.cluster.require_same({"the backup directory": run.engine.directory, **self._facts}, "Checkpointer")
        run.engine.prepare()
        run.reported.begin_fit(run.engine.directory)
        stopwatch().enter("training_prep")
        self._parts = LoopParts.of(self._trained, self.state, run.cluster, self._say_more)
        with stopwatch().during(_RESTORE):
            picked = run.engine.pick(variables.empty)
        run.description = describe_run(self._trained.distribute_strategy, run.cluster.num_workers)
        if picked is not None:
            with stopwatch().during(_RESTORE):
                self._resume(picked[0], require_loop(picked[1]))
        else:
            warn_of_foreign = functools.partial(resume_mode.warn_of_foreign_backup, self._storage, self._trained.origin)
            run.cluster.on_chief(warn_of_foreign, "looking for other tools' backups")
        run.engine.claim(run.description, by="Checkpointer")
        run.is_open = True
        run.shutdown.begin()
        return picked is not None

    def _resume(self, commit: CommitId, backup: WorkerState) -> None:
        run, position = self._run, backup.position
        found = [*changes_of_run(backup.info, run.description), *verdict.found_in(backup)]
        for part in self._parts:
            part.check(backup.of(part.name))
        for part in self._parts:
            found += part.restore(backup.of(part.name), moment_of_arrival(position))
        self._count.resume(position)
        self._count.skip_to(position.batch)
        run.schedule.begin(position.step)
        announce(run.resumed_from(commit, position, found), self._say, warns=run.cluster.is_chief)

    @property
    def epoch(self) -> int:
        """The running epoch, from 0."""
        return self._count.epoch

    @property
    def steps(self) -> int:
        """Batches trained in all."""
        return self._count.step

    @property
    def restored(self) -> Restored | None:
        """What `restore` found; None before that, and without a backup."""
        return self._run.restored

    @property
    def batch(self) -> int:
        """Batches trained in the running epoch; a loop that takes them from elsewhere begins here."""
        if self._run.is_open and not self._running.has_stepped:
            self._parts.input.begins_at_batch = True
        return self._count.batch

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`; saves at each one's end if that is the time.

        What is done in an epoch before its first batch, such as drawing an order or resetting a metric, is done again
        in the epoch that was interrupted: it draws the same random numbers, and what it changes is put back.
        """
        self._require_open()
        self._parts.begin.settle()
        while self.epoch < validation.check("count", count, validation.Count):
            self._run.reported.begin_epoch(self.epoch, self.steps)
            self._parts.begin.begin()
            self._count.enter_epoch(None)
            self._running = running = _RunningEpoch()
            yield self.epoch
            missing = self._parts.input.epoch_ends(self._count.batch)
            self._count.end_epoch(self.epoch)
            self._report_missing_steps(missing)
            self._exit_if_requested(self._run.shutdown.stop.boundary())
            if self._run.schedule.at_epoch_end or running.is_provisional:
                self._run.engine.save(lambda: self._snapshot("between"))
            elif running.is_late:
                self._run.save_when_due(self.steps, lambda: self._snapshot("between"))
            self._running = _RunningEpoch()

    def batches(self, dataset: Iterable[Any], *, made_for_epoch: bool = False) -> Iterator[Any]:
        """The batches that are left of one pass over `dataset`; to be called once in each epoch.

        In the epoch that was interrupted, the batches that were trained are pulled and dropped, and what the loop has
        done before is put back after them. Of past epochs nothing is read, but where a shuffled order is cached.

        Args:
            dataset: The same object in each epoch, such as a `tf.data` or a distributed dataset; `range(n)` for a loop
                of `n` steps without one.
            made_for_epoch: It was made for this epoch alone, so that past epochs have no influence on its order.

        Raises:
            BackupError: The dataset has fewer batches than were trained.
            ConfigError: It reshuffles and is another object than in the last epoch, without `made_for_epoch`.
        """
        remaining = self._rest(dataset, made_for_epoch)
        self._parts.input.none_left = True
        try:
            for batch in remaining:
                self._parts.input.none_left, self._parts.input.in_step = False, True
                yield batch
        finally:
            self._run.reported.enter(Phase.OUTSIDE)  # what follows is the user's, and may take its time
        self._parts.input.in_step = False

    def iterator(self, dataset: Iterable[Any], *, made_for_epoch: bool = False) -> Iterator[Any]:
        """As `batches`, as the dataset's own iterator: for `next()`, and for loops within a `tf.function`.

        Example:
            ```python
            for epoch in checkpointer.epochs(10):
                train_epoch(checkpointer.iterator(dataset))  # a tf.function with `for batch in iterator:`
                checkpointer.step(batches_per_epoch)
            ```

        Nothing of such a loop is saved when an exception leaves it: a step may be in progress.

        Args:
            dataset: As for `batches`.
            made_for_epoch: As for `batches`.

        Raises:
            BackupError: As `batches`.
            ConfigError: As `batches`.
        """
        self._parts.input.unseen_steps = True
        return self._rest(dataset, made_for_epoch)

    def _rest(self, dataset: Iterable[Any], made_for_epoch: bool) -> Iterator[Any]:
        self._require_open()
        made_for_epoch = validation.check("made_for_epoch", made_for_epoch, bool)
        if self._count.batch and not self._count.is_within and not self._parts.input.is_around:
            raise ConfigError(
                "batches() was called again, and no epoch has ended: take the epochs from Checkpointer.epochs(), or "
                "repeat the dataset"
            )
        if not self._count.is_within:
            self._parts.begin.settle()
        resumes = stopwatch().during("data_loading_sync") if self._count.batch else contextlib.nullcontext()
        with resumes:
            remaining = self._parts.input.remaining_batches(dataset, self._count.batch, made_for_epoch=made_for_epoch)
        self._parts.begin.put_back(leave=self._parts.input.keys)
        return remaining

    def step(self, batches: int = 1) -> None:
        """Counts a trained batch, and saves if that is due; call it after each, on every worker.

        Args:
            batches: How many were trained since the last call, such as those of a loop within a `tf.function`; 0 where
                a resumed epoch had none left.

        Raises:
            Preempted: A worker was asked to end; everything is saved.
            BackupError: Too many backups have failed in a row.
            FencedError: A newer run has taken the directory.
        """
        self._require_open()
        batches = validation.check("batches", batches, validation.Count)
        source, cluster = self._parts.input, self._run.cluster
        self._run.reported.step_done(self.steps + batches)
        if not source.in_step:  # of a loop whose batches are seen, it is known what follows: the next step
            self._run.reported.enter(Phase.OUTSIDE)
        self._count.trained(batches)
        source.in_step = False
        if self._count.is_within and not self._running.has_stepped and source.is_around and cluster.num_workers > 1:
            asked = cluster.gather(source.begins_at_batch, "where a loop begins")
            source.begins_at_batch = any(asked)  # one worker alone may look at `batch`
        self._running.has_stepped = True
        if not self._has_stepped:  # what is before the first step is mostly its trace
            self._has_stepped = True
            stopwatch().enter("training")
        source.trained()
        self._parts.begin.note_step()
        self._run.engine.poll()
        if self._count.is_within and not source.can_go_on_at(self._count.batch):
            self._say_late()
            return
        self._exit_if_requested(self._run.shutdown.stop.boundary())
        self._run.save_when_due(self.steps, self._within)

    def _within(self) -> Snapshot:
        """Of a loop that may run the epoch again after a resume, the epoch's end is saved too."""
        around = self._parts.input.is_around and not self._parts.input.begins_at_batch
        self._running.is_provisional = self._count.is_within and around
        return self._snapshot("within")

    def _say_late(self) -> None:
        """What is due waits for the end of the epoch."""
        self._running.is_late = True
        if self._count.batch > 1 and not self._run.schedule.at_epoch_end and self._is_first("late"):
            self._say(
                "Backups are made at the ends of epochs, because a resume would run an interrupted one again from its "
                "start: the loop does not take all steps of an epoch from one call of Checkpointer.batches() "
                "(batches(range(n)) counts n steps), nor begins it at checkpointer.batch"
            )

    def save(self) -> None:
        """Saves now, between two steps, waiting for a backup that is being written."""
        self._require_open()
        self._run.engine.save(self._now)

    def close(self) -> None:
        """Training has ended: commits its end, and deletes the backup if that was asked for."""
        if not self._run.is_open:
            return
        try:
            self._report_missing_steps(self._parts.input.has_trained_uncounted())
            self._exit_if_requested(self._run.shutdown.pending_at_end())
            self._run.is_open = False
            self._run.reported.enter(Phase.END)
            self._run.engine.finish(lambda: self._snapshot("end"), delete=self._delete)
            self._run.shutdown.close()
            self._run.reported.enter(Phase.OUTSIDE)
            if summary := self._run.engine.summary:
                self._say(summary)
            stopwatch().end_lap()
        except BaseException as error:
            self._end_with(error, lambda: None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._end_with(error, self._at_hand)

    def _at_hand(self) -> Snapshot | None:
        """Returns the state after the last step; None where a step may be in progress."""
        if not self._run.is_open:
            return None
        source = self._parts.input
        return None if source.in_step or source.unseen_steps or source.takes_own_batches else self._now()

    def _end_with(self, error: BaseException, at_hand: Callable[[], Snapshot | None]) -> None:
        try:
            uncounted = self._run.is_open and self._parts.input.has_trained_uncounted()
            self._run.shutdown.on_exception(error, None if uncounted else self.steps, at_hand)
        finally:
            self._run.shutdown.close()
            stopwatch().end_lap()

    def _now(self) -> Snapshot:
        return self._snapshot("within" if self._count.batch else "between")

    def _exit_if_requested(self, request: StopRequest | None) -> None:
        if request is not None:
            try:
                self._run.shutdown.save_and_exit(request, self._now())
            finally:
                self._run.is_open = False
                self._run.shutdown.close()

    def _say_more(self, found: list[Finding]) -> None:
        if found and self._run.cluster.is_chief:
            warn("the resume is not exact:", items=sentences(found))

    def _is_first(self, what: str) -> bool:
        """Returns whether this loop says something for the first time."""
        is_first = what not in self._told
        self._told.add(what)
        return is_first

    def _report_missing_steps(self, missing: bool) -> None:
        if not missing or not self._is_first("missing steps"):
            return
        effect = "backups hold no position in the data" if self._run.schedule.at_epoch_end else "no backup is written"
        if self._run.cluster.is_chief:
            warn(
                "the loop trained, but the Checkpointer counted no step, so "
                f"{effect} (save_freq={self._facts['save_freq']}): call checkpointer.step() after each batch, and "
                "take the batches from checkpointer.batches(dataset)"
            )

    def _snapshot(self, kind: Literal["within", "between", "end"]) -> Snapshot:
        self._parts.begin.settle()
        return snapshot_of(self._parts, self._count.position(kind), self._run.earlier)

    def _require_open(self) -> None:
        if not self._run.is_open:
            raise BackupError("call restore() before training, and make a new Checkpointer after close()")

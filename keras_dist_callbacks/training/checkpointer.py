"""`Checkpointer`: exact backups for training loops of your own."""

from __future__ import annotations

import datetime
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from keras_dist_callbacks import static, validation
from keras_dist_callbacks._compat import model_parts, rng, variables
from keras_dist_callbacks._compat.traced_functions import TracedFunctions
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.findings import Finding, sentences
from keras_dist_callbacks.backups.json_values import from_json, to_json
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.snapshot import JSON, Piece, Position, SharedTensor, Snapshot, WorkerState
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.coordinated_stop import StopRequest
from keras_dist_callbacks.engine.committer import EngineOptions
from keras_dist_callbacks.engine.engine import BackupEngine
from keras_dist_callbacks.engine.schedule import Schedule, parse_save_freq
from keras_dist_callbacks.errors import BackupError, ConfigError
from keras_dist_callbacks.inputs.loop import LoopInput
from keras_dist_callbacks.options import (
    MAX_OVERHEAD,
    ShutdownOptions,
    WriteOptions,
    explains_arguments,
    group_of,
    open_to_write,
)
from keras_dist_callbacks.process_runs import next_name
from keras_dist_callbacks.progress_file import Phase, progress_file
from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.plan import plan_in_force
from keras_dist_callbacks.shutdown.controller import ShutdownController
from keras_dist_callbacks.state.environment import Environment
from keras_dist_callbacks.state.part import arrived
from keras_dist_callbacks.terminal import say, warn
from keras_dist_callbacks.training import resume_mode
from keras_dist_callbacks.training.capture import ModelVariables
from keras_dist_callbacks.training.config_diff import capture_rates, changed_rates_of_loop
from keras_dist_callbacks.training.epoch_begin import EpochBegin, update
from keras_dist_callbacks.training.restored import agree_on_all, announce, carried, describe_run, require
from keras_dist_callbacks.training.training_objects import NotCopyable, TrainingObjects, require_loop, user_state
from keras_dist_callbacks.validation import verbosity

if TYPE_CHECKING:
    import keras


@explains_arguments
class Checkpointer(NotCopyable):
    """Saves the complete state of a custom training loop, and restores it exactly.

    The same engine, format and guarantees as `BackupAndRestore`: under `MultiWorkerMirroredStrategy` every worker
    makes the same calls and the chief alone writes. Make it after the model and the optimizer, whose variables must
    exist (`optimizer.build(model.trainable_variables)`).

    Example:
        ```python
        checkpointer = kdc.Checkpointer("backup", model=model, optimizer=optimizer, metrics=[loss], save_freq=100)
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
        strict: True turns a resume that is "not exact" into an error instead of a warning; `"certain"` one that is
            "exact if ..." too, which every resume of a loop of your own is.
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

    epoch = steps = _batch = 0
    restored: Restored | None = None
    _open = _in_step = _unseen_steps = _has_reported = _has_said_late = False
    _in_epoch = _stepped = _is_late = _is_provisional = False  # of the running epoch

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
        strict: bool | Literal["certain"] = False,
        verbose: int = 1,
        storage_options: Mapping[str, Any] | None = None,
        write_options: WriteOptions | None = None,
        shutdown_options: ShutdownOptions | None = None,
    ) -> None:
        _refuse_rehearsal()
        verbose = verbosity("verbose", verbose)
        write = group_of("write_options", write_options, WriteOptions)
        shutdown = group_of("shutdown_options", shutdown_options, ShutdownOptions)
        self._trained, self.state = TrainingObjects.of(model, optimizer, metrics, variables), user_state(state)
        self._delete = validation.check("delete_checkpoint", delete_checkpoint, bool)
        self._strict = validation.check("strict", strict, bool | Literal["certain"])
        self._origin = static.attribute(model, "_kdc_origin")
        self._strategy, self._cluster = model.distribute_strategy, Cluster.detect()
        self._cluster.require_connection(self._strategy)
        self._schedule = Schedule(parse_save_freq(save_freq, max_overhead), self._cluster)
        self._storage = open_to_write(validation.path("backup_dir", backup_dir), storage_options, write)
        name = next_name("loop")
        options = EngineOptions(double_checkpoint, verbose > 0, write)
        self._engine = BackupEngine.open(self._storage, self._cluster, name, options, _is_alive(self))
        self._say = functools.partial(say, verbose=verbose > 0)
        tell = functools.partial(self._say, level=logging.WARNING)
        self._shutdown = ShutdownController(shutdown, self._engine, tell)
        self._environment = Environment()
        self._variables = ModelVariables(self._trained, self._cluster)
        self._earlier: list[Finding] = []
        self._facts = {"save_freq": repr(save_freq), "save_before_preemption": str(shutdown.save_before_preemption)}

    def restore(self) -> bool:
        """Puts everything back to the newest backup, and claims the directory; call it once, before training.

        Returns:
            Whether there was a backup.

        Raises:
            BackupMismatchError: The backup is of another model.
            DamagedBackupError: No backup is intact.
        """
        if self._open:
            raise BackupError("restore() was called already; make a new Checkpointer for another run")
        self._cluster.require_same({"the backup directory": self._storage.display(), **self._facts}, "Checkpointer")
        self._engine.prepare()
        self._reported = progress_file()
        self._reported.begin_fit(self._storage.display())
        self._input = LoopInput(self._trained, self._say_more, is_alone=self._cluster.num_workers == 1)
        self._begin = EpochBegin(self._trained, self.state)
        self._rates = {} if self._trained.optimizer is None else model_parts.fixed_rates(self._trained.optimizer)
        self._traced = TracedFunctions()
        picked = self._engine.pick(variables.empty)
        now = describe_run(self._strategy, self._cluster.num_workers)
        if picked is not None:
            self._apply(picked[0].name, require_loop(picked[1]), now)
        else:
            warn_of_foreign = functools.partial(resume_mode.warn_of_foreign_backup, self._storage, self._origin)
            self._cluster.on_chief(warn_of_foreign, "looking for other tools' backups")
        self._engine.claim(now, by="Checkpointer")
        self._open = True
        self._shutdown.begin()
        return picked is not None

    @property
    def batch(self) -> int:
        """Batches trained in the running epoch; a loop that takes them from elsewhere begins here."""
        if self._open and not self._stepped:
            self._input.begins_at_batch = True
        return self._batch

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`; saves at each one's end if that is the time.

        What is done in an epoch before its first batch, such as drawing an order or resetting a metric, is done again
        in the epoch that was interrupted: it draws the same random numbers, and what it changes is put back.
        """
        self._require_open()
        self._begin.settle()
        while self.epoch < validation.check("count", count, validation.Count):
            self._reported.begin_epoch(self.epoch, self.steps)
            self._begin.begin()
            self._in_epoch, self._stepped = True, False
            yield self.epoch
            steps, self._in_epoch = self._batch, False
            self.epoch, self._batch = self.epoch + 1, 0
            self._report_missing_steps(self._input.epoch_ends(steps))
            self._exit_if_requested(self._shutdown.boundary())
            if self._schedule.at_epoch_end or self._is_provisional:
                self._engine.save(lambda: self._snapshot("between"))
            elif self._is_late:
                self._schedule.save_when_due(self.steps, self._engine, lambda: self._snapshot("between"))
            self._is_late = self._is_provisional = False

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
        yield from self._given(self._rest(dataset, made_for_epoch))

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
        self._unseen_steps = True
        return self._rest(dataset, made_for_epoch)

    def _rest(self, dataset: Iterable[Any], made_for_epoch: bool) -> Iterator[Any]:
        self._require_open()
        made_for_epoch = validation.check("made_for_epoch", made_for_epoch, bool)
        if self._batch and not self._in_epoch and not self._input.is_around:
            raise ConfigError(
                "batches() was called again, and no epoch has ended: take the epochs from Checkpointer.epochs(), or "
                "repeat the dataset"
            )
        if not self._in_epoch:
            self._begin.settle()
        remaining = self._input.remaining_batches(dataset, self._batch, made_for_epoch=made_for_epoch)
        self._begin.put_back(leave=self._input.keys)
        return remaining

    def _given(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._input.none_left = True
        try:
            for batch in batches:
                self._input.none_left, self._in_step = False, True
                yield batch
        finally:
            self._reported.enter(Phase.OUTSIDE)  # what follows is the user's, and may take its time
        self._in_step = False

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
        self._report_step(self.steps + batches)
        self._batch, self.steps, self._in_step = self._batch + batches, self.steps + batches, False
        self._note_step()
        self._engine.poll()
        if self._in_epoch and not self._input.can_go_on_at(self._batch):
            self._say_late()
            return
        self._exit_if_requested(self._shutdown.boundary())
        self._schedule.save_when_due(self.steps, self._engine, self._within)

    def _within(self) -> Snapshot:
        """Of a loop that may run the epoch again after a resume, the epoch's end is saved too."""
        self._is_provisional = self._in_epoch and self._input.is_around and not self._input.begins_at_batch
        return self._snapshot("within")

    def _note_step(self) -> None:
        if self._in_epoch and not self._stepped and self._input.is_around and self._cluster.num_workers > 1:
            asked = self._cluster.gather(self._input.begins_at_batch, "where a loop begins")
            self._input.begins_at_batch = any(asked)  # one worker alone may look at `batch`
        self._stepped = True
        self._input.trained()
        self._begin.note_step()

    def _say_late(self) -> None:
        """What is due waits for the end of the epoch."""
        self._is_late = True
        if self._batch > 1 and not self._has_said_late and not self._schedule.at_epoch_end:
            self._has_said_late = True
            self._say(
                "Backups are made at the ends of epochs, because a resume would run an interrupted one again from its "
                "start: the loop does not take all steps of an epoch from one call of Checkpointer.batches() "
                "(batches(range(n)) counts n steps), nor begins it at checkpointer.batch"
            )

    def _report_step(self, steps: int) -> None:
        """Of a loop whose batches are seen, it is known what follows: the next step."""
        self._reported.step_done(steps)
        if not self._in_step:
            self._reported.enter(Phase.OUTSIDE)

    def save(self) -> None:
        """Saves now, between two steps, waiting for a backup that is being written."""
        self._require_open()
        self._engine.save(self._now)

    def close(self) -> None:
        """Training has ended: commits its end, and deletes the backup if that was asked for."""
        if not self._open:
            return
        try:
            self._report_missing_steps(self._input.has_trained_uncounted())
            self._exit_if_requested(self._shutdown.pending_at_end())
            self._open = False
            self._reported.enter(Phase.END)
            self._engine.finish(lambda: self._snapshot("end"), delete=self._delete)
            self._shutdown.close()
            self._reported.enter(Phase.OUTSIDE)
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
        unknown = not self._open or self._in_step or self._unseen_steps or self._input.takes_own_batches
        return None if unknown else self._now()

    def _end_with(self, error: BaseException, at_hand: Callable[[], Snapshot | None]) -> None:
        try:
            uncounted = self._open and self._input.has_trained_uncounted()
            self._shutdown.on_exception(error, None if uncounted else self.steps, at_hand)
        finally:
            self._shutdown.close()

    def _now(self) -> Snapshot:
        return self._snapshot("within" if self._batch else "between")

    def _exit_if_requested(self, request: StopRequest | None) -> None:
        if request is not None:
            try:
                self._shutdown.save_and_exit(request, self._now())
            finally:
                self._open = False
                self._shutdown.close()

    def _apply(self, commit: str, saved: WorkerState, now: Mapping[str, JSON]) -> None:
        found = [*verdict.changes(saved, now), *verdict.found_in(saved)]
        position, listed, user = saved.position, saved.of(ModelVariables.name), saved.of("loop").mine
        here = arrived(position)
        found += self._environment.restore(saved.of(Environment.name), here)
        found += self._begin.restore(saved, lambda: self._variables.restore(listed, here))
        found += changed_rates_of_loop(saved.of("facts").mine.tensors, self._rates, self._trained.optimizer)
        update(self.state, from_json(user.state["user"], user.tensors))
        self.epoch, self._batch, self.steps = position.epoch, position.batch, position.step
        self._schedule.begin(position.step)
        self._input.resume(saved)
        self.restored = agree_on_all(self._storage.display(), commit, position, found, self._cluster)
        require(self.restored, self._strict)
        self._earlier = carried(self.restored)
        announce(self.restored, self._say, warns=self._cluster.is_chief)

    def _say_more(self, found: list[Finding]) -> None:
        if found and self._cluster.is_chief:
            warn("the resume is not exact: " + "; ".join(sentences(found)))

    def _report_missing_steps(self, missing: bool) -> None:
        if not missing or self._has_reported:
            return
        self._has_reported = True
        effect = "backups hold no position in the data" if self._schedule.at_epoch_end else "no backup is written"
        if self._cluster.is_chief:
            warn(
                "the loop trained, but the Checkpointer counted no step, so "
                f"{effect} (save_freq={self._facts['save_freq']}): call checkpointer.step() after each batch, and "
                "take the batches from checkpointer.batches(dataset)"
            )

    def _snapshot(self, kind: Any) -> Snapshot:
        self._begin.settle()
        position = Position(kind, self.epoch, self._batch if kind == "within" else 0, self.steps)
        arrays: dict[str, SharedTensor] = {}
        user = to_json(self.state, "user", arrays)
        pieces = {
            "input": self._input.capture(position),
            "random_at_epoch": Piece({"entered": self._input.rng_at_epoch, **self._begin.capture()}),
            ModelVariables.name: self._variables.capture(position),
            "step": Piece(findings=tuple(self._found_in_functions())),
            "loop": Piece({"user": user}, arrays),
            Environment.name: self._environment.capture(position),
            "facts": Piece(tensors=capture_rates(self._rates)),
            "earlier": Piece(findings=tuple(self._earlier)),
            "random": Piece({"now": rng.capture()}),
        }
        return Snapshot.of(position, pieces)

    def _found_in_functions(self) -> list[Finding]:
        """The train step is not known, but functions are that train what was given to be trained."""
        found = [Finding("loop-unseeded" if rng.global_seed() is None else "loop")]
        for function in self._traced.random(variables.variable_set(self._trained).keys):
            code, subject = ("step-random", "") if function.trains else ("function-random", function.name)
            found += [Finding(code, subject, (label,)) for label in function.operations]
        return found

    def _require_open(self) -> None:
        if not self._open:
            raise BackupError("call restore() before training, and make a new Checkpointer after close()")


def _is_alive(owner: Any) -> Callable[[], bool]:
    """Returns whether an object still exists; asking for it does not keep it."""
    known = weakref.ref(owner)
    return lambda: known() is not None


def _refuse_rehearsal() -> None:
    plan = plan_in_force()
    if plan is not None:
        records.note(plan, "loop")
        raise ConfigError("`kdc rehearse` rehearses fit() with BackupAndRestore, and no loop with Checkpointer")

"""One running fit(): follows its events, saves when that is due, and leaves early when asked to."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keras_dist_callbacks._compat import building, keras_callbacks, model_parts, running_fit, variables
from keras_dist_callbacks._compat.fit_hooks import control
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.findings import Finding, sentences
from keras_dist_callbacks.backups.restored import Restored
from keras_dist_callbacks.backups.snapshot import FitPlace, Snapshot, WorkerState
from keras_dist_callbacks.base.errors import BackupError, ConfigError, Diverged
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.base.process_runs import Ended, ProcessRuns, fits_in, fits_of, reference
from keras_dist_callbacks.base.progress_file import Phase
from keras_dist_callbacks.base.stopwatch import Category, stopwatch
from keras_dist_callbacks.base.terminal import warn
from keras_dist_callbacks.cluster.coordinated_stop import StopRequest
from keras_dist_callbacks.options import Rollback
from keras_dist_callbacks.run import divergence, resume_mode
from keras_dist_callbacks.run.engine.background import gc_paused
from keras_dist_callbacks.run.fit_restore import FitRestore, Mode, Resume, is_built_later
from keras_dist_callbacks.run.run import Run
from keras_dist_callbacks.run.shutdown.controller import DIVERGED, STOPPED
from keras_dist_callbacks.state.compiled_model import Built, NotBuiltError, build
from keras_dist_callbacks.state.facts.script_facts import describe_fit
from keras_dist_callbacks.state.fit_parts import FitParts
from keras_dist_callbacks.state.inputs import order
from keras_dist_callbacks.state.missed_hooks import missed_hooks
from keras_dist_callbacks.state.part import snapshot_of
from keras_dist_callbacks.state.training_objects import require_fit

_RESTORE: Category = "unproductive_checkpoint_restore_time"


@dataclass(frozen=True)
class SessionOptions:
    """What a callback asks of its session.

    Attributes:
        owner: The callback itself, which is not part of the state.
        announce: Called with what was restored.
        closed: Called when the session holds nothing of the fit any more.
        deletes: Whether the backup is deleted at the end.
        read_again: Whether past epochs are read again instead of creating their iterators only.
        on_nonfinite: What to do where the loss is not finite; None: nothing.
    """

    owner: Any
    announce: Callable[[Restored], None]
    closed: Callable[[], None]
    deletes: bool = True
    read_again: bool = False
    on_nonfinite: Literal["stop"] | Rollback | None = None


class FitSession:
    """Controls one running fit(); implements `FitHooks`.

    Args:
        fit: The running fit.
        run: Where it is saved, when, and what ends it early.
        options: What the callback asks for.

    Attributes:
        run: As given.
    """

    def __init__(self, fit: running_fit.RunningFit, run: Run, options: SessionOptions) -> None:
        fits_of(fit.model).asked = fit.initial_epoch, fit.epochs
        run.reported.begin_fit(run.engine.directory)
        stopwatch().enter("training_prep")
        self._fit, self.run, self._options = fit, run, options
        self._runs = fits_in(run.engine.directory)
        last = self._runs.last
        number = last.number + 1
        first = last.first if last.model() is fit.model else number
        self._this_fit = FitPlace(number, first, int(fit.epochs), fit.initial_epoch)
        self._resume: Resume | None = None
        self._request: StopRequest | None = None  # to leave, as soon as the step is over
        self._trained: Snapshot | None = None  # after an epoch's last step, until the next one begins
        self._stops = self._only_skipped = self._has_stepped = False
        self._undo: Callable[[], None] | None = None

    @property
    def reasons_of_input(self) -> list[str]:
        """Why the input of this run cannot be exact, a sentence each."""
        return sentences([*self._parts.input.reasons, *self._parts.input.order.unseeded])

    @property
    def restored(self) -> Restored | None:
        """What was restored; None until that is known."""
        return self.run.restored

    @property
    def pending_backup(self) -> WorkerState | None:
        """The backup that was found and is not restored yet."""
        return self._resume.saved if self._resume is not None and self._resume.is_pending else None

    @property
    def runs_no_step(self) -> bool:
        """Whether the backup leaves this fit nothing to do: no step is run, and nothing is written."""
        return self._resume is not None and not self._resume.runs_steps

    @property
    def is_at_end(self) -> bool:
        """Whether the backup is the end of the training that this fit asks for, the same on every worker."""
        ended = self._resume is not None and self._restore.has_ended
        return ended and self.restored is not None and self.restored.verdict != "not exact"

    # --- events of fit, in their order: from the callback `pick`, `train_begin`, `epoch_begin`, `validation_begin` and
    # `_end`, `epoch_end` and `train_end`; from between the steps (`FitHooks`) all others

    def pick(self) -> WorkerState | None:
        """Chooses and reads the newest backup, before any callback's `on_train_begin`."""
        with stopwatch().during(_RESTORE):
            picked = self.run.engine.pick(variables.empty)
        if picked is not None:
            self._resume = Resume(picked[0], require_fit(picked[1]))
        return self.pending_backup

    def train_begin(self, callbacks: Sequence[Any]) -> None:
        """After every other callback's `on_train_begin`: claims the directory and restores."""
        others = [c for c in callbacks if c is not self._options.owner]
        option = self._options.on_nonfinite
        known = divergence.from_json(self.run.engine.divergence)
        rollback = option if isinstance(option, Rollback) else None
        self._watch = divergence.LossWatch(rollback, known, self._fit.steps_per_execution)
        self._parts = parts = FitParts.of(
            self._fit,
            others,
            self.run.cluster,
            self.run.engine.directory,
            self._this_fit,
            self._runs,
            read_again=self._options.read_again,
            shown=self.run.engine.shows_progress,
        )
        self._count = parts.progress.count
        if self._resume is not None and not is_built_later(self._fit, self._resume.saved):
            self._build(self._resume.saved)
        if self._resume is None and known is not None and known.windows:
            build(self._fit, Built((), (), ()))  # Keras asks for the metrics of an epoch, be all of it skipped
        self.run.description = describe_fit(self._fit, self.run.cluster.num_workers)
        if self._resume is not None:
            self._restore = FitRestore(
                self._resume, self._fit, parts, self._this_fit, self._runs, self.run.cluster, self.run.schedule
            )
            self._restore.decide(self.run.description["seed"], deletes=self._options.deletes)
            if self._resume.mode is Mode.COMPLETE and self.run.engine.not_finite:
                raise Diverged(resume_mode.diverged_message(self._resume.saved, self.run.engine.directory))
        self._fit.copy_batches()
        self._make_order_repeatable()
        if self._resume is None:
            resume_mode.warn_of_shared_directory(
                self.run.engine.directory, self._this_fit, deletes=self._options.deletes
            )
            parts.input.passes.begin_without_backup()
        if not self.runs_no_step:
            self.run.engine.claim(self.run.description)
        self._undo = control(self._fit, self)
        if self._resume is not None:
            self._begin_restore()
            if self._resume.mode is Mode.CONTINUE:
                self.run.earlier = verdict.found_in(self._resume.saved, verdict.LASTING)
            if not self._resume.is_pending:
                self._report(self._resume)
        if not self.runs_no_step:
            self.run.shutdown.begin()

    def _begin_restore(self) -> None:
        try:
            with stopwatch().during(_RESTORE):
                self._restore.begin()
        except BaseException as error:  # fit's own handler sees none of what happens before its first epoch
            self.on_exception(error, in_step=False)
            raise

    def _make_order_repeatable(self) -> None:
        """The seed of all orders that the global one does not fix is drawn once for a directory, then kept."""
        if self.runs_no_step:
            return
        orders, saved = self._parts.input.order, None if self._resume is None else self._resume.saved.of("input")
        known = (order.seed_of(saved), self._runs.seed, secrets.randbits(63))
        own = next(seed for seed in known if seed is not None) if orders.needs_seed else None
        proposed = self.run.cluster.gather(own, "the seed of orders", kind=int | None)
        agreed = next((seed for seed in proposed if seed is not None), None)
        if agreed is not None:  # a worker may need none
            self._runs.seed = agreed
        if agreed is not None and orders.needs_seed:
            orders.begin(agreed, self._this_fit.number)

    def _build(self, saved: WorkerState) -> None:
        try:
            build(self._fit, Built.of(saved))
            self._note_trace()
        except NotBuiltError as error:
            warn(f"the resume is not exact: {Finding('not-resumed', detail=(str(error),)).message}")
            self._resume = None

    def set_initial_epoch(self, epoch: int) -> None:
        """Without a backup: begins at the epoch after those that a checkpoint says are finished."""
        self._fit.set_initial_epoch(epoch)

    def before_epoch(self) -> bool:
        """Before any `on_epoch_begin`, which may draw: in the interrupted epoch, as it did then; whether this is it."""
        if self.pending_backup is None:
            self._parts.random_at_epoch.note_begun()
            return False
        self._restore.begin_epoch()
        return True  # `enter_epoch` says from where training resumes

    def epoch_begin(self, epoch: int) -> None:
        """The epoch loop is running."""
        self._fit.clear_initial_epoch()
        saved = self.pending_backup
        if saved is not None and epoch != saved.position.epoch:
            raise ConfigError(
                f"the backup is from epoch {saved.position.epoch}, but fit() begins at epoch {epoch}: give fit() "
                "the same initial_epoch as before (the backup is unchanged)"
            )
        self._parts.input.begin_epoch(epoch)
        self._count.begin_epoch(epoch)
        self.run.reported.begin_epoch(epoch, self._count.step)

    def enter_epoch(self, steps: Iterator[tuple[int, int, Any]]) -> bool:
        """Before the first batch: drops what was consumed and restores, if this is the interrupted epoch.

        Returns:
            Whether steps follow: the run may have been told to stop before it was interrupted.
        """
        self._trained = None
        self._count.enter_epoch(None if self._fit.steps_per_epoch else self._fit.known_length)
        if self._count.epoch and not self._watch.epoch_before:  # else it has ended in this process
            self._watch.epoch_before = self._fit.steps_per_epoch or self._fit.known_length or 0
        self._parts.input.note()
        self._parts.input_objects.note_epoch(is_read=True)
        if self._resume is None or not self._resume.is_pending:
            self._parts.input.enter_epoch(self._count.epoch, resuming=False)
            self._parts.random_at_epoch.note_entered()
            if self._has_stepped:
                stopwatch().enter("training")
            return True
        with stopwatch().during(_RESTORE):
            self._restore.enter_epoch(steps)
        self._report(self._resume)
        saved = self._resume.saved
        stops = any(self.run.cluster.gather(bool(saved.state["progress/stop_training"]), "stop within an epoch"))
        self._fit.model.stop_training = stops
        return not stops

    def skips(self, first: int, last: int) -> bool:
        """Whether a step is read past, because its batches led to a loss that was not finite."""
        if not self._watch.windows:  # as nearly always: this is asked before each step
            return False
        is_skipped = self._watch.skips(self._count.epoch, first, last)
        if is_skipped:
            self._count.skip_to(last + 1)
            self._only_skipped = self._only_skipped or first == 0
        return is_skipped

    def step_done(self, end_step: int, logs: Any) -> None:
        """A step is complete; its callbacks were not called yet."""
        self._count.trained_to(end_step)
        self._only_skipped = False
        if self._options.on_nonfinite is not None and self._watch.is_due(self._count.step):
            loss = running_fit.value_of_loss(logs)
            if (note := self._watch.look(loss, self._count.step)) and self.run.cluster.is_chief:
                warn(note)
        self.run.reported.step_done(self._count.step)
        if not self._has_stepped:  # what the first step takes is mostly its trace
            self._has_stepped = True
            stopwatch().enter("training")
        self._note_trace()

    def _note_trace(self) -> None:
        """The step was traced, or may have been, and no callback was called yet."""
        self._parts.compile.note_built()
        self._parts.objects.note_trace()

    def batch_end(self) -> None:
        """After a step and all callbacks; fit looks at `stop_training` next."""
        model, why = self._fit.model, self._watch.why
        alone = self.run.cluster.num_workers > 1 and model.stop_training and not self._stops
        if alone:
            model.stop_training = False  # until all workers do it after the same step
        kind = DIVERGED if why else STOPPED if alone else None
        self._act(self.run.shutdown.stop.boundary(kind, why or "stop_training"))
        if alone and self._request is not None:
            model.stop_training = True  # for the run that continues

    def after_step(self) -> None:
        """Between two steps, after all callbacks: saves if that is due, or leaves."""
        self._exit_if_requested(self._within)
        self.run.engine.poll()
        self.run.save_when_due(self._count.step, self._within)

    def epoch_trained(self) -> None:
        """After an epoch's last step: what follows may be interrupted, and is then done again from its start."""
        if self._only_skipped:  # Keras would report a loss of 0.0, which would be the best
            running_fit.current_logs(self._fit.model).clear()
            self._only_skipped = False
        self._count.leave_epoch()
        self._watch.epoch_before = self._count.batch
        self.run.reported.enter(Phase.EPOCH_END)
        stopwatch().enter("other")
        self._runs.has_trained = True
        self._parts.input_objects.note_read()
        self._parts.input.passes.epoch_trained(self._count.epoch, self._count.batch)
        asked = self.run.shutdown.options
        if asked.save_before_preemption or asked.save_on_exception:
            self._trained = self._within()
        self._exit_if_requested(self._after_last_step)

    def test_batch_end(self) -> None:
        """After a step of validation within fit."""
        self._act(self.run.shutdown.stop.boundary())
        self._exit_if_requested(self._after_last_step)

    def validation_begin(self) -> None:
        """A validation within fit begins."""
        self.run.reported.enter(Phase.VALIDATION)
        stopwatch().enter("custom_badput_events/eval_step")
        self._parts.input.validation_begins()

    def validation_end(self) -> None:
        """A validation within fit is complete."""
        self.run.reported.enter(Phase.EPOCH_END)
        stopwatch().enter("other")
        self._parts.input.validations += 1

    def epoch_end(self, epoch: int) -> None:
        """After every other callback's `on_epoch_end`."""
        self._count.end_epoch(epoch)
        self.run.engine.poll()
        model = self._fit.model
        if self.run.cluster.num_workers > 1:
            model.stop_training = any(self.run.cluster.gather(bool(model.stop_training), "stop at an epoch's end"))
        self._act(self.run.shutdown.stop.boundary())
        self._exit_if_requested(lambda: self._capture("between"))
        if self.run.schedule.at_epoch_end:
            self.run.engine.save(lambda: self._capture("between"))
            self._trained = None

    def train_end(self) -> None:
        """After every other callback's `on_train_end`."""
        delete = self._options.deletes
        self.run.reported.enter(Phase.END)
        self._fit.clear_initial_epoch()
        self._runs.given[self._given] += 1
        number, first = self._this_fit.number, self._this_fit.first
        self._runs.last = Ended(number, first, reference(self._fit.model), reference(self._fit.input))
        if self._resume is not None and self.runs_no_step:
            if delete and self.is_at_end:
                self.run.engine.claim(self.run.description)
                self.run.engine.delete_finished(self._resume.commit.name)
            self.run.cluster.leave("end of fit")
            self.close()
            return
        if self.pending_backup is not None:
            raise BackupError(
                f"fit() ended before it reached {self.pending_backup.position}, where the backup is: give it the same "
                "data and callbacks as before (the backup is unchanged)"
            )
        self._trained = None
        self._request = self.run.shutdown.pending_at_end()
        self._exit_if_requested(lambda: self._capture("end"))
        self.run.engine.finish(lambda: self._capture("end"), delete=delete)
        keras_callbacks.note_end(self._fit.model)
        if not delete:
            self._runs.left = self._runs.last._replace(generation=self.run.engine.generation)
        self.close()

    def on_exception(self, error: BaseException, *, in_step: bool) -> None:
        """An exception leaves fit: what is known of training is committed before it is raised on."""
        known = not in_step and self.pending_backup is None and not self.runs_no_step
        try:
            step = self._count.step
            self.run.shutdown.on_exception(error, step, lambda: self._at_exception(error) if known else None)
        finally:
            self.close()

    # --- leaving early

    def _act(self, request: StopRequest | None) -> None:
        if request is not None and request.kind == STOPPED:
            self._stops = self._fit.model.stop_training = True
        elif request is not None:
            self._request = request

    def _exit_if_requested(self, snapshot: Callable[[], Snapshot]) -> None:
        request = self._request
        if request is None:
            return
        if request.kind == DIVERGED and self._watch.option is not None:
            position = self._count.position("within")
            if (optimizer := self._fit.model.optimizer) is not None:
                self._watch.accumulation = model_parts.accumulation(optimizer)
            self.run.engine.chronicle.end = DIVERGED
            journal = self.run.engine.chronicle.now(position.step)
            go_back = functools.partial(divergence.go_back, watch=self._watch, position=position, journal=journal)
            self.run.shutdown.exit_after(request, position, lambda: self.run.engine.go_back(go_back))
        self.run.shutdown.save_and_exit(request, snapshot())

    def _within(self) -> Snapshot:
        return self._capture("within")

    def _after_last_step(self) -> Snapshot:
        return self._trained or self._within()

    def _at_exception(self, error: BaseException) -> Snapshot | None:
        # Before the first step of an epoch, its hooks have changed things.
        is_trained = self._count.is_within and self._count.batch > 0
        if self._trained is not None or not is_trained or building.unbuilt_layers(self._fit.model):
            return self._trained
        states = self._parts.callbacks
        states.missed = missed_hooks(error, states.all)
        return self._capture("within")

    def close(self) -> None:
        """Takes every wrapper away, and gives signals back."""
        self.run.reported.enter(Phase.OUTSIDE)
        stopwatch().end_lap()
        self.run.shutdown.close()
        variables.forget(self._fit.model)
        self._fit.clear_initial_epoch()
        if self._undo is not None:
            self._parts.input.close()
            self._undo()
            self._undo = None
        self._options.closed()

    # --- snapshots and reports

    def _report(self, resume: Resume) -> None:
        position, is_skipped = resume.saved.position, resume.mode is Mode.SKIP
        found, again = self._restore.findings(self.run.description), shared(ProcessRuns).findings
        found += [Finding("skipped-batches", detail=(str(window),)) for window in self._watch.windows]
        restored = self.run.resumed_from(resume.commit, position, found, is_skipped=is_skipped, without=again)
        self.run.reported.begin_epoch(position.epoch, position.step)
        self._options.announce(restored)

    @property
    def _given(self) -> str:
        """What is equal for two fits that were given the same, the seed included."""
        fit, given = self._this_fit, self._parts.facts.digest
        return f"{given} {self.run.description['seed']} {fit.initial_epoch} {fit.epochs}"

    def _capture(self, kind: Literal["within", "between", "end"]) -> Snapshot:
        with gc_paused():
            self._this_fit.repeats = self._runs.given[self._given]
            return snapshot_of(self._parts, self._count.position(kind), self.run.earlier)

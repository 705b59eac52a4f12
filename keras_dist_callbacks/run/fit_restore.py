"""Restores a backup into a running fit(): before its first epoch, or within the interrupted one.

In the order of calls: `decide` (whether the backup is this fit's, and what it means); `begin` (the epoch that fit
begins with; all parts check; those that do not belong to the interrupted epoch restore); `begin_epoch` (random states,
and what hooks of the user's may read in `on_epoch_begin`: all of that is put back once more later); `enter_epoch` (the
batches that were trained are read and dropped, then all other parts restore); `findings` (what the verdict is made of).
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from keras_dist_callbacks._compat import building, replay, running_fit
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.findings import FINISHED, Finding, sentences
from keras_dist_callbacks.backups.snapshot import JSON, CommitId, FitPlace, WorkerState
from keras_dist_callbacks.base.errors import BackupError, BackupMismatchError
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.base.process_runs import FitsIn, ProcessRuns, fits_of
from keras_dist_callbacks.base.stopwatch import stopwatch
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run import load_backup, resume_mode
from keras_dist_callbacks.run.engine.schedule import Schedule
from keras_dist_callbacks.state.compiled_model import Built, build
from keras_dist_callbacks.state.facts.script_facts import changes_of_run
from keras_dist_callbacks.state.fit_parts import FitParts
from keras_dist_callbacks.state.part import Moment, Part


class Mode(enum.Enum):
    """What a backup means for a fit.

    Attributes:
        SKIP: A later fit of the same model saved it: the weights are restored, no step is run, and nothing is written.
        COMPLETE: It leaves the fit nothing to do: it is restored, and nothing is written.
        CONTINUE: A fit of this process ended there, with the same model: nothing is restored.
        RESTORE: It is restored, and training resumes.
    """

    SKIP = enum.auto()
    COMPLETE = enum.auto()
    CONTINUE = enum.auto()
    RESTORE = enum.auto()


@dataclass
class Resume:
    """The backup that a fit resumes from.

    Attributes:
        commit: Its id.
        saved: Its content.
        mode: What it means for this fit; None until that is decided.
        is_pending: It is not restored yet.
    """

    commit: CommitId
    saved: WorkerState
    mode: Mode | None = None
    is_pending: bool = True

    @property
    def runs_steps(self) -> bool:
        """Whether the fit has steps to run, as far as it is known."""
        return self.mode not in (Mode.SKIP, Mode.COMPLETE)


def is_built_later(fit: running_fit.RunningFit, saved: WorkerState) -> bool:
    """Returns whether the interrupted epoch is the first one, in which a model that is not built is traced again."""
    position, first, model = saved.position, saved.state.get("input/first_epoch"), fit.model
    is_first = position.kind == "within" and position.epoch == first
    return is_first and not model.run_eagerly and building.has_unbuilt_layers(model)


class FitRestore:
    """Restores one backup into one fit, on every worker.

    Args:
        resume: The backup.
        fit: The running fit.
        parts: Those of its state.
        this_fit: What distinguishes it from other fits in the same directory.
        runs: What this process knows of the fits in the directory.
        cluster: The workers.
        schedule: When to save; it begins at the restored step.
    """

    def __init__(
        self,
        resume: Resume,
        fit: running_fit.RunningFit,
        parts: FitParts,
        this_fit: FitPlace,
        runs: FitsIn,
        cluster: Cluster,
        schedule: Schedule,
    ) -> None:
        self._resume = resume
        self._fit, self._parts = fit, parts
        self._this_fit, self._runs = this_fit, runs
        self._cluster = cluster
        self._schedule = schedule
        self._found: list[Finding] = []

    def decide(self, seed: JSON, *, deletes: bool) -> None:
        """Decides whether the backup is this fit's, and what it means for it, the same on every worker.

        What distinguishes the fit from others in this directory becomes what it was in the interrupted process.

        Args:
            seed: The global seed.
            deletes: Whether the fit deletes its backup at its end, for the message.

        Raises:
            BackupMismatchError: It is that of another fit. Nothing was changed.
        """
        resume, saved, fit, cluster = self._resume, self._resume.saved, self._this_fit, self._cluster
        leaves_no_step, left = resume_mode.leaves_no_step(saved, fit.epochs), self._runs.left
        is_left = left.generation == resume.commit.generation  # by an earlier fit of this process
        is_of_model = left.model() is self._fit.model
        # Whether a fit of this process with another model has ended with it, and this fit has nothing to add.
        by_other_model = is_left and not is_of_model and leaves_no_step
        matched = cluster.on_chief(  # of workers with rows of their own, the chief's decide
            lambda: self._match(seed, leaves_no_step, by_other_model), "finding the fit of a backup"
        )
        number, first, why = cluster.broadcast(matched, "the fit of a backup", kind=tuple[int, int, tuple[str, ...]])
        if why:
            message = resume_mode.another_fit_message(self._runs.directory, saved, why, deletes=deletes)
            raise BackupMismatchError(message)
        fit.number, fit.first = number, first
        is_of_later = saved.fit.number > number  # the script comes to it only after this one
        if leaves_no_step:
            # A later fit may have had another model, such as one of which more layers are trained.
            fits = not is_of_later or all(cluster.gather(self._fits(), "whether a model fits to a backup"))
            resume.mode = Mode.COMPLETE if fits else Mode.SKIP
        elif is_of_later:
            resume.mode = Mode.SKIP
        else:  # maybe with a model that the script builds again for each fit
            fit.first = min(first, saved.fit.first)
            continues = is_left and is_of_model and saved.position.kind == "end"
            all_continue = all(cluster.gather(continues, "whether a run continues in this process"))
            resume.mode = Mode.CONTINUE if all_continue else Mode.RESTORE

    def _match(self, seed: JSON, leaves_no_step: bool, by_other_model: bool) -> tuple[int, int, tuple[str, ...]]:
        """Finds out which fit of the interrupted process this one is, and whether the backup can serve it.

        Layers are not compared here: variables that do not fit are an error wherever they are assigned.

        Returns:
            The fit's number then, the number of the first fit of its model, and what shows that the backup is that of
            another fit: nothing, or a name of `WHY_OF_ANOTHER` and what fills its sentence.
        """
        saved, fit, facts = self._resume.saved, self._this_fit, self._parts.facts
        before, described, was = saved.fit, saved.of(facts.name), saved.info.get("seed")
        number, first = fit.number, fit.first
        is_same = facts.is_same(described) and was == seed
        if (before.epochs, before.initial_epoch) == (fit.epochs, fit.initial_epoch):
            is_the_only_one = is_same and not before.repeats
            if is_the_only_one or before.initial_epoch > 0:  # the script skips those that are finished
                number, first = before.number, before.first
        keeps_rows = saved.info.get("workers") == self._cluster.num_workers
        why: tuple[str, ...] = ()
        if number < before.first:
            why = "later-model", str(before.number + 1), str(number + 1)
        elif by_other_model:
            why = ("other-model",)
        elif not before.first == before.number <= number or not (number == first or leaves_no_step):
            pass  # in a row of fits of one model, the number decides
        elif None not in (was, seed) and was != seed:
            why = "seed", str(was), str(seed)
        elif keeps_rows and facts.has_other_rows(described):
            why = ("rows",)
        return number, first, why

    def _fits(self) -> bool:
        try:
            self._check()
        except BackupMismatchError:
            return False
        return True

    @property
    def has_ended(self) -> bool:
        """Whether so many epochs were trained, or the run had stopped early."""
        return resume_mode.has_ended(self._resume.saved, self._this_fit.epochs)

    def begin(self) -> None:
        """Before the first epoch: restores what does not belong to an interrupted epoch."""
        self._agree(self._begin, "restoring")

    def enter_epoch(self, steps: Iterator[tuple[int, int, Any]]) -> None:
        """In the interrupted epoch, before its first batch: drops what was trained, and restores the rest."""
        self._resume.is_pending = False
        self._agree(lambda: self._drop_trained_batches(steps), "restoring within an epoch")

    def findings(self, description: dict[str, JSON]) -> list[Finding]:
        """Returns why this resume is not exact, and on what it depends.

        Args:
            description: Of this run.
        """
        saved, mode, facts = self._resume.saved, self._resume.mode, self._parts.facts
        if mode is Mode.CONTINUE:
            return []
        if mode is Mode.SKIP:
            shared(ProcessRuns).findings[Finding("results-of-skipped")] = None
            numbers = (str(fit.number + 1) for fit in (saved.fit, self._this_fit))
            return [Finding("skipped", detail=tuple(numbers))]
        if mode is Mode.COMPLETE:
            changes = facts.of_another_training if self.has_ended else facts.compile_changes
            differing = changes(saved.of(facts.name))
            return [*resume_mode.of_finished(self._runs, saved, differing), *self._found]
        changed = changes_of_run(saved.info, description)
        if saved.position.kind == "end" and saved.state.get("progress/is_finalized"):
            changed.append(Finding("finished-averages"))
        earlier = shared(ProcessRuns).findings
        return [*self._parts.input.reasons, *changed, *verdict.found_in(saved), *self._found, *earlier]

    def _agree(self, act: Callable[[], list[Finding]], what: str) -> None:
        """Restores on every worker; an error includes what is known to have changed since the backup."""

        def restore() -> list[Finding]:
            if self._resume.mode in (Mode.CONTINUE, Mode.SKIP):
                return act()
            facts = self._parts.facts
            described = self._resume.saved.of(facts.name)
            facts.check(described)  # also before all others: it says more than that some variable is missing
            try:
                return act()
            except BackupError as error:
                differing = facts.differences(described)
                if not differing:
                    raise
                raise type(error)(f"{error}. What differs: {'; '.join(sentences(differing))}") from error

        self._found += self._cluster.agree(restore, what)

    def _begin(self) -> list[Finding]:
        saved, fit, mode = self._resume.saved, self._fit, self._resume.mode
        position = saved.position
        self._parts.progress.count.resume(position)
        self._schedule.begin(position.step)
        # An earlier fit of this process may have changed, or restored, what the backup holds.
        self._parts.objects.note_earlier_fit(saved.of(self._parts.objects.name))
        if mode in (Mode.COMPLETE, Mode.RESTORE):
            self._check()
        if not self._resume.runs_steps:
            self._resume.is_pending = False
            fit.set_initial_epoch(max(position.epoch, fit.epochs))
            if mode is Mode.COMPLETE:
                return self._adopt()
            # The model is not left untrained; random states and callbacks are as the script comes to the later fit.
            build(fit, Built.of(saved))
            with fit.model.distribute_strategy.scope():
                load_backup.apply(fit.model, saved, self._cluster)
            return []
        fit.set_initial_epoch(position.epoch)
        if mode is Mode.CONTINUE:  # model, callbacks and random states are as this process has left them
            self._resume.is_pending = False
            for part in self._parts:
                part.continue_from(saved.of(part.name))
            return []
        if position.kind != "end":
            # Its History is that of all its epochs, whatever it is asked to begin with now.
            fits_of(fit.model).asked = saved.fit.initial_epoch, fit.epochs
        found = self._restore(Moment.START)
        self._resume.is_pending = position.kind == "within"  # then most follows in `enter_epoch`
        return found

    def _drop_trained_batches(self, steps: Iterator[tuple[int, int, Any]]) -> list[Finding]:
        batch, fit = self._resume.saved.position.batch, self._fit
        found = self._restore(Moment.ENTERED)
        with stopwatch().during("data_loading_sync"):
            replay.drop_steps(steps, batch, fit, may_end=bool(self._parts.input.reasons))
        self._parts.progress.count.skip_to(batch)
        return found + self._restore(Moment.ARRIVED)

    def begin_epoch(self) -> None:
        """The interrupted epoch begins, before any `on_epoch_begin`."""
        self._restore(Moment.EPOCH_BEGIN)

    def _check(self) -> None:
        """Each part looks whether what is saved fits, before anything is assigned."""
        for part in self._parts:
            try:
                part.check(self._resume.saved.of(part.name))
            except BackupMismatchError:
                if not self._is_of_another_optimizer(part):
                    raise

    def _restore(self, moment: Moment) -> list[Finding]:
        found: list[Finding] = []
        for part in self._parts:
            restore = functools.partial(part.restore, self._resume.saved.of(part.name), moment)
            found += self._or_by_weights(part, restore)
        return found

    def _adopt(self) -> list[Finding]:
        """Restores what the finished fit has left to what the script does next."""
        saved = self._resume.saved
        found = [] if self.has_ended else [Finding("model-is-later", detail=(str(saved.position),))]
        # What its backup could not save is not as it was after it, and the fits that follow depend on that.
        not_saved = verdict.found_in(saved, verdict.LASTING)
        carried = [one if one.carried_from else replace(one, carried_from=FINISHED) for one in not_saved]
        shared(ProcessRuns).findings.update(dict.fromkeys([*found, *carried]))
        for part in self._parts:
            adopted = self._or_by_weights(part, functools.partial(part.adopt, saved.of(part.name)))
            found += [one for one in adopted if one.effect == "lost"]  # no step is left that could depend on more
        return found

    def _is_of_another_optimizer(self, part: Part) -> bool:
        """Returns whether training had given the model an optimizer of which the script knows nothing."""
        return part is self._parts.variables and self._parts.compile.was_another

    def _or_by_weights(self, part: Part, act: Callable[[], list[Finding]]) -> list[Finding]:
        """Where variables are those of another optimizer, the weights alone fit."""
        try:
            return act()
        except BackupMismatchError:
            if not self._is_of_another_optimizer(part):
                raise
        with self._fit.model.distribute_strategy.scope():
            load_backup.apply(self._fit.model, self._resume.saved, self._cluster)
        self._parts.variables.forget()
        self._parts.compile.is_not_restored = True
        return [Finding("as-compiled")]

"""Restores a backup into a running fit(): before its first epoch, or within the interrupted one."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from keras_dist_callbacks._compat import building, replay, variables
from keras_dist_callbacks._compat import running_fit as seam
from keras_dist_callbacks.backups import verdict
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.json_values import from_json
from keras_dist_callbacks.backups.manifest import COMPILED, PYTHON, TRACED
from keras_dist_callbacks.backups.snapshot import JSON, CommitId, WorkerState
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.engine.schedule import Schedule
from keras_dist_callbacks.errors import BackupMismatchError
from keras_dist_callbacks.process import shared
from keras_dist_callbacks.process_runs import ProcessRuns, runs_of
from keras_dist_callbacks.training import loading, resume_mode
from keras_dist_callbacks.training.capture import apply_callbacks, apply_variables
from keras_dist_callbacks.training.captured_variables import build
from keras_dist_callbacks.training.snapshots import FitState


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
        commit: Its name.
        saved: Its content.
        mode: What it means for this fit, as far as its arguments tell until `settle`.
        has_ended: So many epochs were trained, or the run stopped early.
        is_pending: It is not restored yet.
    """

    commit: CommitId
    saved: WorkerState
    mode: Mode
    has_ended: bool
    is_pending: bool = True

    @classmethod
    def of(cls, commit: CommitId, saved: WorkerState, fit: Mapping[str, JSON]) -> Resume:
        """Returns what a backup means for a fit, as far as its arguments tell.

        Args:
            commit: Its name.
            saved: Its content.
            fit: Describes the fit.
        """
        mode = Mode.COMPLETE if resume_mode.is_finished(saved, fit["epochs"]) else Mode.RESTORE
        return cls(commit, saved, mode, resume_mode.has_ended(saved, fit["epochs"]))

    def settle(self, state: FitState, cluster: Cluster, seed: JSON) -> None:
        """Decides whether the backup is this fit's, and what it means for it, the same on every worker.

        Args:
            state: The fit's; its description becomes that in the interrupted process.
            cluster: The workers.
            seed: The global seed.

        Raises:
            BackupMismatchError: It is that of another fit. Nothing was changed.
        """
        saved, facts, fit, runs = self.saved, state.untracked.facts, state.description, state.runs
        is_left = runs.left.generation == self.commit.generation  # by an earlier fit of this process
        is_of_model = runs.left.model() is state.fit.model
        keeps_rows = saved.info.get("workers") == cluster.num_workers
        matched = cluster.on_chief(  # of workers with rows of their own, the chief's decide
            lambda: resume_mode.match(
                saved,
                fit,
                seed,
                is_same=facts.is_same(saved.tensors) and saved.info.get("seed") == seed,
                other_rows=lambda: keeps_rows and facts.has_other_rows(saved.tensors),
                left_by_other_model=is_left and not is_of_model and self.mode is Mode.COMPLETE,
            ),
            "finding the fit of a backup",
        )
        number, first, why = cluster.broadcast(matched, "the fit of a backup", kind=tuple[int, int, str | None])
        if why is not None:
            raise BackupMismatchError(resume_mode.another_fit_message(runs.directory, saved, why))
        fit.update(number=number, first=first)
        if self.mode is Mode.RESTORE and resume_mode.is_of_later_fit(saved, fit):
            self.mode = Mode.SKIP
        elif self.mode is Mode.RESTORE:  # maybe with a model that the script builds again for each fit
            fit["first"] = min(first, resume_mode.first_of(saved.state.get(resume_mode.FIT, fit)))
            continues = is_left and is_of_model and saved.position.kind == "end"
            if all(cluster.gather(continues, "whether a run continues in this process")):
                self.mode = Mode.CONTINUE

    @property
    def runs_steps(self) -> bool:
        """Whether the fit has steps to run."""
        return self.mode in (Mode.CONTINUE, Mode.RESTORE)


def is_built_later(fit: seam.RunningFit, saved: WorkerState) -> bool:
    """Returns whether the interrupted epoch is the first one, in which a model that is not built is built again."""
    position, first = saved.position, saved.state.get("first_epoch")
    return position.kind == "within" and position.epoch == first and building.has_unbuilt_layers(fit.model)


class FitRestore:
    """Restores one backup into one fit, on every worker.

    Args:
        resume: The backup.
        state: The fit's.
        cluster: The workers.
        schedule: When to save; it begins at the restored step.
    """

    def __init__(self, resume: Resume, state: FitState, cluster: Cluster, schedule: Schedule) -> None:
        self._resume = resume
        self._state = state
        self._cluster = cluster
        self._schedule = schedule
        self._found: list[Finding] = []
        state.untracked.note_earlier_fit(resume.saved)

    def begin(self) -> None:
        """Before the first epoch: restores what does not belong to an interrupted epoch."""
        self._agree(self._begin, "restoring")

    def enter_epoch(self, steps: Iterator[tuple[int, int, Any]]) -> None:
        """In the interrupted epoch, before its first batch: drops what was trained, and restores the rest."""
        self._resume.is_pending = False
        self._agree(lambda: self._enter_epoch(steps), "restoring within an epoch")

    def findings(self, description: dict[str, JSON]) -> list[Finding]:
        """Returns why this resume is not exact, and on what it depends.

        Args:
            description: Of this run.
        """
        saved, state, mode = self._resume.saved, self._state, self._resume.mode
        if mode is Mode.CONTINUE:
            return []
        if mode is Mode.SKIP:
            shared(ProcessRuns).findings[Finding("results-of-skipped")] = None
            numbers = (str(fit["number"] + 1) for fit in (saved.state[resume_mode.FIT], state.description))
            return [Finding("skipped", detail=tuple(numbers))]
        if mode is Mode.COMPLETE:
            facts = state.untracked.facts
            changes = facts.of_another_training if self._resume.has_ended else facts.compile_changes
            return [*resume_mode.of_finished(state.runs, saved, changes(saved.tensors)), *self._found]
        changed = verdict.changes(saved, description, continues_after_end=saved.position.kind == "end")
        earlier = shared(ProcessRuns).findings
        return [*state.data.reasons, *changed, *verdict.found_in(saved), *self._found, *earlier]

    def _agree(self, act: Callable[[], list[Finding]], what: str) -> None:
        self._found += self._cluster.agree(lambda: self._skip_if_of_later_fit(act), what)

    def _skip_if_of_later_fit(self, act: Callable[[], list[Finding]]) -> list[Finding]:
        """A backup of a later fit may be of another model, such as one of which more layers are trained."""
        saved = self._resume.saved
        if self._resume.mode in (Mode.CONTINUE, Mode.SKIP):
            return act()
        try:
            return self._state.untracked.with_change_report(act, saved)
        except BackupMismatchError:
            if self._resume.runs_steps or not resume_mode.is_of_later_fit(saved, self._state.description):
                raise
            self._resume.mode = Mode.SKIP
            return act()

    def _begin(self) -> list[Finding]:
        saved, position = self._resume.saved, self._resume.saved.position
        fit, progress, data = self._state.fit, self._state.progress, self._state.data
        progress.count.resume(position)
        self._schedule.begin(position.step)
        if not self._resume.runs_steps:
            self._resume.is_pending = False
            fit.set_initial_epoch(max(position.epoch, fit.epochs))
            return self._apply_finished() if self._resume.mode is Mode.COMPLETE else self._apply_weights()
        fit.set_initial_epoch(position.epoch)
        if self._resume.mode is Mode.CONTINUE:
            self._continue_input()
            return []
        progress.resume(saved.state)
        if position.kind != "end":
            # Its History is that of all its epochs, whatever it is asked to begin with now.
            runs_of(fit.model).asked = saved.state[resume_mode.FIT]["initial_epoch"], fit.epochs
        if position.kind == "end" and fit.initial_epoch == position.epoch:
            self._begin_next_fit(position.epoch)
        found = data.restore(saved, progress.first_epoch or 0)
        if position.kind == "within":
            return found  # the rest follows in `enter_epoch`
        self._resume.is_pending = False
        found += self._state.untracked.restore_input(saved)
        self._state.untracked.build(saved)
        found += self._apply()
        data.restore_rng(saved.state["rng"])
        if saved.state["stop_training"]:
            fit.set_initial_epoch(fit.epochs)
            fit.model.stop_training = True
        return found

    def _apply_weights(self) -> list[Finding]:
        """The model is not left untrained; random states and callbacks are as the script comes to the later fit."""
        fit, saved = self._state.fit, self._resume.saved
        build(fit, saved)
        if building.unbuilt_layers(fit.model):
            raise BackupMismatchError(
                f"the model {fit.model.name!r} is not built, so that it cannot get the weights that a later fit() has "
                "saved; give it an Input"
            )
        with fit.model.distribute_strategy.scope():
            loading.apply(fit.model, saved, self._cluster)
        return []

    def _apply_finished(self) -> list[Finding]:
        """Restores what the finished fit has left to what the script does next."""
        saved, data = self._resume.saved, self._state.data
        found = resume_mode.note_finished(saved, has_ended=self._resume.has_ended)
        data.note_finished(saved, int(self._state.description["initial_epoch"]))
        restored = self._state.untracked.restore_input(saved)
        self._state.untracked.build(saved)
        restored += self._apply()
        data.restore_rng(saved.state["rng"])
        return found + [one for one in restored if one.effect == "lost"]  # no step is left that could depend on more

    def _begin_next_fit(self, epoch: int) -> None:
        """In a loop of fits: the script may give each fit a new dataset, or the same one again."""
        progress, saved_by = self._state.progress, self._resume.saved.state[resume_mode.FIT]
        if self._state.data.order.is_of_fit:
            is_next = saved_by["number"] != self._state.description["number"]  # and not the same one with more epochs
        else:
            is_next = progress.shares_input is False
        if is_next:
            progress.first_epoch, progress.validations = epoch, 0
        elif progress.shares_input is None and self._state.data.shares_passes:
            self._found.append(Finding("same-dataset"))

    def _continue_input(self) -> None:
        """Model, callbacks and random states are as this process has left them."""
        self._resume.is_pending = False
        self._state.untracked.continue_from(self._resume.saved)
        shares = self._state.runs.left.source() is self._state.fit.input and not self._state.data.order.is_of_fit
        if shares:
            self._state.progress.resume(self._resume.saved.state)
            self._state.data.continue_from(self._resume.saved)
        self._state.progress.shares_input = shares

    def _enter_epoch(self, steps: Iterator[tuple[int, int, Any]]) -> list[Finding]:
        saved, batch = self._resume.saved, self._resume.saved.position.batch
        fit, progress, data = self._state.fit, self._state.progress, self._state.data
        progress.rng_at_epoch = saved.state["rng_at_epoch"]
        data.restore_rng(progress.rng_at_epoch)
        found = self._state.untracked.restore_input(saved)
        self._state.untracked.note_epoch(is_read=True)
        data.enter_epoch(saved.position.epoch, resuming=True)
        done = 0
        if fit.model.run_eagerly and is_built_later(fit, saved):  # its first step builds it, and is then replaced
            _, end, batches = next(steps)
            fit.model.train_function(batches)
            done = end + 1
        self._state.untracked.build(saved)
        replay.drop_steps(steps, batch, fit, done=done, may_end=bool(data.reasons))
        found += [*data.read_again(), *self._apply()]
        data.restore_rng(saved.state["rng"])
        seam.current_logs(fit.model).update(from_json(saved.state["logs"], saved.tensors))
        progress.count.skip_to(batch)
        return found

    def _apply(self) -> list[Finding]:
        state = self._state
        found, saved = self._apply_variables()
        of_callbacks: list[Finding] = []
        found += state.untracked.restore(
            saved, lambda: of_callbacks.extend(apply_callbacks(state.callbacks, saved)), state.callbacks
        )
        if state.untracked.has_set_states:  # of the user's, which may have changed what the model holds
            self._apply_variables()
        return found + of_callbacks

    def _apply_variables(self) -> tuple[list[Finding], WorkerState]:
        """Returns what is not as it was, and what is left to restore."""
        state, saved = self._state, self._resume.saved
        moved_by_input = variables.global_seed_keys() & state.data.hides.keys
        try:
            return apply_variables(state.fit.model, saved, self._cluster, leave=moved_by_input), saved
        except BackupMismatchError:
            if COMPILED not in saved.state:
                raise
        with state.fit.model.distribute_strategy.scope():
            loading.apply(state.fit.model, saved, self._cluster)
        return [Finding("as-compiled")], _without_frozen_layers(saved)


def _without_frozen_layers(saved: WorkerState) -> WorkerState:
    """Leaves out which layers training has frozen: the script's optimizer has no variables for others than its own."""
    python = {path: r for path, r in (saved.state.get(PYTHON) or {}).items() if not path.endswith("/_trainable")}
    state = {topic: value for topic, value in saved.state.items() if topic != TRACED}
    return dataclasses.replace(saved, state={**state, PYTHON: python})

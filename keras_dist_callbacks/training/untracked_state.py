"""Saves and restores everything that training depends on in addition to the variables that Keras lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from keras_dist_callbacks._compat import environment, model_parts, variables
from keras_dist_callbacks._compat.running_fit import RunningFit
from keras_dist_callbacks.backups import findings, verdict
from keras_dist_callbacks.backups.findings import Finding
from keras_dist_callbacks.backups.manifest import ENVIRONMENT, INPUT_PYTHON, PYTHON, TRACED
from keras_dist_callbacks.backups.snapshot import JSON, SharedTensor, WorkerState
from keras_dist_callbacks.errors import BackupError, BackupMismatchError
from keras_dist_callbacks.inputs.position import DataPosition
from keras_dist_callbacks.terminal import warn
from keras_dist_callbacks.training import resume_mode
from keras_dist_callbacks.training.captured_variables import CapturedVariables, build
from keras_dist_callbacks.training.config_diff import Fingerprint
from keras_dist_callbacks.training.user_state.state import UserState


class UntrackedState:
    """What one fit hides in its input, its train step and its callbacks, and what it was given.

    Args:
        fit: The running fit, after all `on_train_begin` and before a restore.
        data: Its input.
        user: The state of the user's Python code, as of the start.
        warn: Whether this worker warns of what cannot be saved.

    Attributes:
        facts: What training depends on and no variable holds.
        earlier: What was found in the resume that this run began with, and in those before, for the next one.
    """

    def __init__(self, fit: RunningFit, data: DataPosition, user: UserState, *, warn: bool) -> None:
        self._fit = fit
        self._data = data
        self._warn = warn
        self._step = CapturedVariables(fit)
        self._user = user
        user.saved_keys = self._saved_keys
        self._environment = environment.describe()
        self.earlier: list[Finding] = []
        self.facts = Fingerprint(fit, user.directory)
        self._of_submodels = model_parts.steps_of_submodels(fit.model)
        self._unknown: list[str] = []
        self._settled: set[int] | None = None

    def capture(self) -> tuple[dict[str, JSON], dict[str, SharedTensor]]:
        """Returns the topics and tensors of a snapshot."""
        topics: dict[str, JSON] = {}
        tensors = self.facts.capture()
        step = self._step.capture()
        for state, held in (self._data.capture(), step, self._user.capture()):
            topics.update(state)
            tensors.update(held)
        records, held = self._user.input.capture()
        topics.update({INPUT_PYTHON: records} if records else {})
        tensors.update(held)
        topics[ENVIRONMENT] = self._environment
        topics.update(self._user.compiled.capture())
        found = {
            "input": self._data.found(self._used_by_training, self._user.input.doubt),
            "step": self._step.random,
            "variables": [*self._step.found, *(Finding("variables-not-saved", detail=(n,)) for n in self._not_saved())],
            "own_objects": [*self._user.found, *self._user.input.found],
            "compiled": self._user.compiled.changes,
            "environment": findings.made(environment.changes_in_training(self._environment)),
            "earlier": self.earlier,
        }
        topics.update({f"{findings.SAVED}{part}": findings.to_json(held) for part, held in found.items()})
        return topics, tensors

    def note_earlier_fit(self, saved: WorkerState) -> None:
        """An earlier fit of this process may have changed, or restored, what the backup holds."""
        self._user.note_earlier_fit((saved.state.get(PYTHON) or {}).keys())

    def continue_from(self, saved: WorkerState) -> None:
        """An earlier fit of this process ended with this backup: what it did not save is still not saved."""
        self.earlier = verdict.found_in(saved, verdict.LASTING)
        self._user.compiled.continue_from(saved)

    def build(self, saved: WorkerState) -> None:
        """Builds what the interrupted run's first step has built."""
        build(self._fit, saved)
        self._user.note_trace()

    def note_trace(self) -> None:
        """The step was traced, or may have been, and no callback was called yet."""
        self._user.compiled.note_built()
        self._user.note_trace()

    def note_epoch(self, *, is_read: bool) -> None:
        """An epoch begins, and with it the input is read, or it has ended."""
        self._user.input.note_epoch(is_read=is_read)

    def note_input_read(self) -> None:
        """All batches of an epoch were read."""
        self._user.input.note_read()

    def restore_input(self, saved: WorkerState) -> list[Finding]:
        """Puts back what the input's Python code held when the epoch began; returns what differs."""
        return self._user.restore_input(saved.state.get(INPUT_PYTHON) or {}, saved.tensors)

    @property
    def has_set_states(self) -> bool:
        """Whether an object of the user's has `set_state`."""
        return self._user.has_set_states

    def restore(
        self, saved: WorkerState, set_states: Callable[[], None], callbacks: Iterable[Any] = ()
    ) -> list[Finding]:
        """Puts it back, after the variables that Keras lists; returns what differs.

        Args:
            saved: What the backup has.
            set_states: Calls `set_state` of the callbacks.
            callbacks: Those of the fit.
        """
        of_variables = verdict.found_in(saved, ["variables"])
        self._unknown = [one.detail[0] for one in of_variables if one.code == "variables-not-saved"]
        self.facts.note_built()
        found = self._step.restore(saved)
        python = saved.state.get(PYTHON) or {}
        traced = saved.state.get(TRACED)
        found += self._user.trace_as_before(traced, python, saved.tensors)
        found += self._user.restore(python, saved.tensors, set_states)
        if resume_mode.is_finished(saved, self._fit.epochs):
            return found  # no step is left that could differ
        marks = vars(self._fit.model)
        loaded = marks.get("_kdc_restored_from") is not None and "_kdc_compiled_rates" not in marks
        at = None if loaded else saved.position
        found += self.facts.differences(saved.tensors, at=at, callbacks=callbacks)
        found += self._user.edits(saved.tensors, self.facts.names_that_differ(saved.tensors))
        found += findings.made(environment.differences(saved.state.get(ENVIRONMENT) or {}, self._environment))
        return found + self.facts.not_compared(saved.tensors)

    def with_change_report(self, act: Callable[[], list[Finding]], saved: WorkerState) -> list[Finding]:
        """Returns what a restore returns; an error of it includes what is known to have changed since the backup.

        Raises:
            BackupMismatchError: Layers were frozen or unfrozen, or a rate became a schedule, or was one: other
                variables would be trained, or otherwise, which a backup cannot follow.
        """
        reasons = self.facts.reasons(saved.tensors)
        if reasons:
            raise BackupMismatchError(
                f"the backup is of a model that was trained in another way: {'; '.join(reasons)}. The backup is "
                "unchanged: build and compile the model as before to resume, or use another directory to start again"
            )
        try:
            return act()
        except BackupError as error:
            reasons = findings.sentences(self.facts.differences(saved.tensors))
            if not reasons:
                raise
            raise type(error)(f"{error}. What differs: {'; '.join(reasons)}") from error

    def _saved_keys(self) -> set[int]:
        """Returns the keys of the variables in the snapshot that are not the user's Python state."""
        return self._step.keys | variables.variable_set(self._fit.model).keys

    def _used_by_training(self, key: int) -> bool:
        if key in self._step.captured_keys or key in self._user.variable_keys:
            return True
        return key in variables.variable_set(self._fit.model).keys and key not in variables.global_seed_keys()

    def _not_saved(self) -> list[str]:
        """Variables that training may change and that nothing else has found; searched when they all exist."""
        settled = self._unused() | self._user.variable_keys
        if self._settled != settled:
            self._settled = settled
            found = variables.untracked_variables(self._fit.model, self._step.keys | settled)
            new = {name for name, _ in found}.difference(self._unknown)
            self._unknown = sorted({*self._unknown, *new})
            if new and self._warn:
                for text in findings.sentences(Finding("variables-not-saved", detail=(name,)) for name in sorted(new)):
                    warn(text)
        return self._unknown

    def _unused(self) -> set[int]:
        """Returns the variables of optimizers that belong to submodels, and that this training does not use."""
        unused: set[int] = set()
        for optimizer, steps in self._of_submodels:
            keys = {variables.key(c) for v in optimizer.variables for c in variables.components(v)}
            if model_parts.steps_taken(optimizer) == steps and not keys & self._step.captured_keys:
                unused |= keys
        return unused

"""Which callbacks an exception in one of them kept from hearing of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_dist_callbacks._compat import building, keras_callbacks, replay, rng, variables
from keras_dist_callbacks._compat import running_fit as seam
from keras_dist_callbacks._compat.fit_hooks import control
from keras_dist_callbacks.backups.snapshot import JSON, Snapshot, WorkerState
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.cluster.coordinated_stop import StopRequest
from keras_dist_callbacks.engine.background import gc_paused
from keras_dist_callbacks.engine.engine import BackupEngine
from keras_dist_callbacks.engine.schedule import SavePolicy, Schedule
from keras_dist_callbacks.errors import BackupError, ConfigError
from keras_dist_callbacks.inputs.position import DataPosition
from keras_dist_callbacks.shutdown.controller import STOPPED, ShutdownController
from keras_dist_callbacks.training import captured_variables, resume_mode
from keras_dist_callbacks.training.callback_state import may_keep_state
from keras_dist_callbacks.training.capture import apply_callbacks, apply_variables
from keras_dist_callbacks.training.restored import Restored, assess
from keras_dist_callbacks.training.run_info import describe_fit
from keras_dist_callbacks.training.snapshots import Progress, take
from keras_dist_callbacks.training.training_objects import require_fit
from keras_dist_callbacks.training.untracked_state import UntrackedState

_BEGIN, _END = ("on_train_batch_begin", "on_batch_begin"), ("on_train_batch_end", "on_batch_end")


def missed_hooks(error: BaseException, callbacks: Sequence[Any]) -> list[str]:
    """Names of callbacks with a state that were told of a batch's begin, or not of its end, before an exception.

    Args:
        error: It came out of a callback's hook around a batch, or from elsewhere.
        callbacks: All of the fit, in their order.
    """
    trace = error.__traceback__
    while trace is not None:
        local, hook = trace.tb_frame.f_locals, trace.tb_frame.f_code.co_name.lstrip("_")
        if isinstance(local.get("self"), keras.callbacks.CallbackList) and hook in (*_BEGIN, *_END):
            place = next((n for n, callback in enumerate(callbacks) if callback is local.get("callback")), None)
            if place is not None:
                hooks, found = (_BEGIN, callbacks[: place + 1]) if hook in _BEGIN else (_END, callbacks[place:])
                return [type(c).__name__ for c in found if may_keep_state(c) and _has_own(c, hooks)]
        trace = trace.tb_next
    return []


def _has_own(callback: Any, hooks: tuple[str, str]) -> bool:
    base = keras.callbacks.Callback
    return any(getattr(type(callback), hook, None) is not getattr(base, hook) for hook in hooks)


_SAME_DATASET = (
    "the script gives this fit() the dataset object of the fit() before it (a new dataset would begin its shuffled "
    "orders again)"
)


class FitSession:
    """Controls one running fit(); implements `FitHooks`."""

    def __init__(
        self,
        fit: seam.RunningFit,
        engine: BackupEngine,
        cluster: Cluster,
        policy: SavePolicy,
        owner: Any,
        directory: str,
        announce: Callable[[Restored], None],
        leaving: ShutdownController,
        *,
        strict: bool | str = False,
        read_again: bool = False,
    ) -> None:
        keras_callbacks.note_begin(fit)
        self._fit = fit
        self._engine = engine
        self._cluster = cluster
        self._schedule = Schedule(policy, cluster)
        self._owner = owner  # the callback itself: not part of the state
        self._directory = directory  # as it is shown
        self._announce = announce
        self._shutdown = leaving
        self._request: StopRequest | None = None  # to leave, as soon as the step is over
        self._trained: Snapshot | None = None  # behind an epoch's last step, until the next one begins
        self._in_epoch = self._stops = False
        self._has_peers = cluster.num_workers > 1
        self._strict, self._read_again = strict, read_again
        self._saved: WorkerState | None = None
        self._commit = ""
        self._generation = 0  # of the backup
        self._ended = False  # so many epochs were trained, or the run stopped early
        self.is_complete = False  # the backup leaves this fit nothing to do: it is restored, and nothing is written
        self._continues = False  # where a fit of this process ended: nothing is to be restored
        self._progress = Progress()
        self._description: dict[str, JSON] = {}
        self._callbacks: Sequence[Any] = ()
        self._early_notes: list[str] = []
        self._assumed: list[str] = []  # conditions of the resume that this fit alone knows
        self._undo: Callable[[], None] | None = None
        self.restored: Restored | None = None

    @property
    def saved(self) -> WorkerState | None:
        """The backup that was found and is not restored yet."""
        return self._saved

    @property
    def is_finished(self) -> bool:
        """Whether the backup is the end of the training that this fit asks for, the same on every worker."""
        return self._ended and self.restored is not None and not self.restored.notes

    # --- events of fit, in their order

    def pick(self) -> WorkerState | None:
        """Chooses and reads the newest backup, before any callback's `on_train_begin`."""
        picked = self._engine.pick(variables.empty)
        if picked is not None:
            commit, self._saved = picked[0], require_fit(picked[1])
            self._commit, self._generation = commit.name, commit.generation
            self.is_complete = resume_mode.is_finished(self._saved, self._fit.epochs)
            self._ended = resume_mode.has_ended(self._saved, self._fit.epochs)
        return self._saved

    def train_begin(self, callbacks: Sequence[Any]) -> None:
        """After every other callback's `on_train_begin`: claims the directory and restores."""
        self._callbacks = [c for c in callbacks if c is not self._owner]
        if self._saved is not None:
            self._build(self._saved)
        self._data = DataPosition(
            self._fit, self._callbacks, read_again=self._read_again, shown=self._engine.shows_progress
        )
        self._untracked = UntrackedState(self._fit, self._data, self._callbacks, warn=self._cluster.is_chief)
        self._description = describe_fit(self._fit, self._cluster.num_workers)
        if not self.is_complete:
            self._engine.claim(self._description)
        self._undo = control(self._fit, self)
        if self._saved is not None:
            saved = self._saved
            self._continues = not self.is_complete and self._continues_in_process(saved)
            notes = self._agree(lambda: self._prepare_restore(saved), saved, "restoring")
            if saved.position.kind != "within" or self.is_complete:
                self._report(saved, notes)
        if not self.is_complete:
            self._shutdown.begin()

    def set_initial_epoch(self, epoch: int) -> None:
        """Without a backup: begins at an epoch that a checkpoint's sidecar named."""
        self._fit.set_initial_epoch(epoch)

    def before_epoch(self) -> None:
        """Before any `on_epoch_begin`, which may draw: in the interrupted epoch, as it did then."""
        if self._saved is None:
            self._progress.rng_before_epoch = rng.capture()
        else:
            state = self._saved.state
            self._progress.rng_before_epoch = state.get("rng_before_epoch") or state["rng_at_epoch"]
            rng.restore(self._progress.rng_before_epoch)

    def epoch_begin(self, epoch: int) -> None:
        """The epoch loop is running."""
        self._fit.clear_initial_epoch()
        if self._saved is not None and epoch != self._saved.position.epoch:
            raise ConfigError(
                f"the backup is from epoch {self._saved.position.epoch}, but fit() begins at epoch {epoch}: leave "
                "initial_epoch as it was (the backup is untouched)"
            )
        if self._progress.first_epoch is None:
            self._progress.first_epoch = epoch
        self._progress.count.begin_epoch(epoch)

    def enter_epoch(self, steps: Iterator[tuple[int, int, Any]]) -> bool:
        """Before the first batch: drops what was consumed and restores, if this is the interrupted epoch."""
        self._trained = None
        self._in_epoch = True
        self._progress.count.enter_epoch(None if self._fit.steps_per_epoch else self._fit.known_length)
        saved, self._saved = self._saved, None
        self._data.note()
        if saved is None:
            self._data.enter_epoch(resuming=False)
            self._progress.rng_at_epoch = rng.capture()
            return True
        notes = self._agree(lambda: self._enter_interrupted_epoch(saved, steps), saved, "restoring within an epoch")
        self._report(saved, notes)
        stops = any(self._cluster.gather(bool(saved.state["stop_training"]), "stop within an epoch"))
        self._fit.model.stop_training = stops
        return not stops

    def step_done(self, end_step: int) -> None:
        """A step is complete; no callback was told yet."""
        self._progress.count.trained_to(end_step)

    def batch_end(self) -> None:
        """Behind a step and all callbacks; fit looks at `stop_training` next."""
        model = self._fit.model
        alone = self._has_peers and model.stop_training and not self._stops
        if alone:
            model.stop_training = False  # until all workers do it behind the same step
        self._act(self._shutdown.boundary(stop="stop_training" if alone else None))
        if alone and self._request is not None:
            model.stop_training = True  # for the run that goes on

    def after_step(self) -> None:
        """Between two steps, after all callbacks: saves if that is due, or leaves."""
        self._exit_if_requested(lambda: self._capture("within"))
        self._engine.poll()
        self._schedule.save_when_due(self._progress.count.step, self._engine, lambda: self._capture("within"))

    def epoch_trained(self) -> None:
        """Behind an epoch's last step: what follows may be interrupted, and is then done again as a whole."""
        self._in_epoch = False
        resume_mode.note_trained(self._directory)
        self._data.epoch_trained(self._progress.count.epoch, self._progress.count.batch)
        if self._shutdown.options.saves:
            self._trained = self._capture("within")
        self._exit_if_requested(self._after_last_step)

    def test_batch_end(self) -> None:
        """Behind a step of validation within fit."""
        self._act(self._shutdown.boundary())
        self._exit_if_requested(self._after_last_step)

    def validation_end(self) -> None:
        """A validation within fit is complete."""
        self._progress.validations += 1

    def epoch_end(self, epoch: int) -> None:
        """After every other callback's `on_epoch_end`."""
        self._progress.count.end_epoch(epoch)
        self._engine.poll()
        model = self._fit.model
        if self._cluster.num_workers > 1:
            model.stop_training = any(self._cluster.gather(bool(model.stop_training), "stop at an epoch's end"))
        self._act(self._shutdown.boundary())
        self._exit_if_requested(lambda: self._capture("between"))
        if self._schedule.at_epoch_end:
            self._engine.save(self._capture("between"), must=True)
            self._trained = None

    def train_end(self, *, delete: bool) -> None:
        """After every other callback's `on_train_end`."""
        self._fit.clear_initial_epoch()
        if self.is_complete:
            if delete and self.is_finished:
                self._engine.claim(self._description)
                self._engine.delete_finished(self._commit)
            self._cluster.leave("end of fit")
            self.close()
            return
        if self._saved is not None:
            raise BackupError(f"fit() ended before it came to {self._saved.position}; the backup is untouched")
        self._trained = None
        self._request = self._shutdown.pending_at_end()
        self._exit_if_requested(lambda: self._capture("end"))
        self._engine.finish(self._capture("end"), delete=delete)
        keras_callbacks.note_end(self._fit.model)
        if not delete:
            resume_mode.note_end(self._directory, self._engine.generation, self._fit.model, self._fit.input)
        self.close()

    def _finished_warning(self, saved: WorkerState) -> str | None:
        changes = self._untracked.changes_of_training if self._ended else self._untracked.compile_changes
        return resume_mode.finished_warning(self._directory, saved, changes(saved))

    def on_exception(self, error: BaseException, *, in_step: bool) -> None:
        """An exception leaves fit: what is known of training is committed before it is raised on."""
        known = not in_step and self._saved is None and not self.is_complete
        try:
            step = self._progress.count.step
            self._shutdown.on_exception(error, step, lambda: self._at_exception(error) if known else None)
        finally:
            self.close()

    # --- leaving early

    def _act(self, request: StopRequest | None) -> None:
        if request is not None and request.kind == STOPPED:
            self._stops = self._fit.model.stop_training = True
        elif request is not None:
            self._request = request

    def _exit_if_requested(self, snapshot: Callable[[], Snapshot]) -> None:
        if self._request is not None:
            self._shutdown.save_and_exit(self._request, snapshot())

    def _after_last_step(self) -> Snapshot:
        return self._trained or self._capture("within")

    def _at_exception(self, error: BaseException) -> Snapshot | None:
        if self._trained is not None or not self._in_epoch:
            return self._trained
        return self._capture("within", missed_hooks(error, self._callbacks))

    def close(self) -> None:
        """Takes every wrapper away, and gives signals back."""
        self._shutdown.close()
        variables.forget(self._fit.model)
        if self._undo is not None:
            self._data.close()
        self._fit.clear_initial_epoch()
        if self._undo is not None:
            self._undo()
            self._undo = None

    # --- restoring

    def _build(self, saved: WorkerState) -> None:
        if building.has_unbuilt_variables(self._fit.model):  # a callback may have compiled it anew
            captured_variables.build_like(saved, self._fit)

    def _prepare_restore(self, saved: WorkerState) -> list[str]:
        position = saved.position
        self._progress.count.resume(position)
        self._schedule.begin(position.step)
        if self.is_complete:
            self._saved = None
            self._fit.set_initial_epoch(max(position.epoch, self._fit.epochs))
            return self._apply(saved)
        self._fit.set_initial_epoch(position.epoch)
        if self._continues:
            return self._continue_input(saved)
        self._progress.resume(saved.state)
        if position.kind == "end" and self._fit.initial_epoch == position.epoch:
            self._begin_next_fit(position.epoch)
        notes = self._data.restore(saved, self._progress.first_epoch or 0)
        if position.kind == "within":
            self._early_notes = notes
            return []  # the rest follows in `enter_epoch`
        self._saved = None
        notes += self._apply(saved)
        self._data.restore_rng(saved.state["rng"])
        if saved.state["stop_training"]:
            self._fit.set_initial_epoch(self._fit.epochs)
            self._fit.model.stop_training = True
        return notes

    def _continues_in_process(self, saved: WorkerState) -> bool:
        alike = resume_mode.continues_in_process(self._directory, self._generation, saved, self._fit.model)
        return all(self._cluster.gather(alike, "whether a run goes on")) if self._has_peers else alike

    def _begin_next_fit(self, epoch: int) -> None:
        """In a loop of fits: the script may give each fit a new dataset, or the same one again."""
        if self._progress.shares_input is False:
            self._progress.first_epoch, self._progress.validations = epoch, 0
        elif self._progress.shares_input is None and self._data.reshuffles:
            self._assumed.append(_SAME_DATASET)

    def _continue_input(self, saved: WorkerState) -> list[str]:
        """Model, callbacks and random states are as this process has left them."""
        self._saved = None
        shares = resume_mode.same_input(self._directory, self._fit.input)
        if shares:
            self._progress.resume(saved.state)
            self._data.continue_from(saved)
        self._progress.shares_input = shares
        return []

    def _enter_interrupted_epoch(self, saved: WorkerState, steps: Iterator[tuple[int, int, Any]]) -> list[str]:
        self._progress.rng_at_epoch = saved.state["rng_at_epoch"]
        self._data.restore_rng(self._progress.rng_at_epoch)
        self._data.enter_epoch(resuming=True)
        self._build(saved)
        replay.drop_steps(steps, saved.position.batch, self._fit, may_end=bool(self._data.reasons))
        self._data.read_again()
        notes = self._early_notes + self._apply(saved)
        self._data.restore_rng(saved.state["rng"])
        seam.current_logs(self._fit.model).update(saved.state["logs"])
        self._progress.count.skip_to(saved.position.batch)
        return notes

    def _agree(self, act: Callable[[], list[str]], saved: WorkerState, what: str) -> list[str]:
        return self._cluster.agree(
            act if self._continues else lambda: self._untracked.with_change_report(act, saved), what
        )

    def _apply(self, saved: WorkerState) -> list[str]:
        moved_by_input = variables.global_seed_keys() & self._data.hides.keys
        notes = apply_variables(self._fit.model, saved, self._cluster, leave=moved_by_input)
        notes += self._untracked.restore(saved)
        return notes + apply_callbacks(self._callbacks, saved)

    def _report(self, saved: WorkerState, notes: list[str]) -> None:
        judged = assess(saved, self._description, self._data.reasons, generator=self._fit.is_python_generator)
        if self.is_complete:
            judged = (list(filter(None, [self._finished_warning(saved)])), [])
        found = ([], []) if self._continues else (judged[0], [*judged[1], *self._assumed])
        self.restored = Restored.agreed_on_all(
            self._commit, saved.position, [*found[0], *notes], found[1], self._cluster
        )
        self.restored.require(self._strict)
        self._announce(self.restored)

    def _capture(self, kind: Any, missed: Sequence[str] = ()) -> Snapshot:
        with gc_paused():
            parts = (self._fit, self._data, self._untracked, self._callbacks, self._progress)
            return take(*parts, kind, missed, is_chief=self._cluster.is_chief)

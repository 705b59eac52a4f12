"""A fit() under the plan of `kdc rehearse`: shortened, saved often, killed at one place, and recorded."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from keras_dist_callbacks._compat import running_fit
from keras_dist_callbacks._compat.shortened import most_batches, shorten
from keras_dist_callbacks.backups import findings
from keras_dist_callbacks.backups.snapshot import WorkerState
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.base.process_runs import ProcessRuns
from keras_dist_callbacks.base.terminal import write_line
from keras_dist_callbacks.rehearsal import records
from keras_dist_callbacks.rehearsal.plan import Kill, Plan
from keras_dist_callbacks.run.engine.schedule import SavePolicy, Schedule
from keras_dist_callbacks.run.fit_restore import Resume
from keras_dist_callbacks.run.run import Run
from keras_dist_callbacks.run.session import FitSession, SessionOptions

_LEAST_STEPS, _SAVES_PER_EPOCH = 2, 4
_STEPS_AFTER_SAVE = 2
_KILL_SECONDS = 90.0


class RehearsedSession(FitSession):
    """Controls one fit() that a plan shortens.

    Args:
        fit: The running fit.
        run: Where it is saved, when, and what ends it early; the plan says when to save.
        options: What the callback asks for.
        plan: The plan in force.
    """

    def __init__(self, fit: running_fit.RunningFit, run: Run, options: SessionOptions, plan: Plan) -> None:
        shorten(fit.epoch_iterator, plan.steps)
        self._plan = plan
        self._epochs = range(fit.initial_epoch, min(fit.epochs, fit.initial_epoch + plan.epochs))
        most = most_batches(fit.epoch_iterator) or plan.steps
        self._batches = min(fit.steps_per_epoch or fit.num_batches or most, most)
        self._save_freq = max(_LEAST_STEPS, self._batches // _SAVES_PER_EPOCH)
        run.schedule = Schedule(SavePolicy(self._save_freq), run.cluster)
        super().__init__(fit, run, options)
        shared(ProcessRuns).rehearsed += 1
        self._number = shared(ProcessRuns).rehearsed
        self._kill = plan.kill if self._number == 1 else None
        self._saved_at: int | None = None  # the step of the newest backup of this process in the epoch of the kills
        self._last_step, self._mark = 0, time.perf_counter()
        self._ends_fit = False
        self._note("open")

    def pick(self) -> WorkerState | None:
        """Chooses and reads the newest backup."""
        found = super().pick()
        self._note("picked", found=found is not None)
        return found

    def train_begin(self, callbacks: Sequence[Any]) -> None:
        """Restores, and says that this is not a real training."""
        write_line(
            f"kdc: REHEARSAL: fit() number {self._number} of this process is shortened to {len(self._epochs)} of "
            f"{self._fit.epochs - self._fit.initial_epoch} epochs, of {self._plan.steps} batches at most, and saves to "
            f"{self.run.engine.directory}"
        )
        super().train_begin(callbacks)
        self._last_step = self._count.step
        self._note(
            "fit",
            worker=self.run.cluster.worker_index,
            place=self.run.engine.directory,
            epochs=[self._epochs.start, self._epochs.stop],
            asked=self._fit.epochs,
            batches=self._batches,
            save_freq=self._save_freq,
            validates=any(self._fit.validates(epoch) for epoch in self._epochs),
            continues=bool(self._fit.steps_per_epoch),
        )

    def enter_epoch(self, steps: Iterator[tuple[int, int, Any]]) -> bool:
        """An epoch begins, or the interrupted one is entered; whether steps follow."""
        runs = super().enter_epoch(steps)
        self._note("epoch", epoch=self._count.epoch, step=self._count.step)
        self._mark = time.perf_counter()
        return runs

    def after_step(self) -> None:
        """Saves if that is due, alone: the backup before is written first, so that each one's costs are its own."""
        step, writing = self._count.step, self.run.engine.writing
        self._note("step", step=step, seconds=time.perf_counter() - self._mark, writing=writing)
        if self._saved_at is not None and step >= self._saved_at + _STEPS_AFTER_SAVE:
            self._kill_if("steps")
        is_due = step // self._save_freq > self._last_step // self._save_freq
        self._last_step = step
        if is_due:
            self.run.engine.drain()
        began = time.perf_counter()
        super().after_step()
        if is_due:
            self._note("save", step=step, seconds=time.perf_counter() - began)
            if self._count.epoch > self._epochs.start or len(self._epochs) == 1:
                self._saved_at = step
                self._kill_if("backup")
        self._mark = time.perf_counter()

    def epoch_trained(self) -> None:
        """After an epoch's last step: the last occasion for a kill that found too few steps."""
        super().epoch_trained()
        if self._count.epoch + 1 >= self._epochs.stop and self.run.engine.committed is not None:
            self._kill_if("backup", "steps")

    def test_batch_end(self) -> None:
        """After a step of validation."""
        super().test_batch_end()
        self._kill_if("validation")

    def epoch_end(self, epoch: int) -> None:
        """Ends fit() after the plan's last epoch."""
        super().epoch_end(epoch)
        model = self._fit.model
        if epoch + 1 >= self._epochs.stop and not model.stop_training and epoch + 1 < self._fit.epochs:
            self._ends_fit = model.stop_training = True

    def train_end(self) -> None:
        """Commits the end, which is kept as each backup before is."""
        if self._ends_fit:
            self._fit.model.stop_training = False  # it was the plan's, and is no part of the state
        self._kill_if("end")
        self.run.engine.drain()
        super().train_end()
        self._note("end", step=self._count.step)

    def _report(self, resume: Resume) -> None:
        try:
            super()._report(resume)
        finally:
            found = self.restored
            if found is not None:
                self._note("restored", at=str(found.position), found=findings.to_json(found.findings))

    def _kill_if(self, *places: Kill) -> None:
        """Ends this process as a lost machine does, once what was saved is committed; all workers at the same place."""
        if self._kill not in places:
            return
        self.run.engine.drain(_KILL_SECONDS)
        if self.run.cluster.num_workers > 1:
            self.run.cluster.barrier("rehearsal-kill", _KILL_SECONDS)
        self._note("kill", place=self._kill)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL cannot be handled")

    def _note(self, event: str, **values: Any) -> None:
        records.note(self._plan, event, fit=self._number, **values)

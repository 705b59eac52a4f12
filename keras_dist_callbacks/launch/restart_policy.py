"""Whether a job is started again after one of its workers has failed."""

from __future__ import annotations

import shlex
import signal
import time
from dataclasses import dataclass

from keras_dist_callbacks.base.errors import RESTART_EXIT_CODE
from keras_dist_callbacks.base.progress_file import NO_BACKUP, ProgressReport

_PREEMPTED = (0, RESTART_EXIT_CODE, 128 + signal.SIGTERM)
_USED_UP = 1
_LONGEST_DELAY = 60.0


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker has ended.

    Attributes:
        worker: Its index.
        returncode: Negative for a signal.
        report: What its progress file says.
        hang: Why it was terminated as hanging; empty if it was not.
    """

    worker: int
    returncode: int
    report: ProgressReport
    hang: str = ""

    @property
    def signal(self) -> int | None:
        """The signal that ended it, or of which its exit code tells: a shell returns 128 + n for signal n."""
        number = self.code - 128
        return number if number in signal.valid_signals() and self.returncode != RESTART_EXIT_CODE else None

    @property
    def is_worth_a_restart(self) -> bool:
        """Whether the same command may well succeed when it is started again."""
        return self.returncode == RESTART_EXIT_CODE or self.signal is not None

    @property
    def code(self) -> int:
        """The exit code that a shell reports: 128 + n for a signal."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def kind(self) -> str:
        """What ended it, in a word or two."""
        number = self.signal
        return "a hang" if self.hang else f"code {self.returncode}" if number is None else _signal_name(number)

    def __str__(self) -> str:
        if self.hang:
            cause = self.hang
        elif self.returncode < 0:
            cause = f"was terminated by {_signal_name(-self.returncode)}"
        else:
            meaning = "" if self.signal is None else f" ({_signal_name(self.signal)})"
            if self.returncode == RESTART_EXIT_CODE:
                meaning = " (asks for a restart)"
            cause = f"exited with code {self.returncode}{meaning}"
        place = "" if self.report.step is None else f", after step {self.report.step}"
        return f"worker {self.worker} {cause}{place}"


@dataclass(frozen=True)
class Decision:
    """What follows the end of a run.

    Attributes:
        delay: Seconds until the next start; None: no restart.
        code: The exit code without a restart.
        reason: Why there is no restart; empty if that is clear.
    """

    delay: float | None
    code: int = 0
    reason: str = ""


class RestartPolicy:
    """Counts restarts, and decides on the next one.

    Args:
        max_restarts: How many restarts in a row may leave no newer backup; 0 for no restart at all.
        on_error: Whether to restart after any exit code.
    """

    def __init__(self, max_restarts: int, *, on_error: bool) -> None:
        self._max_restarts = max_restarts
        self._on_error = on_error
        self._newest = NO_BACKUP
        self._in_a_row = 0
        self._lost_at, self._times_lost = (0, 0), 0
        self._directory = ""

    def decide(
        self, first: WorkerEnd, newest: tuple[int, int] | None, stop_at: float | None = None, directory: str = ""
    ) -> Decision:
        """What follows a run that has failed.

        Args:
            first: The worker that failed first; one that fails after it may do so because of it.
            newest: The `fit()` and the step of the newest backup, or `NO_BACKUP`; None if that is not known.
            stop_at: When training stops because its time is over, in seconds since 1970; None for no limit.
            directory: Where backups go; empty if it is not known.
        """
        self._directory = directory or self._directory
        if newest == NO_BACKUP:  # such as deleted at the end of fit(): what the next run saves is new
            # Ends at one place that lost all are counted: backups in between are no progress, they lead there again.
            self._newest, place = newest, (first.report.fit, first.report.step or 0)
            self._times_lost = self._times_lost + 1 if place == self._lost_at else 1
            self._lost_at = place
        elif newest is not None:
            if newest > self._newest:
                self._in_a_row = 0
            self._newest = newest  # a smaller one after a rollback, of which the next backup is progress
        if not (self._on_error or first.is_worth_a_restart):
            return Decision(None, first.code, "this error would be raised again, so there is no restart")
        if not self._max_restarts:
            return Decision(None, first.code, "there is no restart, because --max-restarts is 0")
        if self._in_a_row >= self._max_restarts:
            count = f"{self._in_a_row} restart(s) in a row"
            return Decision(None, _USED_UP, f"restarting does not help: {count} left {self._left(newest)}")
        if self._times_lost > self._max_restarts:
            why = f"{self._times_lost} times it came to the same end without a backup, and began again"
            return Decision(None, _USED_UP, f"restarting does not help: {why}")
        self._in_a_row += 1
        delay = min(_LONGEST_DELAY, 2.0 ** (self._in_a_row - 2)) if self._in_a_row > 1 else 0.0
        if stop_at is not None and time.time() + delay >= stop_at:
            return Decision(None, RESTART_EXIT_CODE, "its time is over, so there is no restart: start the job again")
        return Decision(delay)

    def _left(self, newest: tuple[int, int] | None) -> str:
        """What there is to continue from, and the way to an older backup."""
        where = f" in {self._directory}" if self._directory else ""
        if newest is None and self._newest == NO_BACKUP:  # no process has said what there is
            return f"no newer backup{where}"
        if self._newest == NO_BACKUP:
            return f"no backup{where}"
        step = self._newest[1]
        way = f"`kdc rollback {shlex.quote(self._directory or 'DIRECTORY')} --before-step {step}`"
        found = f"no newer backup than that of step {step}{where}"
        return f"{found}; {way} lets it continue from an older one, if there is one"


def code_after_signal(number: signal.Signals, ends: list[WorkerEnd]) -> int:
    """The launcher's exit code after it was asked to end.

    Args:
        number: SIGINT, SIGTERM or SIGHUP.
        ends: All workers that ran, in the order of their ends.
    """
    if number == signal.SIGINT:
        return 128 + number
    return next((end.code for end in ends if end.code not in _PREEMPTED), RESTART_EXIT_CODE)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""Limits follow what was seen of each phase; nothing else is taken for a hang."""

from __future__ import annotations

from collections.abc import Iterable

from keras_dist_callbacks.base.progress_file import Phase, ProgressReport
from keras_dist_callbacks.launch.hang_watch import HangWatch


class Worker:
    """Reports as a training does, to a watch that looks twice a second."""

    def __init__(self, watch: HangWatch) -> None:
        self.watch = watch
        self.phase, self.step = Phase.OUTSIDE, 0
        self.entries = [1] + [0] * (len(Phase) - 1)

    def enter(self, phase: Phase, seconds: float) -> float | None:
        self.phase = phase
        self.entries[phase] += 1
        return self.stay(seconds)

    def train(self, durations: Iterable[float]) -> float | None:
        if self.phase is not Phase.STEP:
            self.step += 1
            self.enter(Phase.STEP, 0.0)
        for seconds in durations:
            if (limit := self.stay(seconds)) is not None:
                return limit
            self.step += 1
        return None

    def stay(self, seconds: float) -> float | None:
        """The limit that was exceeded meanwhile."""
        for _ in range(int(seconds * 2) + 1):
            report = ProgressReport(True, self.phase, 1, 0, self.step, None, 0, tuple(self.entries))
            limit = self.watch.look(report, 0.5)
            if limit is not None:
                return limit
        return None


def test_slow_starts_first_steps_and_first_validations_are_no_hangs() -> None:
    worker = Worker(HangWatch("auto"))
    assert worker.stay(1200) is None  # imports, restore, trace of the first step
    for _ in range(20):
        assert worker.train([0.1] * 30) is None
        assert worker.enter(Phase.EPOCH_END, 2.0) is None
        assert worker.enter(Phase.VALIDATION, 180.0) is None
        assert worker.enter(Phase.EPOCH_END, 5.0) is None


def test_a_frozen_step_is_a_hang_after_a_minute() -> None:
    worker = Worker(HangWatch("auto"))
    worker.stay(30)
    assert worker.train([0.1] * 10) is None
    assert worker.stay(59) is None
    assert worker.stay(2) == 60


def test_the_limit_is_five_times_the_longest() -> None:
    worker = Worker(HangWatch("auto"))
    assert worker.train([20.0, 1.0, 1.0]) is None
    assert worker.stay(95) is None
    limit = worker.stay(10)
    assert limit is not None
    assert 100 <= limit <= 106


def test_a_phase_that_was_seen_once_has_no_limit() -> None:
    worker = Worker(HangWatch("auto"))
    worker.train([0.1] * 10)
    worker.enter(Phase.VALIDATION, 1)
    worker.enter(Phase.EPOCH_END, 1)
    assert worker.enter(Phase.VALIDATION, 900) is None
    worker.enter(Phase.EPOCH_END, 1)
    assert worker.enter(Phase.VALIDATION, 4000) is None
    worker.enter(Phase.EPOCH_END, 1)
    assert worker.enter(Phase.VALIDATION, 25000) is not None


def test_phases_that_pass_between_two_looks_count() -> None:
    worker = Worker(HangWatch("auto"))
    worker.train([0.1] * 10)
    worker.entries[Phase.SAVE] = 2
    assert worker.enter(Phase.SAVE, 61) == 60


def test_a_number_is_the_limit_of_each_phase_but_not_of_the_start() -> None:
    worker = Worker(HangWatch(10.0))
    assert worker.stay(100) is None
    assert worker.enter(Phase.VALIDATION, 9) is None
    assert worker.enter(Phase.SAVE, 12) == 10


def test_without_a_timeout_nothing_is_a_hang() -> None:
    worker = Worker(HangWatch(None))
    worker.train([0.1] * 10)
    assert worker.stay(10_000) is None

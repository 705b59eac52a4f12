"""When a backup is due: at fixed intervals, by time, or as often as a share of the training time allows."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.cluster.cluster import Cluster
from keras_dist_callbacks.run.engine.schedule import SavePolicy, Schedule, parse_save_freq
from tests.support import tiny


class Training:
    """A made-up training: steps of 40 ms, saves that block, and writes that slow down the steps next to them."""

    def __init__(
        self,
        policy: SavePolicy,
        *,
        blocks: float = 0.0,
        writes: int = 0,
        slower: float = 0.0,
        cluster: Any = None,
    ) -> None:
        self.now = 0.0
        self.schedule = Schedule(policy, cluster or Cluster(), clock=lambda: self.now)
        self.blocks, self.writes, self.slower = blocks, writes, slower
        self.saves: list[int] = []
        self.step = self.writing = 0
        self.lost = 0.0

    def run(self, steps: int, seconds: float = 0.04) -> list[int]:
        for _ in range(steps):
            extra = self.slower if self.writing else 0.0
            self.now += seconds + extra
            self.lost += extra
            self.step += 1
            due = self.schedule.due(self.step, self.writing > 0)
            self.writing = max(0, self.writing - 1)
            if due:
                self.saves.append(self.step)
                self.now += self.blocks
                self.lost += self.blocks
                self.writing = self.writes
                self.schedule.taken(self.blocks)
        return self.saves


def test_a_number_of_batches_is_due_at_its_multiples_also_if_steps_are_jumped_over() -> None:
    schedule = Schedule(SavePolicy(10), Cluster())
    assert [s for s in (3, 6, 9, 12, 15, 18, 21, 40, 41) if schedule.due(s, False)] == [12, 21, 40]
    schedule.begin(35)
    assert [s for s in range(36, 55) if schedule.due(s, False)] == [40, 50]


@pytest.mark.parametrize("max_overhead", [0.01, 0.05])
@pytest.mark.parametrize(
    ("blocks", "writes", "slower"), [(0.1, 0, 0.0), (0.001, 5, 0.02), (0.05, 30, 0.01), (0.0, 100, 0.001)]
)
def test_auto_saves_as_often_as_the_overhead_allows(
    max_overhead: float, blocks: float, writes: int, slower: float
) -> None:
    training = Training(SavePolicy(max_overhead=max_overhead), blocks=blocks, writes=writes, slower=slower)
    training.run(20_000)
    overhead = training.lost / (20_000 * 0.04)
    assert overhead <= max_overhead * 1.05
    gaps = [b - a for a, b in zip(training.saves, training.saves[1:], strict=False)]
    cost = blocks + writes * slower
    affordable = max(cost / max_overhead / 0.04, writes + 1)
    assert gaps[-1] == pytest.approx(affordable, rel=0.05, abs=2)
    assert training.saves[0] == 20, "the first one comes early"


def test_auto_follows_when_steps_become_slower() -> None:
    training = Training(SavePolicy(max_overhead=0.02), blocks=0.1)
    training.run(3000)
    before = training.saves[-1] - training.saves[-2]
    training.run(3000, seconds=0.4)
    assert training.saves[-1] - training.saves[-2] == pytest.approx(before / 10, abs=2)


def test_a_time_is_kept_about_whatever_steps_take() -> None:
    training = Training(SavePolicy(every_seconds=60))
    training.run(10_000)
    assert training.saves[0] == pytest.approx(1500, abs=1)
    assert all(b - a == pytest.approx(1500, abs=1) for a, b in zip(training.saves, training.saves[1:], strict=False))
    training.run(5_000, seconds=0.4)
    assert training.saves[-1] - training.saves[-2] == pytest.approx(150, abs=1)


def test_slow_steps_are_saved_early() -> None:
    by_time = Training(SavePolicy(every_seconds=600))
    assert by_time.run(6, seconds=300.0) == [2, 4, 6]
    by_share = Training(SavePolicy(max_overhead=0.02), blocks=1.0)
    assert by_share.run(5, seconds=60.0)[:2] == [1, 2]


def test_a_save_that_is_due_while_one_is_written_is_taken_at_the_first_step_after_that() -> None:
    by_time = Training(SavePolicy(every_seconds=1), writes=500)
    by_time.run(5000)
    gaps = [b - a for a, b in zip(by_time.saves, by_time.saves[1:], strict=False)]
    assert set(gaps) == {501}
    by_steps = Training(SavePolicy(10), writes=25)
    assert by_steps.run(110) == [10, 36, 62, 88]
    assert Training(SavePolicy(10), writes=5).run(40) == [10, 20, 30, 40]


def test_where_training_waits_none_is_late() -> None:
    waiting, other = (Schedule(SavePolicy(10), Cluster(), waits=waits) for waits in (True, False))
    assert [s for s in range(1, 31) if waiting.due(s, True)] == [10, 20, 30]
    assert [s for s in range(1, 31) if other.due(s, True)] == []
    assert [s for s in range(31, 51) if other.due(s, False)] == [31, 40, 50]


def test_arguments_become_policies() -> None:
    assert parse_save_freq("epoch").at_epoch_end
    assert parse_save_freq(7) == SavePolicy(7)
    assert parse_save_freq("auto", 0.1) == SavePolicy(max_overhead=0.1)
    assert parse_save_freq(datetime.timedelta(minutes=2)) == SavePolicy(every_seconds=120.0)
    assert not any(parse_save_freq(f).at_epoch_end for f in (3, "auto", datetime.timedelta(1)))


class Wire:
    """What the chief broadcasts, for a worker that runs afterwards."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def of_chief(self) -> Any:
        return SimpleNamespace(num_workers=2, broadcast=lambda value, what, kind=None: self.sent.append(value) or value)

    def of_worker(self) -> Any:
        return SimpleNamespace(num_workers=2, broadcast=lambda value, what, kind=None: self.sent.pop(0))


@pytest.mark.parametrize("policy", [SavePolicy(max_overhead=0.02), SavePolicy(every_seconds=7.0), SavePolicy(4)])
def test_a_worker_with_other_times_saves_at_the_chiefs_steps(policy: SavePolicy) -> None:
    wire = Wire()
    chief = Training(policy, blocks=0.01, writes=5, slower=0.03, cluster=wire.of_chief()).run(2000)
    worker = Training(policy, blocks=0.3, cluster=wire.of_worker()).run(2000, seconds=0.1)
    assert len(chief) > 5
    assert worker == chief
    assert not wire.sent, "both ask equally often"
    assert Training(policy, blocks=0.3).run(2000, seconds=0.1) != chief, "alone it would save elsewhere"


def test_workers_that_wait_for_a_slow_write_ask_seldom_and_save_soon_after_it() -> None:
    wire = Wire()
    saves = Training(SavePolicy(10), writes=5000, cluster=wire.of_chief()).run(6000)
    assert saves[0] == 10
    assert 5010 < saves[1] < 5010 * 1.1
    assert len(wire.sent) < 150


@pytest.mark.parametrize("share", [0, 1, -0.1, 5])
def test_an_overhead_that_is_not_a_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="max_overhead must be between 0 and 1"):
        kdc.BackupAndRestore("somewhere", save_freq="auto", max_overhead=share)


@pytest.mark.in_gate(1)
@pytest.mark.slow
@pytest.mark.parametrize(("save_freq", "first"), [("auto", 20), (datetime.timedelta(microseconds=1), 1)])
def test_a_run_that_saves_by_measure_continues_exactly(tmp_path: Path, save_freq: Any, first: int) -> None:
    given: dict[str, Any] = {"save_freq": save_freq, "epochs": 6, "expects": None}
    ended = tiny.resumes(tmp_path, at=(5, 3), callbacks=lambda: [tiny.CountSteps()], **given)
    assert ended.restored.step >= first
    assert len(ended.callbacks[0].trained) == 6 * tiny.STEPS - ended.restored.step

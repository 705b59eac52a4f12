"""A job with a time limit is saved and stopped before its end, and continues exactly."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.snapshot import Position
from keras_dist_callbacks.base import progress_file
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.machine import process_start
from keras_dist_callbacks.base.process import PARTS, shared
from keras_dist_callbacks.base.progress_file import ProgressFile
from keras_dist_callbacks.launch.launch_options import JOB_STARTED
from keras_dist_callbacks.run.engine.committer import Committer
from keras_dist_callbacks.run.shutdown import controller, preemption_notice, time_limit
from keras_dist_callbacks.run.shutdown.time_limit import TimeLimit
from tests.support import tiny
from tests.support.early_exits import FOREVER, ActionAt, assert_nothing_is_left, fit, resume_and_compare
from tests.support.launching import wait_for

HOUR = datetime.timedelta(hours=1)
LONG = datetime.timedelta(seconds=2 * FOREVER)
START = 1_700_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The time by which limits are judged, `now`; the job has begun at `START`."""
    held = SimpleNamespace(now=START)
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(time=lambda: held.now))
    monkeypatch.setattr(preemption_notice, "_EVERY_SECONDS", 0.01)
    monkeypatch.setenv(JOB_STARTED, str(START))
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    yield held
    assert_nothing_is_left()


OURS, SLURMS = "the time limit of 1:00:00", "the end of the Slurm job"
ENDS = {
    "the launcher's start": ({JOB_STARTED: "1000.5"}, 4600.5, OURS),
    "an earlier end of Slurm's": ({JOB_STARTED: "1000", "SLURM_JOB_END_TIME": "4599"}, 4599, SLURMS),
    "a later end of Slurm's": ({JOB_STARTED: "1000", "SLURM_JOB_END_TIME": "4601"}, 4600, OURS),
    "Slurm's unlimited": ({JOB_STARTED: "1000", "SLURM_JOB_END_TIME": "0"}, 4600, OURS),
    "not a time of Slurm's": ({JOB_STARTED: "1000", "SLURM_JOB_END_TIME": "Unknown"}, 4600, OURS),
    "this process": ({}, process_start() + 3600, OURS),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_earlier_of_the_limit_and_slurms_end_counts(case: str) -> None:
    environ, end, name = ENDS[case]
    limit = TimeLimit.of(HOUR, 25.0, lambda: 60.0, environ)
    assert (limit.end, limit.name) == (pytest.approx(end, abs=0.1), name)


def test_the_save_and_the_grace_are_left_before_the_end(
    clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress_file.create(tmp_path / "progress")
    monkeypatch.setenv(progress_file.VARIABLE, str(tmp_path / "progress"))
    monkeypatch.setitem(PARTS, ProgressFile, ProgressFile())
    save = SimpleNamespace(seconds=60.0)
    limit = TimeLimit.of(HOUR, 25.0, lambda: save.seconds)
    for seconds in (60.0, 600.0, 0.5):
        save.seconds = seconds
        stop_at = START + 3600 - 25 - seconds
        clock.now = stop_at - 0.1
        assert not limit.is_reached()
        clock.now = stop_at
        assert limit.is_reached()
        assert limit.left == 25 + seconds
        assert progress_file.read(tmp_path / "progress").stop_at == int(stop_at), "it is what a launcher learns"
    clock.now = START + 7200
    assert limit.left == 25.0, "what is late may take the grace period all the same"


@pytest.mark.slow
def test_a_save_may_take_as_long_as_the_longest_so_far_after_the_one_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    commit, begun, release = Committer.commit, threading.Event(), threading.Event()

    def first_is_slow(self: Committer, *arguments: Any) -> None:
        if not begun.is_set():
            begun.set()
            release.wait(30)
            time.sleep(0.4)
        commit(self, *arguments)

    class Look(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            engine = shared(controller.StoppableRuns).open[-1]._engine
            if epoch == 1:  # the first save is being written
                begun.wait(30)
                seen.append(engine.seconds_to_save)
                release.set()
            engine.drain()
            seen.append(engine.seconds_to_save)

    kdc.advanced.register_callback_state(Look, None)
    monkeypatch.setattr(Committer, "commit", first_is_slow)
    fit(tmp_path, Look(), validate=False)
    before, during, after, later = seen
    assert before == 60.0
    assert during > 60.0
    assert 0.4 <= after < 30.0
    assert later == after, "the longest counts, not the last"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["at once", "in a later step"])
def test_a_fit_stops_in_time_and_continues_exactly(
    tmp_path: Path, clock: SimpleNamespace, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def pass_time() -> None:
        run = shared(controller.StoppableRuns).open[-1]
        clock.now = START + LONG.total_seconds() - FOREVER - 60
        wait_for(lambda: run._watchdog._deadline is not None)
        assert run._watchdog.seconds == FOREVER + 60, "not the grace period alone"

    reference, steps = fit(None), tiny.CountSteps()
    others = [] if where == "at once" else [ActionAt("on_train_batch_end", (1, 2), pass_time)]
    clock.now = START if others else START + LONG.total_seconds()
    with pytest.raises(kdc.Preempted, match=r"by the time limit of 23 days.*; everything is saved") as left:
        fit(tmp_path, steps, *others, time_limit=LONG, save_freq=False)
    assert left.value.code == 138
    clock.now = START
    position = resume_and_compare(tmp_path, reference, steps, time_limit=LONG, grace_period=FOREVER).restored.position
    assert (position.epoch, position.batch) == ((1, 3) if others else (0, 1))
    assert steps.trained == [(epoch, batch) for epoch in range(3) for batch in range(tiny.STEPS)]
    assert "Start the job again to resume" in capsys.readouterr().out


@pytest.mark.slow
def test_a_loop_of_ones_own_stops_in_time(tmp_path: Path, clock: SimpleNamespace) -> None:
    def loop() -> list[Position]:
        model = tiny.model()
        model.optimizer.build(model.trainable_variables)
        options = kdc.ShutdownOptions(time_limit=LONG, grace_period=FOREVER)
        data, found = tiny.shuffled(), []
        with kdc.Checkpointer(
            tmp_path, model=model, optimizer=model.optimizer, save_freq=False, shutdown_options=options
        ) as checkpointer:
            checkpointer.restore()
            for epoch in checkpointer.epochs(2):
                for _ in checkpointer.batches(data):
                    found.append((epoch, checkpointer.batch))
                    checkpointer.step()
        return found

    clock.now = START + LONG.total_seconds()
    with pytest.raises(kdc.Preempted, match=r"by the time limit of .*epoch 1, batch 1"):
        loop()
    clock.now = START
    assert loop() == [(epoch, batch) for epoch in range(2) for batch in range(tiny.STEPS)][1:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": datetime.timedelta()}, "time_limit must be a datetime.timedelta above 0"),
        ({"time_limit": -HOUR}, "time_limit must be a datetime.timedelta above 0"),
        ({"time_limit": 3600}, r"must be a datetime.timedelta above 0, such as timedelta\(hours=11.*got 3600"),
        ({"time_limit": "11:50"}, "time_limit must be a datetime.timedelta"),
        ({"time_limit": datetime.timedelta(seconds=85)}, r"leaves no time for training: 85 s .*\(60 s\)"),
        ({"time_limit": HOUR, "grace_period": 3600.0}, "leaves no time for training"),
        ({"time_limit": HOUR, "save_before_preemption": False}, "no effect with save_before_preemption=False"),
    ],
)
def test_a_wrong_limit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kdc.ShutdownOptions(**options)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["yesterday", "-1", "nan", "0"])
def test_a_start_of_the_job_that_is_not_a_time_is_an_error_before_training(
    tmp_path: Path, clock: SimpleNamespace, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JOB_STARTED, text)
    steps = tiny.CountSteps()
    with pytest.raises(ConfigError, match=r"KDC_JOB_STARTED must be a time in seconds since 1970"):
        fit(tmp_path, steps, time_limit=LONG)
    assert steps.trained == []

"""A run that is left early saves what was trained: at a signal and a notice."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base import progress_file
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.base.terminal import Output
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.shutdown import signals
from tests.support import tiny
from tests.support.early_exits import (
    FOREVER,
    Action,
    ActionAt,
    assert_nothing_is_left,
    fail,
    fit,
    raise_signal,
    resume_and_compare,
    validation,
)
from tests.support.grouped import grouped

pytestmark = pytest.mark.slow  # complete fits


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(shared(Output), "said", set())
    monkeypatch.setattr(shared(signals._Listeners), "unheeded", [])
    yield
    assert_nothing_is_left()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # a process that is to end ignores it


@pytest.fixture(scope="module")
def reference() -> keras.Model:
    return fit(None)


WHERE = {
    "a step": ("on_train_batch_end", (1, 2), (1, 3)),
    "the first step": ("on_train_batch_begin", (0, 0), (0, 1)),
    "validation": ("on_test_batch_end", (1, 1), (1, 5)),
    "the end of an epoch": ("on_epoch_end", (1, 0), (2, 0)),
    "the begin of an epoch": ("on_epoch_begin", (1, 0), (1, 1)),
    "the last epoch's end": ("on_epoch_end", (2, 0), (3, 0)),
}


def test_under_kdc_launch_nobody_is_asked_to_start_the_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(progress_file.VARIABLE, str(tmp_path / "progress"))
    with pytest.raises(kdc.Preempted):
        fit(tmp_path / "backup", ActionAt("on_train_batch_end", (1, 2), raise_signal()), save_freq=False)
    assert capsys.readouterr().out.splitlines()[-1].endswith("everything is saved")


@pytest.mark.in_gate(2)
@pytest.mark.parametrize("where", WHERE)
def test_a_signal_saves_the_step_and_leaves(
    tmp_path: Path, reference: keras.Model, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hook, when, (epoch, batch) = WHERE[where]
    steps = tiny.CountSteps()
    with pytest.raises(kdc.Preempted) as left:
        fit(tmp_path, steps, ActionAt(hook, when, raise_signal()), save_freq=False)
    assert left.value.code == 138
    assert "Preempted by SIGUSR1" in left.value.reason
    assert "everything is saved. Start the job again to resume" in capsys.readouterr().out
    position = resume_and_compare(tmp_path, reference, steps).restored.position
    assert (position.epoch, position.batch) == (epoch, batch)
    assert steps.trained == [(e, b) for e in range(3) for b in range(tiny.STEPS)]


def test_signals_are_given_back_after_fit(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGINT)
    fit(tmp_path)
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGINT)) == before


def test_a_handler_that_was_there_is_called_after_the_commit(tmp_path: Path) -> None:
    commits: list[int] = []

    def own(number: int, frame: Any) -> None:
        commits.append(len(list(tmp_path.glob("commits/*.json"))))

    before = signal.signal(signal.SIGUSR1, own)
    try:
        with pytest.raises(kdc.Preempted):
            fit(tmp_path, ActionAt("on_train_batch_end", (0, 1), raise_signal()), save_freq=False)
        assert commits == [1]
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        fit(tmp_path, ActionAt("on_train_batch_end", (0, 1), raise_signal()))
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    try:
        fit(tmp_path, ActionAt("on_train_batch_end", (0, 1), raise_signal()), save_before_preemption=False)
        assert calls == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_another_thread_it_is_off_and_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in range(2):
        thread = threading.Thread(target=fit, args=(tmp_path / str(run),))
        thread.start()
        thread.join()
    assert capsys.readouterr().out.count("SIGUSR1 is not handled: fit() does not run in the main thread") == 1


def test_a_notice_is_like_a_signal(tmp_path: Path, reference: keras.Model) -> None:
    notice = tmp_path / "leave"
    notice.touch()
    with pytest.raises(kdc.Preempted, match="Preempted by the file"):
        fit(tmp_path / "backup", notice=notice)
    assert resume_and_compare(tmp_path / "backup", reference).restored.position.step == 1


def test_a_signal_that_comes_while_a_run_ends_is_obeyed_by_the_next(
    tmp_path: Path, reference: keras.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that ends has nothing left to lose, and its backup is being deleted."""
    finish = BackupEngine.finish

    def signalled(engine: BackupEngine, *arguments: Any, **options: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        finish(engine, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(BackupEngine, "finish", signalled)
        tiny.assert_same(fit(tmp_path / "one"), reference)
    with pytest.raises(kdc.Preempted):
        fit(tmp_path / "two")
    assert resume_and_compare(tmp_path / "two", reference).restored.position.step == 1
    tiny.assert_same(fit(tmp_path / "three"), reference)  # it is obeyed once


def test_without_save_freq_only_the_end_is_saved(tmp_path: Path) -> None:
    commits: list[int] = []
    count = ActionAt("on_epoch_end", (2, 0), lambda: commits.append(len(list(tmp_path.glob("commits/*.json")))))
    fit(tmp_path, count, save_freq=False, delete_checkpoint=False)
    assert commits == [0]
    assert len(list(tmp_path.glob("commits/*.json"))) == 1


def test_training_that_was_stopped_is_not_trained_on(tmp_path: Path) -> None:
    """Preempted in the validation after a batch at which a callback had ended training."""

    def train_with_backups(backup: Path | None, *more: Any) -> tuple[keras.Model, tiny.CountSteps]:
        built, steps = tiny.model(), tiny.CountSteps()
        stop = ActionAt("on_train_batch_end", (1, 2), lambda: setattr(built, "stop_training", True))
        options = {"signals": ["SIGUSR1"], "grace_period": FOREVER}
        tiny.fit(built, backup, [steps, stop, *more], options=options, validation_data=validation())
        return built, steps

    expected, steps = train_with_backups(None)
    assert steps.trained[-1] == (1, 2)
    with pytest.raises(kdc.Preempted):
        train_with_backups(tmp_path, ActionAt("on_test_batch_end", (1, 0), raise_signal()))
    found, steps = train_with_backups(tmp_path)
    tiny.assert_same(found, expected)
    assert steps.trained == []


def test_a_notice_that_cannot_be_asked_is_an_error_before_training(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    steps = tiny.CountSteps()
    with pytest.raises(OSError, match="refused"):
        fit(tmp_path, steps, notice=kdc.gce_notice("http://127.0.0.1:9"))
    assert steps.trained == []
    assert signal.getsignal(signal.SIGINT) is before


HANGS = """
import os, signal, sys, time
import numpy as np, keras
import keras_dist_callbacks as kdc

class Hangs(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
backup = kdc.BackupAndRestore(sys.argv[1], shutdown_options=kdc.ShutdownOptions(grace_period=1.0))
model.fit(np.zeros((8, 2)), np.zeros((8, 1)), verbose=0, callbacks=[Hangs(), backup])
"""


@pytest.mark.process
def test_a_step_that_never_ends_is_terminated_by_the_grace_period(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 138, ended.stderr
    assert "the grace period of 1 s is over, and this process is terminated; no backup was committed" in ended.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grace_period": 0}, "grace_period"),
        ({"signals": ["SIGNONE"]}, "SIGNONE"),
        ({"signals": ["SIGKILL"]}, "a process cannot handle SIGKILL"),
        ({"notice": 7}, "a path or a function"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(kdc.ConfigError, match=message):
        kdc.BackupAndRestore(tmp_path, **grouped(**options))


def loop(backup: Path, act: Action, when: tuple[int, int], *, before_step: bool = False, **options: Any) -> list[float]:
    """A loop of one's own with an event before or after `step()`; its weights in the end."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    chosen = {"signals": ["SIGUSR1"], "grace_period": FOREVER, "save_freq": False, **options}
    data = tiny.shuffled()
    with kdc.Checkpointer(backup, model=model, optimizer=optimizer, **grouped(**chosen)) as checkpointer:
        checkpointer.restore()
        for epoch in checkpointer.epochs(3):
            for x, y in checkpointer.batches(data):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - y) ** 2)
                now = (epoch, checkpointer.batch)
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
                if now == when and before_step:
                    act()
                checkpointer.step()
                if now == when and not before_step:
                    act()
    return list(np.asarray(model.get_weights()[0]).ravel())


def test_a_loop_of_ones_own_is_left_with_a_backup(tmp_path: Path) -> None:
    expected = loop(tmp_path / "reference", lambda: None, (0, 0))
    with pytest.raises(kdc.Preempted, match="epoch 2, batch 3"):
        loop(tmp_path / "backup", raise_signal(), (1, 2), before_step=True)
    assert loop(tmp_path / "backup", lambda: None, (0, 0)) == expected


def test_an_exception_in_a_loop_of_ones_own_is_saved_after_a_step(tmp_path: Path) -> None:
    expected = loop(tmp_path / "reference", lambda: None, (0, 0))
    with pytest.raises(tiny.Stop) as raised:
        loop(tmp_path / "backup", fail, (1, 2))
    assert raised.value.__notes__[-1].endswith("a restart loses no step")
    with pytest.raises(tiny.Stop) as raised:
        loop(tmp_path / "backup", fail, (1, 4), before_step=True)
    assert raised.value.__notes__[-1].endswith("epoch 2, batch 3 (step 8); a restart trains 1 step again")
    assert loop(tmp_path / "backup", lambda: None, (0, 0)) == expected

"""A fit() within a callback of another fit(): signals reach the inner one, then the outer one again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.base.process import shared
from keras_dist_callbacks.base.terminal import Output
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.shutdown import controller, signals
from tests.support import tiny
from tests.support.early_exits import FOREVER, ActionAt, assert_nothing_is_left, fit, raise_signal, resume_and_compare
from tests.support.grouped import grouped

pytestmark = pytest.mark.slow  # complete fits
OPTIONS: dict[str, Any] = {"signals": ["SIGUSR1"], "grace_period": FOREVER}


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(shared(Output), "said", set())
    monkeypatch.setattr(shared(signals._Listeners), "unheeded", [])
    yield
    assert_nothing_is_left()
    assert shared(controller.StoppableRuns).open == []
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # a process that exits ignores it
    assert signal.set_wakeup_fd(-1) == -1


def inner(backup: Path | None, *callbacks: Any) -> None:
    keras.utils.set_random_seed(11)
    tiny.fit(tiny.model(clear=False), backup, callbacks, epochs=1, save_freq=2, options=OPTIONS)


def at_epoch_end(act: Callable[[], Any]) -> ActionAt:
    return ActionAt("on_epoch_end", (0, 0), act)


@pytest.fixture(scope="module")
def reference() -> keras.Model:
    return fit(None, at_epoch_end(lambda: inner(None)))


def test_the_outer_run_is_preempted_after_an_inner_one_has_ended(tmp_path: Path, reference: keras.Model) -> None:
    steps = tiny.CountSteps()
    with pytest.raises(kdc.Preempted, match="everything is saved"):
        fit(
            tmp_path / "outer",
            steps,
            at_epoch_end(lambda: inner(tmp_path / "inner")),
            ActionAt("on_train_batch_end", (1, 2), raise_signal()),
            save_freq=False,
        )
    assert resume_and_compare(tmp_path / "outer", reference, steps).restored.position.step == tiny.STEPS + 3
    assert steps.trained == [(e, b) for e in range(3) for b in range(tiny.STEPS)]


def test_a_signal_within_the_inner_run_saves_both(tmp_path: Path, reference: keras.Model) -> None:
    in_inner = ActionAt("on_train_batch_end", (0, 1), raise_signal())
    with pytest.raises(kdc.Preempted, match="epoch 1, batch 2"):
        fit(tmp_path / "outer", at_epoch_end(lambda: inner(tmp_path / "inner", in_inner)), save_freq=False)
    assert list((tmp_path / "inner" / "commits").iterdir()), "the inner run saved nothing"
    again = at_epoch_end(lambda: inner(tmp_path / "inner"))
    assert resume_and_compare(tmp_path / "outer", reference, again).restored.position.step == tiny.STEPS


def test_an_inner_run_that_failed_before_its_first_step_leaves_the_signals_to_the_outer_one(
    tmp_path: Path, reference: keras.Model
) -> None:
    def failing() -> None:
        fails = ActionAt("on_train_begin", (0, 0), lambda: None)
        fails.on_train_begin = lambda logs=None: (_ for _ in ()).throw(tiny.Stop("no training"))
        with pytest.raises(tiny.Stop):
            inner(tmp_path / "inner", fails)
        inner(None)

    with pytest.raises(kdc.Preempted):
        fit(tmp_path / "outer", at_epoch_end(failing), ActionAt("on_train_batch_end", (1, 0), raise_signal()))
    assert resume_and_compare(tmp_path / "outer", reference).restored.position.step == tiny.STEPS + 1


def test_a_signal_that_comes_while_the_inner_run_ends_stops_the_outer_one(
    tmp_path: Path, reference: keras.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = BackupEngine.finish

    def signalled(engine: BackupEngine, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(BackupEngine, "finish", finish)
        finish(engine, *arguments, **options)
        signal.raise_signal(signal.SIGUSR1)

    def ends_with_signal() -> None:
        monkeypatch.setattr(BackupEngine, "finish", signalled)
        inner(tmp_path / "inner")

    with pytest.raises(kdc.Preempted):
        fit(tmp_path / "outer", at_epoch_end(ends_with_signal), save_freq=False)
    assert resume_and_compare(tmp_path / "outer", reference).restored.position.step == tiny.STEPS


def test_a_loop_with_a_checkpointer_is_preempted_after_a_fit_within_it(tmp_path: Path) -> None:
    model, optimizer = tiny.model(), keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensor_slices(tiny.data()).batch(tiny.BATCH)

    def train() -> None:
        with kdc.Checkpointer(
            tmp_path / "loop", model=model, optimizer=optimizer, save_freq=False, **grouped(**OPTIONS)
        ) as loop:
            loop.restore()
            for epoch in loop.epochs(2):
                for batch, _ in enumerate(loop.batches(data)):
                    if (epoch, batch) == (0, 1):
                        inner(tmp_path / "inner")
                    if (epoch, batch) == (1, 1):
                        signal.raise_signal(signal.SIGUSR1)
                    loop.step()

    with pytest.raises(kdc.Preempted, match="everything is saved"):
        train()


def test_a_fit_is_preempted_after_a_loop_with_a_checkpointer_within_it(tmp_path: Path) -> None:
    def loop() -> None:
        model = tiny.model(clear=False)
        with kdc.Checkpointer(tmp_path / "loop", model=model, **grouped(**OPTIONS)) as checkpointer:
            checkpointer.restore()
            for _ in checkpointer.epochs(1):
                checkpointer.step()

    with pytest.raises(kdc.Preempted, match="everything is saved"):
        fit(tmp_path / "outer", at_epoch_end(loop), ActionAt("on_train_batch_end", (1, 2), raise_signal()))


def test_a_loop_that_was_dropped_without_close_does_not_get_the_signals_back(tmp_path: Path) -> None:
    kdc.Checkpointer(tmp_path / "dropped", model=tiny.model(), **grouped(**OPTIONS)).restore()
    fit(tmp_path / "backup")
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL

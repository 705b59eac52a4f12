"""Exceptions and Ctrl-C: what was trained before them is saved."""

from __future__ import annotations

import _thread
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.run.engine.engine import BackupEngine
from keras_dist_callbacks.run.shutdown import signals
from tests.support import tiny
from tests.support.early_exits import (
    ActionAt,
    Remembers,
    assert_nothing_is_left,
    fail,
    fit,
    raise_signal,
    resume_and_compare,
)

pytestmark = pytest.mark.slow  # complete fits


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert_nothing_is_left()


@pytest.fixture(scope="module")
def reference() -> keras.Model:
    return fit(None)


EXCEPTIONS = {
    "a callback behind a step": ("on_train_batch_end", (1, 2), (1, 3)),
    "a callback before a step": ("on_train_batch_begin", (1, 2), (1, 2)),
    "validation": ("on_test_batch_end", (1, 1), (1, 5)),
    "an epoch's end": ("on_epoch_end", (1, 0), (1, 5)),
}


@pytest.mark.in_gate(1)
@pytest.mark.parametrize("where", EXCEPTIONS)
def test_an_exception_between_two_steps_is_saved(tmp_path: Path, reference: keras.Model, where: str) -> None:
    hook, when, (epoch, batch) = EXCEPTIONS[where]
    with pytest.raises(tiny.Stop) as raised:
        fit(tmp_path, ActionAt(hook, when, fail), save_freq=False)
    assert "a restart loses no step" in raised.value.__notes__[-1]
    restored = resume_and_compare(tmp_path, reference).restored
    assert (restored.position.epoch, restored.position.batch) == (epoch, batch)
    assert restored.verdict == "exact"


@pytest.mark.parametrize("epoch", [0, 1])
def test_before_an_epochs_first_step_nothing_is_saved_and_the_last_backup_is_named(tmp_path: Path, epoch: int) -> None:
    with pytest.raises(tiny.Stop) as raised:
        fit(tmp_path, ActionAt("on_train_batch_begin", (epoch, 0), fail), save_freq=3)
    (note,) = raised.value.__notes__
    assert ("a restart trains 2 steps again" if epoch else "no backup was committed") in note


def test_a_backup_that_fails_after_an_exception_does_not_say_that_training_continues(tmp_path: Path) -> None:
    def fail_without_a_store() -> None:
        shutil.rmtree(tmp_path / "blobs", ignore_errors=True)
        (tmp_path / "blobs").write_text("a file")
        fail()

    with pytest.raises(tiny.Stop) as raised:
        fit(tmp_path, ActionAt("on_train_batch_end", (1, 2), fail_without_a_store), save_freq=False)
    notes = "; ".join(raised.value.__notes__)
    assert "the backup at epoch 2, batch 3 (step 8) failed: " in notes


class Looks(keras.callbacks.Callback):
    """Has a hook that calls something, and assigns to nothing."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        sorted(logs)


class Raises(keras.callbacks.Callback):
    """Nobody has said that it keeps no state."""

    def __init__(self, when: tuple[int, int]) -> None:
        super().__init__()
        self.when = when

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (len(self.model.history.epoch), batch) == self.when:
            fail()


def a_lambda() -> keras.callbacks.Callback:
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: len(logs))


def stateless(when: tuple[int, int]) -> ActionAt:
    return ActionAt("on_train_batch_end", when, fail)


class Missed(NamedTuple):
    """What callbacks before and after the one that raises make of a resume, and which of them are named."""

    verdict: str
    code: str = ""
    named: str = ""
    before: Callable[[], Any] | None = None
    raises: Callable[[tuple[int, int]], Any] = stateless
    after: Callable[[], Any] | None = None


MISSED = {
    "the progress bar": Missed("exact", after=keras.callbacks.ProgbarLogger),
    "one that counts, before": Missed("exact", before=Remembers),
    "one that counts": Missed("not exact", "missed-hooks", "Remembers", after=Remembers),
    "one that only looks": Missed("exact if", "cut-hooks", "Looks", after=Looks),
    "a lambda": Missed("exact if", "cut-hooks", "LambdaCallback", after=a_lambda),
    "the one that raises": Missed("exact if", "cut-hooks", "Raises", raises=Raises),
}


@pytest.mark.in_gate(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.finds(missed.code)] if missed.code else [])
        for name, missed in MISSED.items()
    ],
)
@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_what_an_exception_in_a_callback_cut_off_is_named_where_it_may_matter(
    tmp_path: Path, reference: keras.Model, name: str
) -> None:
    missed = MISSED[name]

    def callbacks(when: tuple[int, int]) -> list[Any]:
        before, after = ([make()] if make else [] for make in (missed.before, missed.after))
        return [*before, missed.raises(when), *after]

    tiny.stopped(fit, tmp_path, *callbacks((1, 2)), save_freq=False)
    restored = resume_and_compare(tmp_path, reference, *callbacks((9, 0))).restored
    assert restored.verdict == missed.verdict, restored.findings
    found = [(finding.code, finding.detail) for finding in restored.findings if "hooks" in finding.code]
    assert found == ([(missed.code, (f"{missed.named}.on_train_batch_end",))] if missed.code else [])


def test_an_exception_out_of_a_step_leaves_the_last_backup_and_says_what_it_costs(tmp_path: Path) -> None:
    def batches() -> Iterator[tuple[Any, Any]]:
        x, y = tiny.data()
        for number in range(8):
            if number == 7:
                raise tiny.Stop("the input fails")
            yield x[:8], y[:8]

    spec = (tf.TensorSpec((8, 6)), tf.TensorSpec((8, 1)))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    built = tiny.model()
    callback = kdc.BackupAndRestore(tmp_path, save_freq=5, write_options=kdc.WriteOptions(when_busy="wait"))
    with pytest.raises(tf.errors.OpError) as raised:
        built.fit(data, epochs=1, verbose=0, callbacks=[callback], shuffle=False)
    assert raised.value.__notes__[-1] == (
        f"the newest backup in {tmp_path} is at epoch 1, batch 5 (step 5); a restart trains 2 steps again"
    )


def test_it_can_leave_exceptions_alone(tmp_path: Path) -> None:
    with pytest.raises(tiny.Stop) as raised:
        fit(tmp_path, ActionAt("on_train_batch_end", (1, 2), fail), save_on_exception=False)
    assert raised.value.__notes__[-1].endswith("a restart trains 3 steps again")


def test_the_first_ctrl_c_waits_for_the_step(tmp_path: Path, reference: keras.Model) -> None:
    with pytest.raises(KeyboardInterrupt, match="Interrupted by Ctrl-C at epoch 2, batch 3"):
        fit(tmp_path, ActionAt("on_train_batch_begin", (1, 2), raise_signal(signal.SIGINT)), save_freq=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert resume_and_compare(tmp_path, reference).restored.position.step == tiny.STEPS + 3


def test_the_second_ctrl_c_is_raised_at_once(tmp_path: Path) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, ActionAt("on_train_batch_begin", (1, 2), twice))


def test_a_ctrl_c_after_the_last_step_is_raised_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the end of training is committed, there is no step to wait for."""
    finish = BackupEngine.finish

    def interrupted(engine: BackupEngine, *arguments: Any, **options: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        finish(engine, *arguments, **options)
        raise AssertionError("it went on")

    monkeypatch.setattr(BackupEngine, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path)


def test_ctrl_c_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_INTERRUPT_SECONDS", 0.2)
    waiting = threading.Event()

    def hangs() -> None:
        _thread.interrupt_main()
        began.append(time.monotonic())
        waiting.wait(60)

    began: list[float] = []
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, ActionAt("on_train_batch_begin", (1, 2), hangs))
    assert time.monotonic() - began[0] < 50, "the main thread came back by itself"


def test_a_save_after_ctrl_c_is_not_cut_off_when_the_wait_for_the_step_is_over(
    tmp_path: Path, reference: keras.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_INTERRUPT_SECONDS", 0.5)
    leave = BackupEngine.leave

    def slowly(engine: BackupEngine, *arguments: Any) -> Any:
        time.sleep(1.5)
        return leave(engine, *arguments)

    monkeypatch.setattr(BackupEngine, "leave", slowly)
    with pytest.raises(KeyboardInterrupt, match="Interrupted by Ctrl-C at epoch 2, batch 3"):
        fit(tmp_path, ActionAt("on_train_batch_begin", (1, 2), raise_signal(signal.SIGINT)), save_freq=False)
    assert resume_and_compare(tmp_path, reference).restored.position.step == tiny.STEPS + 3

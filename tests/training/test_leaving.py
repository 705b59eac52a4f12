"""A run that is left early saves what was trained: at a signal, a notice, Ctrl-C and an exception."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dist_callbacks as kdc
from keras_dist_callbacks.training import leaving
from tests.support import tiny

FOREVER = 1e6  # a watchdog that is started by a test must not end the process of all tests
Act = Callable[[], Any]


class At(keras.callbacks.Callback):
    """Does something once, in one hook."""

    def __init__(self, hook: str, when: tuple[int, int], act: Act) -> None:
        super().__init__()
        self.epoch = 0
        setattr(self, hook, lambda index, logs=None: self._come(hook, index, when, act))

    def _come(self, hook: str, index: int, when: tuple[int, int], act: Act) -> None:
        if hook == "on_epoch_begin":
            self.epoch = index
        now = (index, 0) if "epoch" in hook else (self.epoch_of_history(), index)
        if now == when:
            act()

    def epoch_of_history(self) -> int:
        return len(self.model.history.epoch)


class Remembers(keras.callbacks.Callback):
    """Has a state of its own, which each batch changes."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1


kdc.register_callback_state(At, None)


def raise_signal(number: signal.Signals = signal.SIGUSR1) -> Act:
    return lambda: signal.raise_signal(number)


def fail() -> None:
    raise tiny.Stop("stopped here")


def validation() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tiny.data()).shuffle(tiny.ROWS, seed=5).batch(tiny.BATCH)


def fit(backup: Path | None, *callbacks: Any, validate: bool = True, **options: Any) -> keras.Model:
    built = tiny.model()
    chosen = {"preemption_signals": ["SIGUSR1"], "grace_period": FOREVER, "save_on_exception": True, **options}
    arguments = {"validation_data": validation()} if validate else {}
    tiny.fit(built, backup, callbacks, save_freq=chosen.pop("save_freq", "epoch"), options=chosen, **arguments)
    return built


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(leaving, "_told", set())
    yield
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # a process that is to end ignores it


@pytest.fixture
def reference() -> keras.Model:
    return fit(None)


def goes_on(backup: Path, reference: keras.Model, *callbacks: Any, **options: Any) -> kdc.BackupAndRestore:
    """The run that follows: its end, and what it says."""
    built = tiny.model()
    callback = kdc.BackupAndRestore(backup, **options)
    tiny.fit(built, None, [*callbacks, callback], validation_data=validation())
    tiny.assert_same(built, reference)
    assert callback.restored is not None
    return callback


WHERE = {
    "a step": ("on_train_batch_end", (1, 2), (1, 3)),
    "the first step": ("on_train_batch_begin", (0, 0), (0, 1)),
    "validation": ("on_test_batch_end", (1, 1), (1, 5)),
    "the end of an epoch": ("on_epoch_end", (1, 0), (2, 0)),
    "the begin of an epoch": ("on_epoch_begin", (1, 0), (1, 1)),
    "the last epoch's end": ("on_epoch_end", (2, 0), (3, 0)),
}


@pytest.mark.parametrize("where", WHERE)
def test_a_signal_saves_the_step_and_leaves(
    tmp_path: Path, reference: keras.Model, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hook, when, (epoch, batch) = WHERE[where]
    steps = tiny.CountSteps()
    with pytest.raises(kdc.Preempted) as left:
        fit(tmp_path, steps, At(hook, when, raise_signal()), save_freq=False)
    assert left.value.code == 138
    assert "Preempted by SIGUSR1" in left.value.reason
    assert "everything is saved. Start the job again to go on" in capsys.readouterr().out
    position = goes_on(tmp_path, reference, steps).restored.position
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
            fit(tmp_path, At("on_train_batch_end", (0, 1), raise_signal()), save_freq=False)
        assert commits == [1]
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        fit(tmp_path, At("on_train_batch_end", (0, 1), raise_signal()))
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    try:
        fit(tmp_path, At("on_train_batch_end", (0, 1), raise_signal()), save_before_preemption=False)
        assert calls == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_another_thread_it_is_off_and_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in range(2):
        thread = threading.Thread(target=fit, args=(tmp_path / str(run),))
        thread.start()
        thread.join()
    assert capsys.readouterr().out.count("SIGUSR1 is not watched for: fit() runs in a thread") == 1


def test_a_notice_is_like_a_signal(tmp_path: Path, reference: keras.Model) -> None:
    notice = tmp_path / "leave"
    notice.touch()
    with pytest.raises(kdc.Preempted, match="Preempted by the file"):
        fit(tmp_path / "backup", preemption_notice=notice)
    assert goes_on(tmp_path / "backup", reference).restored.position.step == 1


def test_without_save_freq_only_the_end_is_saved(tmp_path: Path) -> None:
    commits: list[int] = []
    count = At("on_epoch_end", (2, 0), lambda: commits.append(len(list(tmp_path.glob("commits/*.json")))))
    fit(tmp_path, count, save_freq=False, delete_checkpoint=False)
    assert commits == [0]
    assert len(list(tmp_path.glob("commits/*.json"))) == 1


def test_training_that_was_stopped_is_not_trained_on(tmp_path: Path) -> None:
    """Preempted in the validation behind a batch at which a callback had ended training."""

    def job(backup: Path | None, *more: Any) -> tuple[keras.Model, tiny.CountSteps]:
        built, steps = tiny.model(), tiny.CountSteps()
        stop = At("on_train_batch_end", (1, 2), lambda: setattr(built, "stop_training", True))
        options = {"preemption_signals": ["SIGUSR1"], "grace_period": FOREVER}
        tiny.fit(built, backup, [steps, stop, *more], options=options, validation_data=validation())
        return built, steps

    expected, steps = job(None)
    assert steps.trained[-1] == (1, 2)
    with pytest.raises(kdc.Preempted):
        job(tmp_path, At("on_test_batch_end", (1, 0), raise_signal()))
    found, steps = job(tmp_path)
    tiny.assert_same(found, expected)
    assert steps.trained == []


EXCEPTIONS = {
    "a callback behind a step": ("on_train_batch_end", (1, 2), (1, 3)),
    "a callback before a step": ("on_train_batch_begin", (1, 2), (1, 2)),
    "validation": ("on_test_batch_end", (1, 1), (1, 5)),
    "an epoch's end": ("on_epoch_end", (1, 0), (1, 5)),
}


@pytest.mark.parametrize("where", EXCEPTIONS)
def test_an_exception_between_two_steps_is_saved(tmp_path: Path, reference: keras.Model, where: str) -> None:
    hook, when, (epoch, batch) = EXCEPTIONS[where]
    with pytest.raises(tiny.Stop) as raised:
        fit(tmp_path, At(hook, when, fail), save_freq=False)
    assert "a restart loses no step" in raised.value.__notes__[-1]
    restored = goes_on(tmp_path, reference).restored
    assert (restored.position.epoch, restored.position.batch) == (epoch, batch)
    assert restored.verdict == "exact"


@pytest.mark.filterwarnings("ignore:the resume is not exact:RuntimeWarning")
def test_a_callback_that_an_exception_kept_from_hearing_is_named(tmp_path: Path, reference: keras.Model) -> None:
    with pytest.raises(tiny.Stop):
        fit(tmp_path, At("on_train_batch_end", (1, 2), fail), Remembers(), save_freq=False)
    after = goes_on(tmp_path, reference, At("on_epoch_end", (9, 0), fail), Remembers()).restored
    assert any("Remembers did not hear of its last batch" in note for note in after.notes)


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
    callback = kdc.BackupAndRestore(tmp_path, save_freq=5, when_busy="wait")
    with pytest.raises(tf.errors.OpError) as raised:
        built.fit(data, epochs=1, verbose=0, callbacks=[callback], shuffle=False)
    assert raised.value.__notes__[-1] == (
        "the newest backup is at epoch 1, batch 5 (step 5); a restart trains 2 step(s) again"
    )


def test_it_can_leave_exceptions_alone(tmp_path: Path) -> None:
    with pytest.raises(tiny.Stop) as raised:
        fit(tmp_path, At("on_train_batch_end", (1, 2), fail), save_on_exception=False)
    assert raised.value.__notes__[-1].endswith("a restart trains 3 step(s) again")


def test_the_first_ctrl_c_waits_for_the_step(tmp_path: Path, reference: keras.Model) -> None:
    with pytest.raises(KeyboardInterrupt, match="Interrupted by Ctrl-C at epoch 2, batch 3"):
        fit(tmp_path, At("on_train_batch_begin", (1, 2), raise_signal(signal.SIGINT)), save_freq=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert goes_on(tmp_path, reference).restored.position.step == tiny.STEPS + 3


def test_the_second_ctrl_c_is_raised_at_once(tmp_path: Path) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, At("on_train_batch_begin", (1, 2), twice))


def test_ctrl_c_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "_INTERRUPT_SECONDS", 0.2)
    waiting = threading.Event()

    def hangs() -> None:
        _thread.interrupt_main()
        waiting.wait(60)

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, At("on_train_batch_begin", (1, 2), hangs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grace_period": 0}, "grace_period"),
        ({"preemption_signals": ["SIGNONE"]}, "SIGNONE"),
        ({"preemption_signals": ["SIGKILL"]}, "no process can watch for SIGKILL"),
        ({"preemption_notice": 7}, "a path or a function"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(kdc.errors.ConfigError, match=message):
        kdc.BackupAndRestore(tmp_path, **options)


def loop(backup: Path, act: Act, when: tuple[int, int], *, before_step: bool = False, **options: Any) -> list[float]:
    """A loop of one's own with an event before or behind `step()`; its weights in the end."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    chosen = {"preemption_signals": ["SIGUSR1"], "grace_period": FOREVER, "save_freq": False, **options}
    data = tiny.shuffled()
    with kdc.Checkpointer(backup, model=model, optimizer=optimizer, **chosen) as checkpointer:
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


def test_an_exception_in_a_loop_of_ones_own_is_saved_behind_a_step(tmp_path: Path) -> None:
    expected = loop(tmp_path / "reference", lambda: None, (0, 0))
    with pytest.raises(tiny.Stop) as raised:
        loop(tmp_path / "backup", fail, (1, 2))
    assert raised.value.__notes__[-1].endswith("a restart loses no step")
    with pytest.raises(tiny.Stop) as raised:
        loop(tmp_path / "backup", fail, (1, 4), before_step=True)
    assert raised.value.__notes__[-1].endswith("epoch 2, batch 3 (step 8); a restart trains 1 step(s) again")
    assert loop(tmp_path / "backup", lambda: None, (0, 0)) == expected

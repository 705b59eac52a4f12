"""`on_event`, and the journal that a training's backups hold."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import keras
import pytest

import keras_dist_callbacks as kdc
from keras_dist_callbacks.backups.journal import JOURNAL, Journal
from keras_dist_callbacks.backups.store import BackupStore
from keras_dist_callbacks.base import validation
from keras_dist_callbacks.run.engine import events
from keras_dist_callbacks.storage.storage import Storage
from tests.support import forget_runs, tiny
from tests.support.early_exits import FOREVER

pytestmark = pytest.mark.slow  # complete fits


def run(directory: Path, *callbacks: Any, on_event: Any = None, **options: Any) -> kdc.BackupAndRestore:
    backup = kdc.BackupAndRestore(
        directory,
        save_freq=4,
        on_event=on_event,
        write_options=kdc.WriteOptions(when_busy="wait"),
        shutdown_options=kdc.ShutdownOptions(grace_period=FOREVER),
        **options,
    )
    forget_runs()
    tiny.fit(tiny.model(), None, [*callbacks, backup], epochs=2)
    return backup


def newest_journal(directory: Path) -> Journal:
    store = BackupStore(Storage.open(directory))
    found: Journal = validation.convert(store.manifest(store.commits()[-1]).info[JOURNAL], Journal)
    return found


def test_what_happens_in_a_run_and_in_the_next_is_told_in_order(tmp_path: Path) -> None:
    told: list[kdc.Event] = []
    tiny.stopped(run, tmp_path, tiny.StopAt(1, 2), on_event=told.append)
    run(tmp_path, on_event=told.append)
    kinds = [(event.attempt, event.kind, event.epoch, event.step) for event in told]
    assert kinds == [
        (1, "attempt_started", None, None),
        (1, "backup_saved", 0, 4),
        (1, "backup_saved", 1, 7),  # what the exception left
        (1, "attempt_ended", 1, 7),
        (2, "attempt_started", 1, 7),
        (2, "resumed", 1, 7),
        (2, "backup_saved", 1, 8),
        (2, "backup_saved", 2, 10),
        (2, "attempt_ended", 2, 10),
    ]
    saved = told[1]
    assert saved.seconds is not None
    assert saved.seconds > 0
    assert saved.bytes is not None
    assert saved.bytes > 1000
    assert [event.message for event in told if event.kind == "attempt_ended"] == ["failed", "finished"]
    assert next(event for event in told if event.kind == "resumed").message == "exact"


def test_what_the_function_raises_is_a_warning_and_training_goes_on(tmp_path: Path) -> None:
    def fails(event: kdc.Event) -> None:
        if event.kind == "backup_saved":
            raise OSError("no network")

    with pytest.warns(RuntimeWarning, match=r"on_event has raised OSError: no network \(of 'backup_saved'\)"):
        run(tmp_path, on_event=fails)


def test_a_function_that_hangs_holds_up_nothing_but_the_end_and_that_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_PATIENCE", 0.1)
    released, threads = threading.Event(), []

    def hangs(event: kdc.Event) -> None:
        threads.append(threading.current_thread())
        released.wait(60)

    run(tmp_path, on_event=hangs)
    assert not (tmp_path / "commits").exists(), "the run has ended, and deleted its backup"
    released.set()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_events_are_logged_without_a_function(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "keras_dist_callbacks.events"):
        run(tmp_path)
    assert "kind='backup_saved'" in caplog.text


def test_only_a_function_is_taken() -> None:
    with pytest.raises(kdc.ConfigError, match="on_event"):
        kdc.BackupAndRestore("backup", on_event="print")  # type: ignore[arg-type]


class Preempts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == 7:
            from keras_dist_callbacks.base.process import shared
            from keras_dist_callbacks.run.shutdown.controller import StoppableRuns

            shared(StoppableRuns).open[-1]._ask("preempted", "a test")


kdc.advanced.register_callback_state(Preempts, None)


def test_the_journal_knows_each_process_and_a_finished_run_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(kdc.Preempted):
        run(tmp_path, Preempts())
    first = newest_journal(tmp_path).attempts
    assert [(one.first, one.step, one.end) for one in first] == [(0, 7, "preempted")]
    run(tmp_path, Preempts())
    store = BackupStore(Storage.open(tmp_path))
    assert store.commits() == []
    found = store.left_journal(store.journals()[-1])
    assert [(one.first, one.step, one.end) for one in found.attempts] == [(0, 7, "preempted"), (7, 10, "finished")]
    totals = found.totals()
    assert {"training", "training_prep", "unproductive_checkpoint_save_time", "other"} <= totals.keys()
    whole = found.attempts[-1].heard - found.attempts[0].began
    assert sum(totals.values()) == pytest.approx(whole, abs=0.01)
    assert "kdc: 2 starts in " in capsys.readouterr().out


def test_a_loop_that_has_failed_takes_no_time_from_the_next_one_of_its_process(tmp_path: Path) -> None:
    def loop(last: int) -> None:
        model = tiny.model()
        model.optimizer.build(model.trainable_variables)
        checkpointer = kdc.Checkpointer(tmp_path, model=model, optimizer=model.optimizer, save_freq=2)
        with checkpointer:
            checkpointer.restore()
            for _ in checkpointer.epochs(2):
                for _ in checkpointer.batches(range(4)):
                    checkpointer.step()
                    if checkpointer.steps == last:
                        raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        loop(3)
    loop(-1)
    store = BackupStore(Storage.open(tmp_path))
    found = store.left_journal(store.journals()[-1])
    assert [(one.first, one.step, one.end) for one in found.attempts] == [(0, 3, "failed"), (3, 8, "finished")]
    whole = found.attempts[-1].heard - found.attempts[0].began
    assert sum(found.totals().values()) == pytest.approx(whole, abs=0.01)


def test_a_rollback_takes_what_came_after_it_out_of_the_time_that_counts(tmp_path: Path) -> None:
    run(tmp_path, delete_checkpoint=False, max_to_keep=5)
    before = newest_journal(tmp_path)
    kdc.rollback(tmp_path, before_step=5, force=True)
    run(tmp_path, delete_checkpoint=False, max_to_keep=5)
    found = newest_journal(tmp_path)
    assert [(one.first, one.step) for one in found.attempts] == [(0, 10), (4, 10)]
    assert found.steps_repeated == 6
    assert found.totals()["wasted_progress_from_disruption"] == pytest.approx(
        0.6 * before.attempts[0].seconds["training"], rel=1e-6
    )
